"""What is read of a graph of PyTorch Geometric, without importing that package."""

from __future__ import annotations

from typing import Any

__all__ = ["is_pyg_data"]


def is_pyg_data(value: Any) -> bool:
    """Returns whether a value is a torch_geometric.data.Data, or of a subclass."""
    return any(
        (kind.__module__, kind.__name__) == ("torch_geometric.data.data", "Data")
        for kind in type(value).__mro__
    )
