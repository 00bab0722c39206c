"""From a caller's graph to an operand: checks, weights, orders, conversion and the cache."""
