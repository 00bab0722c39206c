"""The command `gnnsparse graph`: graphs larger than memory, made of edges or generated."""
