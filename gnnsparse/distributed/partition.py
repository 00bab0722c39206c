"""Partitions of the rows of a square matrix: which rank owns which nodes, and how they are renumbered."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from gnnsparse.distributed.names import PARTITIONS
from gnnsparse.errors import bad_value, check_choice, check_integer
from gnnsparse.formats.csr import Csr
from gnnsparse.preprocess.reorder import METHODS
from gnnsparse.preprocess.reorder.registry import undirected
from gnnsparse.sparse.graph import SparseGraph
from gnnsparse.sparse.prepared import inverse

#: The most nonzeros for which "auto" tries METIS, which takes a second for about two million.
_METIS_NNZ = 20_000_000
#: "auto" looks for communities where more than this fraction of the nodes has more neighbours elsewhere.
_MOVING = 0.1
#: "auto" tries METIS where communities have at most this fraction of the halo of the graph's own order.
_LESS = 0.9
#: METIS may be built with indices of 32 bits.
_METIS_LIMIT = 2**31 - 1


@dataclass(frozen=True, eq=False)
class Partition:
    """A renumbering of nodes in which each rank owns a range.

    Attributes:
        order: int64 [nodes] on the CPU: node i of the new numbering is node order[i] of the graph.
        starts: the first new number of each rank, and the number of nodes at the end.
        method: how nodes were divided, one of PARTITIONS but "auto".
    """

    order: torch.Tensor
    starts: tuple[int, ...]
    method: str

    @property
    def parts(self) -> int:
        """Number of ranks."""
        return len(self.starts) - 1

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.starts[-1]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of nodes of each rank."""
        return tuple(b - a for a, b in zip(self.starts, self.starts[1:], strict=False))

    def owned(self, rank: int) -> torch.Tensor:
        """Return the nodes of a rank by their numbers in the graph, int64 [n]."""
        return self.order[self.starts[rank] : self.starts[rank + 1]]

    def ranks_of(self, device: torch.device) -> torch.Tensor:
        """Return the rank of each node of the graph, int32 [nodes]."""
        found = torch.empty(self.nodes, dtype=torch.int32, device=device)
        ranks = torch.arange(self.parts, dtype=torch.int32, device=device)
        sizes = torch.tensor(self.sizes, dtype=torch.int64, device=device)
        found[self.order.to(device)] = ranks.repeat_interleave(sizes, output_size=self.nodes)
        return found

    @classmethod
    def even(cls, nodes: int, parts: int) -> Partition:
        """Divide nodes in their own order into ranges of equal sizes, up to one node."""
        starts = tuple(nodes * part // parts for part in range(parts + 1))
        return cls(torch.arange(nodes, dtype=torch.int64, device="cpu"), starts, "contiguous")


def balanced_ranges(work: torch.Tensor, parts: int) -> tuple[int, ...]:
    """Split rows, of which int64 `work` [rows] is given, into ranges of about equal work, or none."""
    total = work.cumsum(0)
    all_work = int(total[-1]) if total.numel() else 0
    # A cut comes behind the row with which the work up to it reaches its share, rounded to the nearer side.
    shares = [all_work * part / parts for part in range(1, parts)]
    goals = torch.tensor(shares, dtype=torch.float64, device=work.device)
    cuts = torch.searchsorted((total.double() - work.double() / 2), goals, right=False)
    return (0, *cuts.tolist(), work.numel())


def ranges_along(csr: Csr, order: torch.Tensor, parts: int, method: str) -> Partition:
    """Divide nodes into ranges of about equal work along an order, int64 [nodes]."""
    # Of a row its nonzeros, and one for what is done for each node.
    return Partition(order, balanced_ranges(csr.degrees[order.to(csr.device)] + 1, parts), method)


def community_order(csr: Csr) -> torch.Tensor:
    """Return the nodes of a square graph community by community, int64 [nodes] on the CPU."""
    order = METHODS["community"].find(csr.to(torch.device("cpu"))).order
    return torch.arange(csr.rows, dtype=torch.int64, device="cpu") if order is None else order.long()


def _contiguous(csr: Csr, parts: int) -> Partition:
    order = torch.arange(csr.rows, dtype=torch.int64, device="cpu")
    return ranges_along(csr, order, parts, "contiguous")


def _metis(csr: Csr, parts: int) -> Partition:
    """Divide nodes by METIS's k-way partition (Karypis and Kumar 1998) of A + A^T, rows weighted by work."""
    try:
        import pymetis
    except ImportError as error:
        raise ImportError("parts='metis' needs the package pymetis: pip install gnnsparse[metis]") from error
    if csr.nnz > _METIS_LIMIT:
        bad_value("parts", f"'metis' takes at most {_METIS_LIMIT} nonzeros, got {csr.nnz}")
    csr = csr.to(torch.device("cpu"))
    both = undirected(csr)
    if parts == 1 or both.nnz == 0:
        return _contiguous(csr, parts)
    adjacency = pymetis.CSRAdjacency(adj_starts=both.indptr.numpy(), adjacent=both.indices.numpy())
    _, membership = pymetis.part_graph(parts, adjacency, vweights=(csr.degrees + 1).tolist())
    of_node = torch.as_tensor(membership, dtype=torch.int64, device="cpu")
    sizes = torch.bincount(of_node, minlength=parts).cumsum(0)
    return Partition(torch.argsort(of_node, stable=True), (0, *sizes.tolist()), "metis")


def cut_sizes(csr: Csr, partition: Partition) -> list[tuple[int, int, int]]:
    """Count for each rank its nonzeros, those in columns of other ranks, and the number of these columns."""
    order, found = partition.order.to(csr.device), []
    new = inverse(order)
    for start, end in itertools.pairwise(partition.starts):
        rows, _ = csr.select_rows(order[start:end])
        columns = new[rows.indices.long()]
        outside = columns[(columns < start) | (columns >= end)]
        # Marks take less time than the sorting of `unique`.
        touched = torch.zeros(partition.nodes, dtype=torch.bool, device=csr.device)
        touched[outside] = True
        found.append((rows.nnz, outside.numel(), int(touched.sum())))
    return found


def moving(csr: Csr, partition: Partition) -> float:
    """Return the fraction of nodes that have more neighbours on some other rank than on their own.

    It is what a step of local moving would move, on the device of the matrix: about none where each rank has
    whole communities, and the most where nodes are divided at random.
    """
    parts, rank_of = partition.parts, partition.ranks_of(csr.device)
    pairs = csr.row_index().mul_(parts).add_(rank_of.index_select(0, csr.indices))
    counts = torch.bincount(pairs, minlength=csr.rows * parts).view(csr.rows, parts)
    own = counts.gather(1, rank_of[:, None]).flatten()
    return int((counts.amax(1) > own).sum()) / max(csr.rows, 1)


def partition_rows(graph: SparseGraph, parts: int, method: str = "auto") -> Partition:
    """Divide the nodes of a square graph among ranks, so that each has about equal work.

    The work of a node is the number of its nonzeros plus one.

    Args:
        graph: the graph, on any device; communities and METIS's partitions are computed on the CPU.
        parts: number of ranks.
        method: "contiguous": ranges in the graph's own order; "community": ranges along the order of
            communities (`gnnsparse.reorder` documents it); "metis": METIS's k-way partition of A + A^T, which
            needs the package pymetis; "auto": the own order, if at most a tenth of the nodes have more
            neighbours on another rank than on their own; else of these the one with the smallest largest
            halo, METIS only if it is installed, the graph has at most 20 million nonzeros, and its
            communities have a halo that is a tenth smaller than that of the graph's own order: else METIS
            finds little either.

    Returns:
        The partition. It depends on the arguments alone.

    Raises:
        TypeError: an argument is of another type.
        ValueError: the graph is not square, or an argument is out of range.
        ImportError: `method` is "metis", and pymetis is not installed.
    """
    check_integer("parts", parts)
    check_choice("method", method, PARTITIONS)
    if graph.num_rows != graph.num_cols:
        bad_value(
            "graph", f"is {graph.num_rows} x {graph.num_cols}; accepted: a square matrix, one row for a node"
        )
    csr = graph.csr
    if method != "auto":
        return _MAKERS[method](csr, parts)
    best = _contiguous(csr, parts)
    # Where hardly a node would move communities take seconds, and leave as many columns to fetch.
    if parts == 1 or moving(csr, best) <= _MOVING:
        return best
    halo = _largest_halo(csr, best)
    for name in ("community", "metis"):
        if name == "metis" and (csr.nnz > _METIS_NNZ or importlib.util.find_spec("pymetis") is None):
            break
        other = _MAKERS[name](csr, parts)
        before, found = halo, _largest_halo(csr, other)
        if found < halo:
            best, halo = other, found
        if found > _LESS * before:
            break
    return best


def _largest_halo(csr: Csr, partition: Partition) -> int:
    return max(halo for _, _, halo in cut_sizes(csr, partition))


_MAKERS: dict[str, Callable[[Csr, int], Partition]] = {
    "contiguous": _contiguous,
    "community": lambda csr, parts: ranges_along(csr, community_order(csr), parts, "community"),
    "metis": _metis,
}
