"""kvring beside LMCache's own L2 adapters and fio, on one device, in one run.

| you look for | it is in |
|---|---|
| the command line | `__main__` |
| the parts of a run | `sections` |
| what they do | `transfers`, `lookups`, `deletes`, `mixed`, `failing`, `lmcache_bench`, `server` |
| how much is measured | `scale` |
| who is measured | `peers`, `fio`; driven through `clients` |
| where: devices, memory, machine | `devices` over `block_devices`, `arena`, `machine` |
| what every part needs | `session`, `workload` |
| medians, ranges, ratios | `samples` |
| the goals | `goals` |
| tables, plots, page, JSON | `tables`, `plots`, `markdown`, `document` |
"""
