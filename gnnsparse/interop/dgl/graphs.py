"""DGL's graphs as ours: their edges, the operands that layers make of them, and the import of DGL."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import weakref
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from gnnsparse.data.sources import no_update_check
from gnnsparse.errors import bad_type, bad_value
from gnnsparse.interop.models import IdentityMemo
from gnnsparse.nn.adjacency import Recipe
from gnnsparse.runtime.functorch import outside
from gnnsparse.runtime.hashing import fingerprint
from gnnsparse.runtime.memo import ForkLock
from gnnsparse.sparse.graph import SparseGraph
from gnnsparse.sparse.typed import edges_of_relation, is_dgl_graph

_INSTALL = "pip install --no-deps dgl==2.1.0 (Python 3.8 to 3.12), after pip install 'gnnsparse[dgl]'"
#: The modules of graphbolt that the rest of DGL imports.
_GRAPHBOLT = ("", ".base", ".impl", ".internal", ".utils")


class _Absent(ModuleType):
    """A module that stands for one of graphbolt, and says so when something is looked up in it."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{self.__name__}.{name}: DGL's graphbolt has no library for torch {torch.__version__}; the rest "
            "of DGL works without it (gnnsparse.interop.dgl.import_dgl)"
        )


def import_dgl() -> ModuleType:
    """Import DGL, beside a torch for which it was not built too, and return it.

    DGL 2.1.0, the last release on PyPI, is built for torch 2.2 and older. Installed without its dependencies
    beside a newer torch, `import dgl` fails, because graphbolt, a part of it, looks for a library of exactly
    that torch. If there is none, this function puts empty modules in the place of graphbolt's and imports
    DGL. Call it once, before anything else imports DGL; `import dgl` then finds what it imported.

    What works without graphbolt and was tested with DGL 2.1.0: graphs, blocks and heterographs, message
    passing, the layers of `dgl.nn.pytorch`, `dgl.ops`, the samplers and the DataLoader of `dgl.dataloading`.
    What does not: `dgl.graphbolt`, `dgl.sparse`, and `graph.adj()`, which needs it;
    `graph.adj_tensors("csr")` takes its place.

    Unless it is set, the environment variable DGLBACKEND is set to "pytorch": DGL would write a file into the
    home directory otherwise.

    Returns:
        The module `dgl`.

    Raises:
        ImportError: DGL is not installed, or lacks a package or a library that it imports.
    """
    if (known := sys.modules.get("dgl")) is not None:
        return known
    found = importlib.util.find_spec("dgl")
    if found is None:
        raise ImportError(f"DGL is not installed: {_INSTALL}")
    os.environ.setdefault("DGLBACKEND", "pytorch")
    library = f"graphbolt/*graphbolt_pytorch_{torch.__version__.partition('+')[0]}.*"
    has_library = any(any(Path(folder).glob(library)) for folder in found.submodule_search_locations or [])
    names = [] if has_library else [f"dgl.graphbolt{part}" for part in _GRAPHBOLT]
    stubs = {name: _Absent(name, "Stands for a module of DGL's graphbolt.") for name in names}
    sys.modules.update(stubs)
    try:
        with no_update_check():  # DGL imports ogb if it is installed
            return importlib.import_module("dgl")
    except (ImportError, OSError) as error:  # OSError: a library can't be loaded
        for name in stubs:
            sys.modules.pop(name, None)
        raise ImportError(f"DGL can't be imported ({error}); it is installed by {_INSTALL}") from error


def from_dgl(graph: Any, etype: Any = None, weight: str | None = None) -> SparseGraph:
    """Make a graph of a relation of a DGL graph: edge e goes from its source to its target.

    Row i of the matrix holds the sources of the edges that arrive at node i, as DGL's `update_all` sums them.
    Edges keep DGL's order, that of their numbers: features in `graph.edges[etype].data` go with the edges of
    the result, as `prepare(..., values=)` and `SparseOperand.from_coo_order` take them.

    Args:
        graph: a DGLGraph, homogeneous, bipartite or with several relations, or a block of a sampler.
        etype: the relation: the name of an edge type, or a triple (source type, edge type, target type).
            None: the only one that the graph has.
        weight: name of an edge feature with one number for each edge, which become the values; None: 1 each.
            Repeated edges are merged, and their values summed.

    Returns:
        The matrix [targets, sources], on the device of the graph.

    Raises:
        TypeError: `graph` is no DGL graph, or an argument is of another type.
        ValueError: `etype` is none of the graph's relations, or is None and there are several; the graph has
            no such feature, or it is not one finite number for each edge.
    """
    if not is_dgl_graph(graph):
        bad_type("graph", graph, "a DGLGraph")
    relation = _relation(graph, etype)
    values = None
    if weight is not None:
        features, edges = graph.edges[relation].data, graph.num_edges(relation)
        if not isinstance(weight, str):
            bad_type("weight", weight, "the name of an edge feature, or None")
        if weight not in features:
            bad_value("weight", f"got {weight!r}; accepted: {', '.join(map(repr, features)) or 'None'}")
        values = features[weight].detach()
        if values.numel() != edges or values.dim() > 2:
            shape = f"{weight!r} has shape {tuple(values.shape)}"
            bad_value("weight", f"{shape}; accepted: one number for each edge")
        values = values.reshape(edges)
    edge_index, size = edges_of_relation(graph, relation)
    return SparseGraph.from_edge_index(edge_index, size, values)


def _relation(graph: Any, etype: Any) -> tuple[str, str, str]:
    relations = graph.canonical_etypes
    if etype is None:
        if len(relations) != 1:
            bad_value("etype", f"got None; accepted: {_shown(relations)}")
        return tuple(relations[0])
    if not isinstance(etype, (str, tuple)):
        bad_type("etype", etype, "the name of an edge type, a triple of names, or None")
    found = [name for name in relations if etype in (name, name[1])]
    if len(found) != 1:
        bad_value("etype", f"got {etype!r}; accepted: {_shown(relations)}")
    return tuple(found[0])


def _shown(relations: Any) -> str:
    return ", ".join(str(tuple(names)) for names in relations[:20]) or "none, the graph has no edge types"


class Structure:
    """The edges of a graph with one relation, and what layers have made of them.

    `edge_index` is [2, edges], sources over targets by the edges' numbers, and `size` (sources, targets).
    """

    def __init__(self, edge_index: torch.Tensor, size: tuple[int, int]) -> None:
        self.edge_index, self.size = edge_index, size
        self._lock = ForkLock()
        self._made: dict[tuple[Any, bool], Any] = {}
        targets = torch.bincount(edge_index[1].long(), minlength=size[1])
        self.has_isolated_targets = bool((targets == 0).any())
        #: Edges that arrive at each target, float32 [targets].
        self.in_degrees = targets.float()
        #: Edges that leave each source, float32 [sources].
        self.out_degrees = torch.bincount(edge_index[0].long(), minlength=size[0]).float()

    def adjacency(self, recipe: Recipe, weighted: bool = False) -> Any:
        """Return what a recipe makes of the edges, made once for weighted edges and once for others."""
        with self._lock, outside():
            key = recipe, weighted
            if key not in self._made:
                self._made[key] = recipe.make(self.edge_index, self.size, weighted)
            return self._made[key]


#: Structures by DGL's index object of their graph, and by content, as long as somebody holds them.
_by_index: IdentityMemo[Structure] = IdentityMemo()
_by_content: weakref.WeakValueDictionary[str, Structure] = weakref.WeakValueDictionary()


def structure_of(graph: Any) -> Structure:
    """Return the structure of a DGL graph with one relation: a known one, or a new one.

    Copies of a graph share its index object, which DGL replaces when edges are added or removed. The
    relations of a heterograph, which DGL makes anew in each forward pass, are known by their content.
    """
    known = _by_index.get(graph._graph)
    if known is not None:
        return known
    with outside():
        edges, size = edges_of_relation(graph, tuple(graph.canonical_etypes[0]))
        content = fingerprint([edges], size, str(edges.device))
        made = _by_content.get(content) or Structure(edges, size)
    return _by_index.put(graph._graph, _by_content.setdefault(content, made))
