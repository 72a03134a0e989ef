"""Virtual machines with drives and kernels that this machine lacks."""
