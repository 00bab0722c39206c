"""DGL, where it is installed, and graphs of it for tests."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch

from gnnsparse.interop.dgl import import_dgl


def dgl_or_skip() -> ModuleType:
    """DGL, imported by the shim; without it the module that calls this is skipped, with the reason."""
    try:
        return import_dgl()
    except ImportError as error:
        pytest.skip(f"DGL: {error}", allow_module_level=True)


def multigraph(dgl: Any, sources: int, targets: int, edges: int, seed: int = 0) -> Any:
    """A bipartite graph in which edges are repeated, and targets have none."""
    rng = torch.Generator().manual_seed(seed)
    source = torch.randint(0, sources, (edges,), generator=rng)
    target = torch.randint(0, max(targets - 2, 1), (edges,), generator=rng)
    return dgl.heterograph({("a", "to", "b"): (source, target)}, {"a": sources, "b": targets})


def homogeneous(dgl: Any, nodes: int, edges: int, seed: int = 0, loops: bool = True) -> Any:
    """A graph in which edges are repeated; without loops there are nodes without incoming edges."""
    rng = torch.Generator().manual_seed(seed)
    ends = torch.randint(0, nodes, (2, edges), generator=rng)
    if loops:
        ends = torch.cat([ends, torch.arange(nodes).expand(2, -1)], dim=1)
    else:
        ends[1] = ends[1] // 2
    return dgl.graph((ends[0], ends[1]), num_nodes=nodes)


def operands(layer: Any) -> list[Any]:
    """The operands that an accelerated layer has made of the graph of its last call."""
    return [made.operand for made in layer.gnnsparse_options.structure._made.values()]
