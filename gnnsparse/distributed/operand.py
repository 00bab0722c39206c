"""DistributedOperand: one rank's part of a sparse matrix, which layers take in place of a SparseOperand."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from gnnsparse.distributed.cost import Choice
from gnnsparse.distributed.operations import FeatureOperations, RowOperations
from gnnsparse.distributed.shard import ShardFacts
from gnnsparse.errors import bad_value
from gnnsparse.formats.csr import Csr
from gnnsparse.precision import Precision
from gnnsparse.sparse.kernel_cache import KernelCache
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["DistributedOperand"]


class _OfOneProcess:
    """Stands for an attribute that the operand of a single process has and that of several can't have."""

    def __get__(self, operand: Any, kind: Any) -> Any:
        if operand is None:
            return self
        bad_value("A", "is divided among ranks, and this takes all of it; accepted: one of a single process")


class DistributedOperand(SparseOperand):
    """A square sparse matrix of which each rank of a process group has some rows.

    `A @ X` of the own rows of X gives the own rows of the product, and so do `spmm`, `sddmm`, `edge_softmax`,
    `attention`, `graph_attention` and the layers of `gnnsparse.nn`, with gradients: what other ranks have is
    fetched, and its gradients return to them. All ranks must call the same operations in the same order.
    Results and gradients have the same bits in every run. First derivatives only; torch.compile and the
    transforms of torch.func are not supported. `distribute` makes it.

    Its `shape` is (own rows, own rows), as the shape of what it maps; `nnz` is of the own rows. Edge values
    are in the order of its own nonzeros; there is no order of given edges.

    What takes the whole matrix raises a ValueError: `A[rows]`, `plan`, `tune`, `stats`, `prepared` and more.

    Args:
        facts: what all ranks know of the matrix.
        nodes: the nodes of this rank by their numbers in the graph, int64 [rows] on the CPU.
        operations: what computes.
        precision: arithmetic of the products.
        device: device of the features.
        choice: how ranks share products, and why.
        cache_hit: whether the own rows were read from the cache.

    Attributes:
        facts, nodes, operations, choice: the arguments.
    """

    def __init__(
        self,
        facts: ShardFacts,
        nodes: torch.Tensor,
        operations: RowOperations | FeatureOperations,
        precision: Precision,
        device: torch.device,
        choice: Choice,
        *,
        cache_hit: bool,
    ) -> None:
        self.facts, self.nodes, self.operations, self.choice = facts, nodes, operations, choice
        self._precision, self._device, self._cache_hit = precision, device, cache_hit

    def explain(self) -> str:
        """Return how ranks share products, and why; one line for each reason."""
        facts = self.facts
        sizes = ", ".join(
            f"rank {rank}: {facts.starts[rank + 1] - facts.starts[rank]} nodes, {facts.nnz[rank]} nonzeros, "
            f"halo {facts.halo[rank]}"
            for rank in range(facts.ranks)
        )
        return f"{self.choice}\nnodes divided by {facts.method}: {sizes}"

    # What follows replaces what a SparseOperand knows from its arrays; its other methods read these.

    _prepared: Any = _OfOneProcess()
    _kernels: Any = _OfOneProcess()
    _handle: Any = _OfOneProcess()

    @property
    def shape(self) -> tuple[int, int]:
        """(own rows, own rows)."""
        return self.facts.rows, self.facts.rows

    @property
    def nnz(self) -> int:
        """Number of nonzeros of the operand that operations on edges run on: those of the own rows."""
        facts = self.facts
        return sum(facts.nnz) if self.choice.way == "features" else facts.nnz[facts.rank]

    @property
    def precision(self) -> Precision:
        """Arithmetic of the products."""
        return self._precision

    @property
    def normalization(self) -> str | None:
        """The weights that were computed, "gcn" or "mean"; None: they were given, or are 1 each."""
        return self.facts.normalization

    @property
    def added_loops(self) -> float | None:
        """Weight of the self-loops that were added to nodes without one; None: none were added."""
        return self.facts.added_loops

    @property
    def has_self_loops(self) -> bool:
        """Whether every node of the graph has a self-loop."""
        return self.facts.has_self_loops

    @property
    def merges_edges(self) -> bool:
        """Whether repeated edges of the graph were merged into one nonzero."""
        return self.facts.merged

    @property
    def cache_hit(self) -> bool:
        """Whether this rank's rows were read from the cache."""
        return self._cache_hit

    @property
    def device(self) -> torch.device:
        """The device of the features."""
        return self._device

    @property
    def num_edges(self) -> int:
        """Number of edges of the whole graph, repeats included."""
        return self.facts.edges

    @property
    def kernels(self) -> KernelCache:
        """What kernels derive from the operand that operations on edges run on."""
        return self.operations.whole.kernels

    def indices(self) -> torch.Tensor:
        """Return (row, column) of each nonzero of the operand that operations on edges run on, int64."""
        return self.operations.whole.indices()

    def _canonical(self) -> tuple[Csr, torch.Tensor | None]:
        return self.operations.whole._canonical()

    @property
    def T(self) -> SparseOperand:  # noqa: N802
        """Raises: products with the transpose run in the backward pass alone."""
        bad_value("A.T", "is not divided among the ranks; accepted: an operand of one process")

    def to(self, device: torch.device | str) -> SparseOperand:
        """Return this object for its own device, and raises a ValueError for another one."""
        if torch.device(device) not in (self.device, torch.device(self.device.type)):
            bad_value("device", f"got {device}; accepted: {self.device}, which `distribute` was given")
        return self

    def to_coo_order(self, values: torch.Tensor) -> torch.Tensor:
        """Raise a ValueError: a rank has a part of the edges that were given."""
        self._refuse_coo()

    def from_coo_order(self, values: torch.Tensor) -> torch.Tensor:
        """Raise a ValueError: a rank has a part of the edges that were given."""
        self._refuse_coo()

    def _refuse_coo(self) -> NoReturn:
        bad_value(
            "values", "an operand of several ranks has no order of given edges; accepted: its own order"
        )

    def __reduce__(self) -> Any:
        raise TypeError("a DistributedOperand belongs to its process group and can't be pickled")

    def __repr__(self) -> str:
        facts = self.facts
        return (
            f"DistributedOperand(rank {facts.rank} of {facts.ranks}, {facts.rows} of {facts.nodes} rows, "
            f"{self.choice.way}, {self.precision.value}, device={self.device})"
        )
