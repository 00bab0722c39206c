"""SpMM: sparse times dense."""
