"""Matrices in blocked formats, as the tests of formats make them."""

from __future__ import annotations

import torch

from gnnsparse import SparseGraph
from gnnsparse.formats import PRESETS, BlockedMatrix, format_spec
from gnnsparse.formats.convert import convert
from gnnsparse.precision import Precision, round_operand

#: Every format with the heights of panels that it may have.
CASES = [(name, panel) for name, preset in PRESETS.items() for panel in preset.panels or (None,)]


def converted(
    graph: SparseGraph, name: str, precision: str | Precision = "tf32", panel: int | None = None,
    **options: int,
) -> BlockedMatrix:  # fmt: skip
    """A graph in a format; values that it does not have are 1."""
    density = graph.nnz / max(graph.num_rows * graph.num_cols, 1)
    spec = format_spec(name, precision, density, panel, options)
    values = torch.ones(graph.nnz) if graph.values is None else graph.values
    stored = round_operand(values, Precision(precision)) if spec.stores_values else None
    return convert(graph.csr, spec, stored)
