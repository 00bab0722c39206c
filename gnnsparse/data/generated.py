"""Data sets that are computed, kept in the package's cache beside the prepared graphs.

What a data set is computed from is its key, so that a change of any of it makes another file. The split is
left out: it is drawn anew in no time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from gnnsparse.data.checks import check_finite, check_labels
from gnnsparse.distributed.stored import check_shard
from gnnsparse.errors import bad_value
from gnnsparse.formats.csr import Csr, check_csr, check_host_array
from gnnsparse.preprocess.stored import check_file
from gnnsparse.runtime.cache import CACHE_VERSION, GraphCache
from gnnsparse.runtime.hashing import fingerprint
from gnnsparse.sparse.graph import SparseGraph

__all__ = ["Generated", "check_cached", "keep_generated"]

_ARRAYS = ("indptr", "indices", "x", "y")


@dataclass(frozen=True, eq=False)
class Generated:
    """A computed graph of N nodes with features and classes, on the CPU.

    Attributes:
        graph: N x N, without values.
        x: float32 [N, F], finite.
        y: int64 [N], the class of each node, below `classes`.
        classes: number of classes.
    """

    graph: SparseGraph
    x: torch.Tensor
    y: torch.Tensor
    classes: int


def keep_generated(name: str, about: str, recipe: object, make: Callable[[], Generated]) -> Generated:
    """Returns the data set of a recipe: from the cache, or computed and stored there.

    A damaged file is reported, set aside and made anew. Where the cache can't be written, a CacheWarning says
    so, and the data set is computed. The folder is $GNNSPARSE_CACHE_DIR or the user's cache folder.

    Args:
        name: name of the data set.
        about: its options in a few words, for `gnnsparse cache ls`; "": it has none.
        recipe: all that the data set depends on, with a `repr` that tells it from others. The release of
            torch, whose random numbers may change, is added.
        make: computes the data set.
    """
    cache = GraphCache(what="the data set")
    cache.check_folder()
    key = fingerprint([], "data", CACHE_VERSION, torch.__version__, name, recipe)
    if (found := cache.load(key, _unpack)) is not None:
        return found
    with cache.lock(key) as locked:
        # Another process may have made it while this one waited for the lock.
        if locked and (found := cache.load(key, _unpack)) is not None:
            return found
        made = make()
        if locked:
            csr = made.graph.csr
            arrays = dict(zip(_ARRAYS, (csr.indptr, csr.indices, made.x, made.y), strict=True))
            metadata = {
                "rows": csr.rows, "cols": csr.cols, "edges": csr.nnz, "classes": made.classes,
                "reorder": {"method": ""}, "kind": f"data: {name}{', ' if about else ''}{about}",
                "data": name,
            }  # fmt: skip
            cache.store(key, {label: array.contiguous() for label, array in arrays.items()}, metadata)
    return made


def check_cached(tensors: dict[str, torch.Tensor], metadata: dict[str, Any]) -> None:
    """Raises ValueError if the content of a cache file is no prepared graph, shard, plan or data set."""
    if "shard" in metadata:
        check_shard(tensors, metadata)
    else:
        (_unpack if "data" in metadata else check_file)(tensors, metadata)


def _unpack(tensors: dict[str, torch.Tensor], metadata: dict[str, Any]) -> Generated:
    """Makes the data set of a file's arrays; raises ValueError if they can't be one."""
    if set(tensors) != set(_ARRAYS):
        bad_value("arrays", f"are {', '.join(sorted(tensors))}; accepted: {', '.join(_ARRAYS)}")
    indptr, indices, x, y = (tensors[name] for name in _ARRAYS)
    classes = metadata.get("classes")
    if type(classes) is not int or not 0 < classes < 2**31:
        bad_value("metadata.classes", f"got {classes!r}; accepted: an integer above 0")
    nodes = indptr.numel() - 1
    if nodes < 0:
        bad_value("indptr", "is empty; accepted: one element more than there are nodes")
    csr = Csr(indptr, indices, nodes)
    check_host_array("indptr", indptr, (torch.int64,), nodes + 1)
    check_csr("graph", csr)
    if x.dim() != 2 or x.shape[0] != nodes or x.dtype != torch.float32:
        bad_value("x", f"is {x.dtype} {tuple(x.shape)}; accepted: torch.float32 ({nodes}, features)")
    try:
        check_finite("x", x)
        check_labels("y", y, nodes, classes)
    except TypeError as error:
        raise ValueError(str(error)) from error
    return Generated(SparseGraph(csr), x, y, classes)
