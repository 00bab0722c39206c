"""The command `gnnsparse doctor`: what is installed, whether it fits, and whether kernels are right."""
