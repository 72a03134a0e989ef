"""What write streams bring inside a drive, by a model of one."""
