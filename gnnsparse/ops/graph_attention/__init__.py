"""Attention over the edges of a graph, with the scores and edge terms of graph layers."""
