"""A fleet of nodes with kvring each, with a shared tier or without: what it finds and moves."""
