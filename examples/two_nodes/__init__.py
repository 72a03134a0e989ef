"""Two LMCache servers on this machine, with a kvring store each."""
