"""Hit ratios of the eviction policies on traces, by simulation with the code that evicts."""
