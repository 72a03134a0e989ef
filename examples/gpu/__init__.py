"""Time to first token with vLLM on a GPU: cold, from DRAM, from kvring, from vLLM's tier fs."""
