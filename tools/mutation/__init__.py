"""All mutants of kvring in one build, and the tests that each must fail."""
