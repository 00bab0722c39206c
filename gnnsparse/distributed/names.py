"""The names by which ways and partitions are asked for, without what computes them."""

from __future__ import annotations

#: How ranks share a product.
WAYS = ("halo", "gather", "features")
#: What features of other ranks travel as: "auto": as products round them; "int8": in 8 bits.
WIRES = ("auto", "int8")
#: Ways to divide nodes among ranks: "auto" takes the one with the smallest halo.
PARTITIONS = ("auto", "contiguous", "community", "metis")
