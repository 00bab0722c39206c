"""What a sparse matrix is: the graph, its CSR form, and the operand that kernels take."""
