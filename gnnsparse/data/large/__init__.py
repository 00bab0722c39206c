"""Graphs larger than memory: built by an external sort, kept in folders, opened without being read."""
