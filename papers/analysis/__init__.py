"""Counts that the five papers give, computed from the structure of a matrix.

Instructions and memory accesses (FlashSparse), footprints of all formats, utilisation (Tiled-CSR, SSpMM),
bricks, synergy and modelled intensity (cuTeSpMM), and the division of rows, load balance and order of rows
(RSH-SpMM, cuTeSpMM). Functions take a graph, a CSR matrix or a blocked matrix, and need no GPU.
"""

from papers.analysis.accesses import INSTRUCTION_K, Accesses, count_accesses
from papers.analysis.balance import imbalance, wave_segments
from papers.analysis.bricks import BRICK, SYNERGY, Bricks, count_bricks, grid_bricks, synergy_class
from papers.analysis.correlation import rank_correlation
from papers.analysis.footprints import FOOTPRINTS, footprint
from papers.analysis.order import adjacent_dissimilarity
from papers.analysis.partition import (
    DEFAULT_THRESHOLD,
    READINGS,
    RowPartition,
    default_limits,
    new_columns,
    partition_rows,
)
from papers.analysis.structure import HEIGHTS, Matrix, count_vectors, structure_of
from papers.analysis.utilisation import row_utilisation, tile_utilisation, vector_density

__all__ = [
    "BRICK",
    "DEFAULT_THRESHOLD",
    "FOOTPRINTS",
    "HEIGHTS",
    "INSTRUCTION_K",
    "READINGS",
    "SYNERGY",
    "Accesses",
    "Bricks",
    "Matrix",
    "RowPartition",
    "adjacent_dissimilarity",
    "count_accesses",
    "count_bricks",
    "count_vectors",
    "default_limits",
    "footprint",
    "grid_bricks",
    "imbalance",
    "new_columns",
    "partition_rows",
    "rank_correlation",
    "row_utilisation",
    "structure_of",
    "synergy_class",
    "tile_utilisation",
    "vector_density",
    "wave_segments",
]
