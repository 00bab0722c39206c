"""Attention over the nonzeros of a sparse matrix."""
