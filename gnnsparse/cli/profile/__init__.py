"""The command `gnnsparse profile`: a trace of a training step, and what its operations cost."""
