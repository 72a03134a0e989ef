"""Measurements of kvring."""
