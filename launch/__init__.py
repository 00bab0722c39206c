"""What train.py does around a run: words that are checked, folders, signals, resuming and sweeps."""
