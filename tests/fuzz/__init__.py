"""Continuous fuzzing: random calls and files, checked against references. See notes/fuzzing.md."""
