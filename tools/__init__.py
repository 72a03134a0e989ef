"""Tools that search for what breaks the promises; docs/hardening.md says how to run them."""
