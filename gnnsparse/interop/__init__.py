"""Models of other packages on the kernels of this one. Each module here needs its package when it is used."""
