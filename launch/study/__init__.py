"""Studies: what `python train.py experiment=NAME` runs, many trainings and a comparison of their scores."""
