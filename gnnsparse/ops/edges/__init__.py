"""Functions over the edges of a graph, reduced at their targets."""
