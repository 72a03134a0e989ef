"""Tools that search for what breaks the promises. docs/hardening.md reports what they found."""
