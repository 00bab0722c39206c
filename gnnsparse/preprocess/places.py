"""Where the value of each nonzero lies in a format that stores the values of all elements of its blocks."""

from __future__ import annotations

import torch

from gnnsparse.errors import bad_type, bad_value
from gnnsparse.formats import BlockedMatrix
from gnnsparse.sparse.csr import Csr

__all__ = ["place_values", "value_places"]


def value_places(csr: Csr, blocked: BlockedMatrix) -> torch.Tensor:
    """Computes for each nonzero the index of its value in `blocked.values`, from the format's arrays.

    Edge values that are given in the order of the nonzeros reach a format through it, and scores that SDDMM
    writes in the format's blocks come back to that order.

    Args:
        csr: the matrix, rows in stored order.
        blocked: the matrix in a dense format, on the same device.

    Returns:
        int64 [nnz].

    Raises:
        TypeError: the format is no dense one, or keeps rows out of its windows.
        ValueError: a nonzero is in no column slot of its panel.
    """
    spec, device = blocked.spec, csr.device
    if spec.encoding != "dense" or spec.split_short_rows or spec.lane_order:
        bad_type("format", spec.name, "a dense format whose windows have all rows, row-major in a block")
    if csr.nnz == 0:
        return torch.empty(0, dtype=torch.int64, device=device)
    counts = blocked.panel_ptr.diff()
    panels = torch.arange(blocked.panels, dtype=torch.int64, device=device)
    # Columns ascend in a panel, so that (panel, column) ascends over all slots. The first of equals is the
    # slot with the values.
    slot_keys = torch.repeat_interleave(panels, counts) * csr.cols + blocked.columns
    rows = csr.row_index()
    panel = rows // spec.panel
    keys = panel * csr.cols + csr.indices
    slot = torch.searchsorted(slot_keys, keys)
    if bool((slot_keys[slot.clamp(max=max(blocked.slots - 1, 0))] != keys).any()):
        bad_value("columns", "of the format are not those of its nonzeros")
    first = blocked.panel_ptr[panel]
    position = slot - first
    begin = position // spec.block * spec.block
    width = (counts[panel] - begin).clamp(max=spec.block)  # the last block of a panel may be narrower
    return (first + begin) * spec.window + (rows % spec.panel) * width + (position - begin)


def place_values(blocked: BlockedMatrix, places: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Puts values of the nonzeros in the places of a dense format, for use in the place of `blocked.values`.

    Args:
        blocked: the matrix in a dense format.
        places: what `value_places` returns.
        values: [nnz] in the order of the nonzeros.

    Returns:
        [slots * window] in the dtype of `values`. As in the format's own values, nonzeros that are zero
        are -0.0, and elements that are no nonzeros are +0.0.
    """
    out = values.new_zeros(blocked.slots * blocked.spec.window)
    out[places] = values.masked_fill(values == 0, -0.0)
    return out
