"""Continuous fuzzing: random calls and files, checked against references. See docs/reliability.md."""
