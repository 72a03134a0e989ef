"""Which eviction policy: hit ratios of all of them on traces, by simulation.

| you look for | it is in |
|---|---|
| the command line | `__main__` |
| the simulation, in Rust | `simulator/main.rs`; caches `cache.rs`, traces by rule `generate.rs` |
| how it is run | `simulation` |
| traces of others | `traces` |
| hit ratios and the ranking | `results` |
| tables, plots, page | `tables`, `plots`, `page` |
"""
