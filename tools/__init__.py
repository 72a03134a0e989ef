"""Tools that search for what breaks the promises; tools/README.md says how to run them."""
