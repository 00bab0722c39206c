"""Other packages: their graphs and matrices in ours, and their models on our kernels."""
