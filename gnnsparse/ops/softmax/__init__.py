"""Softmax over the nonzeros of each row."""
