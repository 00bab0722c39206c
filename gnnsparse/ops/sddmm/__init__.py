"""SDDMM: dot products of the rows of two dense matrices, at the nonzeros of a sparse matrix."""
