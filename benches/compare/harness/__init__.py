"""What the parts of the comparison share: devices, memory, peers, rounds and samples."""
