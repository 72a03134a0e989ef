"""What tests, benches and examples share."""
