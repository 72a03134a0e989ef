"""What runs inside the virtual machines."""
