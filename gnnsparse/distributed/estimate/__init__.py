"""A model of the time and memory of training a graph on 1 to 1,024 GPUs."""
