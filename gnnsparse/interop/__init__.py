"""Other libraries' graphs, matrices and models; each in a module of its own, which imports that library."""
