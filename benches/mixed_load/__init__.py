"""Mixed load on two builds of kvring in turns: how long loads and submits take."""
