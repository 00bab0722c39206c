"""Other packages: their graphs and matrices in ours, and their models on our kernels.

Each module needs its package when it is used, and not before.
"""
