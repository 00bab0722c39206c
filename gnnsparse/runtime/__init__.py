"""What the library needs of torch, CUDA and the operating system."""
