"""kvring beside another native connector of LMCache, on one device, in one run.

Both are driven through the interface that LMCache itself uses, with the same memory, keys and
batches. `__main__` reads the command line, `devices` makes the directory to measure on, `peers`
opens the connectors, `arena` holds the memory, `workload` drives and times one transfer, `rounds`
alternates between the peers, `machine` tells where it all ran, and `report` prints and writes what
came out.
"""
