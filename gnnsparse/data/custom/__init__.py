"""Data sets of a user's own files: `dataset=custom` of train.py."""
