"""kvring beside LMCache's own L2 adapters and fio, on one device, in one run."""
