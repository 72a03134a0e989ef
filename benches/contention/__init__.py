"""Whether submitting threads wait for each other."""
