"""A demonstration of kvring under LMCache, on a real model's KV cache and with real processes."""
