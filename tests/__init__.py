"""The tests; a package, so that no installed one of this name is taken for it."""
