"""DistributedOperand: one rank's part of a sparse matrix, which layers take in place of a SparseOperand."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from gnnsparse.distributed.cost import Choice
from gnnsparse.distributed.operations import FeatureOperations, RowOperations
from gnnsparse.distributed.shard import ShardFacts
from gnnsparse.errors import bad_value
from gnnsparse.formats.csr import Csr
from gnnsparse.ops.arguments import check_features
from gnnsparse.precision import Precision
from gnnsparse.runtime.memo import Memo
from gnnsparse.sparse.kernel_cache import KernelCache
from gnnsparse.sparse.operand import SparseOperand


def _refuse(*_: Any) -> NoReturn:
    bad_value("A", "is divided among ranks, and this takes all of it; accepted: one of a single process")


class _Known:
    """What a SparseOperand reads of its arrays, of one that is divided; all else is refused."""

    def __init__(self, **known: Any) -> None:
        self.__dict__.update(known)

    __getattr__ = _refuse


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
        self, facts: ShardFacts, nodes: torch.Tensor, operations: RowOperations | FeatureOperations,
        precision: Precision, device: torch.device, choice: Choice, *, cache_hit: bool,
    ) -> None:  # fmt: skip
        self.facts, self.nodes, self.operations, self.choice = facts, nodes, operations, choice
        self._prepared: Any = _Known(
            precision=precision, device=device, normalization=facts.normalization, cache_hit=cache_hit,
            added_loops=facts.added_loops, has_self_loops=facts.has_self_loops, report={"edges": facts.edges},
        )  # fmt: skip

    def explain(self) -> str:
        """Return how ranks share products, and why; one line for each reason."""
        facts = self.facts
        counts = enumerate(zip(facts.starts, facts.starts[1:], facts.nnz, facts.halo, strict=False))
        sizes = ", ".join(
            f"rank {rank}: {end - start} nodes, {nnz} nonzeros, halo {halo}"
            for rank, (start, end, nnz, halo) in counts
        )
        return f"{self.choice}\nnodes divided by {facts.method}: {sizes}"

    def fetch_once(self, x: torch.Tensor) -> None:
        """Let products with features that stay as they are fetch other ranks' rows of them only once.

        `A @ x` of this very tensor, [own rows, features], keeps what other ranks sent, if it takes at most a
        tenth of the free memory of each rank, and has the same bits. All ranks call it. Another call replaces
        x. After a change of x that torch counts products exchange again; those through `.data` are not seen.
        """
        check_features("x", x, self, self.shape[1], "reference", heads=False)
        self.operations.fetch_once(x)

    # What follows replaces what a SparseOperand reads of its arrays; its other methods read these.

    prepared: Any = property(_refuse)
    _kernels: Any = property(_refuse)
    _handle: Any = property(_refuse)

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
    def num_edges(self) -> int:
        """Number of edges that operations on edges take: the nonzeros."""
        return self.nnz

    @property
    def merges_edges(self) -> bool:
        """Whether repeated edges of the graph were merged into one nonzero."""
        return self.facts.merged

    @property
    def kernels(self) -> KernelCache:
        """What kernels derive from the operand that operations on edges run on."""
        return self.operations.whole.kernels

    @property
    def memo(self) -> Memo:
        """What was made for the operand that operations on edges run on."""
        return self.kernels.memo

    def indices(self) -> torch.Tensor:
        """Return (row, column) of each nonzero of the operand that operations on edges run on, int64."""
        return self.operations.whole.indices()

    def _canonical(self) -> tuple[Csr, torch.Tensor | None]:
        return self.operations.whole._canonical()

    @property
    def T(self) -> SparseOperand:  # noqa: N802
        """Raise: products with the transpose run in the backward pass alone."""
        bad_value("A.T", "is not divided among the ranks; accepted: an operand of one process")

    def to(self, device: torch.device | str) -> SparseOperand:
        """Return this object for its own device, and raise a ValueError for another one."""
        if torch.device(device) not in (self.device, torch.device(self.device.type)):
            bad_value("device", f"got {device}; accepted: {self.device}, which `distribute` was given")
        return self

    def to_coo_order(self, values: torch.Tensor) -> torch.Tensor:
        """Raise a ValueError: a rank has a part of the edges that were given."""
        bad_value(
            "values", "an operand of several ranks has no order of given edges; accepted: its own order"
        )

    from_coo_order = to_coo_order

    def __reduce__(self) -> Any:
        raise TypeError("a DistributedOperand belongs to its process group and can't be pickled")

    def __repr__(self) -> str:
        facts = self.facts
        return (
            f"DistributedOperand(rank {facts.rank} of {facts.ranks}, {facts.rows} of {facts.nodes} rows, "
            f"{self.choice.way}, {self.precision.value}, device={self.device})"
        )
