"""SDDMM: dot products of rows of two dense matrices at the nonzeros of a sparse one."""
