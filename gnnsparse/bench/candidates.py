"""The candidates of a benchmark: this package's kernels, each forced by its plan, and their peers.

Peers are functions of other libraries, called as their users call them. Libraries other than torch are
imported when a peer is bound.
"""

from __future__ import annotations

import gc
import operator
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

import gnnsparse
from gnnsparse.bench.cusparse import cusparse_variants
from gnnsparse.bench.workload import UnavailableError, Variant, Workload
from gnnsparse.formats.csr import Csr
from gnnsparse.plan import KERNELS as OPERATIONS
from gnnsparse.plan import PanelPlan, Plan, Problem, WindowPlan, choose_plan, forced_plan
from gnnsparse.precision import Precision
from gnnsparse.runtime.device import PANEL_K_TILE
from gnnsparse.sparse.operand import SparseOperand

#: Variants of this package's SpMM in 8 bits: X is stored before, as 16-bit kernels are given X in 16 bits, or
#: each product rounds it.
X_STORED, X_ROUNDED = "x stored before", "x rounded in the product"


@dataclass(frozen=True, eq=False)
class Candidate:
    """A function that queues a workload on the current stream and is timed; `plan` is None for peers.

    `columns`, int32 [gathered], are the rows of a dense operand that it reads, in about the order of reading.
    `in_caller_order` converts what `call` returns to rows or nonzeros in the caller's order.
    `preprocess_ms` is what the preparation of the matrix took before the first call.
    """

    name: str
    ours: bool
    call: Callable[[], torch.Tensor]
    columns: torch.Tensor
    plan: Plan | None = None
    in_caller_order: Callable[[torch.Tensor], torch.Tensor] = lambda result: result
    variant: str = ""
    preprocess_ms: float | None = None


#: The kernels that can be forced: those for operands whose format was asked for are measured by --format.
_FORCED = tuple(kernel for kernel in OPERATIONS["spmm"] if not kernel.for_formats)
#: For each name a function that returns the plan which forces the kernel, or None if it can't run a problem.
#: "auto" is the plan that users get.
KERNELS: dict[str, Callable[[Problem], Plan | None]] = {
    "auto": choose_plan,
    **{kernel.name: partial(forced_plan, name=kernel.name) for kernel in _FORCED},
}
#: The types of devices that each of them runs on.
KERNEL_DEVICES: dict[str, tuple[str, ...]] = {
    "auto": ("cpu", "cuda"),
    **{kernel.name: kernel.devices for kernel in _FORCED},
}


def our_variants(work: Workload) -> tuple[str, ...]:
    """Return the variants in which each kernel of this package is measured; ("",) if there is one."""
    return (X_STORED, X_ROUNDED) if work.op == "spmm" and work.precision.quantizes else ("",)


def our_kernel(
    name: str, plan: Plan | None, a: SparseOperand, work: Workload, variant: str = ""
) -> Candidate:
    """Make the candidate of a kernel in one of `our_variants`; UnavailableError if `plan` is None."""
    kernels = a.kernels
    if plan is None:
        form = kernels.blocked.spec.name if kernels.blocked else "csr"
        raise UnavailableError(f"no plan for it on {work.device.type} with format {form}")
    function = gnnsparse.spmm if work.op == "spmm" else gnnsparse.sddmm
    operands: tuple[Any, ...] = work.dense
    if variant == X_STORED:
        operands = (gnnsparse.store_features(a, *work.dense),)
    call = partial(function, a, *operands, plan=plan)
    columns, blocked = kernels.csr.indices, kernels.blocked
    if isinstance(plan, WindowPlan) and blocked is not None:
        columns = blocked.columns
    elif isinstance(plan, PanelPlan):
        columns = kernels.panel(plan.height).columns
        if plan.concurrent_panels:
            together = plan.concurrent_panels
            listed = kernels.panel_work(plan.height, plan.tile_limit, plan.longest_first, together)
            columns = swept(columns, listed.items, together)
    if work.op == "sddmm":
        return Candidate(name, True, call, columns, plan, a.to_coo_order)
    return Candidate(name, True, call, columns, plan, variant=variant)


def swept(columns: torch.Tensor, items: torch.Tensor, concurrent_panels: int) -> torch.Tensor:
    """Sort column slots of panels by the time at which panels that run concurrently read them.

    `columns` has -1 for padded slots, and `items` are those of `gnnsparse.plan.work.cut_panels`, in the order
    of the column slots.
    """
    begin, tiles = items[:, 1].long(), items[:, 2].long()
    item = torch.repeat_interleave(torch.arange(items.shape[0], device=items.device), tiles)
    place = torch.arange(item.numel(), device=items.device) - begin[item]
    first = (-1 - items[:, 3].long()).clamp(min=0)
    waited = (place - first[item]) % tiles[item]
    due = begin[item].double() / concurrent_panels + waited
    return columns.view(-1, PANEL_K_TILE)[due.argsort(stable=True)].flatten()


def same_run(a: Plan, b: Plan, device: torch.device) -> bool:
    """Return whether two plans launch identical code, so that measuring both would only compare noise."""
    if device.type == "cpu":  # its one kernel ignores all parameters
        return a.kernel == b.kernel
    return replace(a, reasons=()) == replace(b, reasons=())


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, 200 characters at most."""
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]


def release() -> None:
    """Free a GPU's cached memory, so that what one candidate copied does not leave the next without."""
    if torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()


# Peers: functions of other libraries.

_HALF = ("fp16", "bf16")
#: Share of the free memory that a peer may need; less than 1, because allocators round up.
_MEMORY_SHARE = 0.9
#: Most elements of a matrix that is multiplied with all its zeros.
_DENSE_ELEMENTS = 2**25


@dataclass(frozen=True)
class Peer:
    """A function of another library, with the operations, types of devices and precisions that it has.

    In place of other precisions it is measured in fp32. `bind` returns the call to time for a workload, or
    the variants of which the fastest right one is the peer; it raises UnavailableError or ImportError.
    """

    ops: tuple[str, ...]
    devices: tuple[str, ...]
    bind: Callable[[Workload], Callable[[], torch.Tensor] | Iterable[Variant]]
    precisions: tuple[str, ...] = ("fp32", *_HALF)


def sparse_csr(work: Workload) -> torch.Tensor:
    """Make a torch CSR tensor with int32 indices, which cuSPARSE and MKL read without conversion."""
    subject = work.subject
    if subject.csr.nnz >= 2**31:
        raise UnavailableError(f"{subject.csr.nnz} nonzeros do not fit into int32 offsets")
    values = subject.explicit_values.to(work.precision.storage)
    shape = (subject.csr.rows, subject.csr.cols)
    return torch.sparse_csr_tensor(subject.csr.indptr.int(), subject.csr.indices, values, shape)


def _sampled_addmm(work: Workload) -> Callable[[], torch.Tensor]:
    (q, k), sparse = work.dense, sparse_csr(work)
    return lambda: torch.sparse.sampled_addmm(sparse, q, k.T, beta=0.0).values()


def check_memory(csr: Csr, row_bytes: int, copies: int = 1) -> None:
    """Raise UnavailableError if `copies` rows for each nonzero need more memory than is free."""
    needed = csr.nnz * (copies * row_bytes + 16) + csr.rows * 2 * row_bytes
    free = free_bytes(csr.device)
    if needed > _MEMORY_SHARE * free:
        raise UnavailableError(f"would need {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free")


def free_bytes(device: torch.device) -> int:
    """Return the bytes that can still be allocated on a device, torch's cached memory included."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def edge_index_of(csr: Csr) -> torch.Tensor:
    """Return PyG's edge_index of a matrix: int64 [2, nnz], sources over targets."""
    return torch.stack([csr.indices.long(), csr.row_index()])


def _weights(work: Workload) -> torch.Tensor | None:
    """Return the weights of the nonzeros in the storage dtype; None if all are 1."""
    if work.subject.kind == "none":
        return None
    return work.subject.explicit_values.to(work.precision.storage)


def _pyg(work: Workload) -> Callable[[], torch.Tensor]:
    """Bind PyG's gather and scatter over `edge_index`, which its layers run without a sparse adjacency."""
    check_memory(work.subject.csr, work.row_bytes, copies=1 if work.subject.kind == "none" else 2)
    from torch_geometric.nn import SimpleConv

    conv, csr, (x,) = SimpleConv(aggr="sum"), work.subject.csr, work.dense
    edge_index, weights = edge_index_of(csr), _weights(work)
    # A pair (sources, targets) makes PyG number the two apart, so that the matrix need not be square.
    return lambda: conv((x, None), edge_index, weights, size=(csr.cols, csr.rows))


def _gather_dot(work: Workload) -> Callable[[], torch.Tensor]:
    """Bind a gather of both ends of each edge and a dot product, which is what a PyG layer would run."""
    check_memory(work.subject.csr, work.row_bytes, copies=3)
    (q, k), (source, target) = work.dense, edge_index_of(work.subject.csr)
    return lambda: (q[target] * k[source]).sum(1)


def _dgl(work: Workload) -> Callable[[], torch.Tensor]:
    """Bind DGL's copy_u_sum, for "gcn" between two scalings as in its GraphConv; or u_mul_e_sum."""
    import dgl

    csr, (x,), scale = work.subject.csr, work.dense, work.subject.scale
    source, target = edge_index_of(csr)
    block = dgl.create_block((source, target), num_src_nodes=csr.cols, num_dst_nodes=csr.rows)
    if scale is not None:
        factor = scale.to(x.dtype)[:, None]
        return lambda: dgl.ops.copy_u_sum(block, x * factor) * factor
    if (weights := _weights(work)) is None:
        return lambda: dgl.ops.copy_u_sum(block, x)
    edges = weights[:, None]
    return lambda: dgl.ops.u_mul_e_sum(block, x, edges)


def _cublas(work: Workload) -> Callable[[], torch.Tensor]:
    """Bind the product of the matrix with all its zeros, which small matrices of pruned weights are."""
    csr, (x,) = work.subject.csr, work.dense
    if csr.rows * csr.cols > _DENSE_ELEMENTS:
        raise UnavailableError(f"{csr.rows} x {csr.cols} is too large to be stored with all its zeros")
    dense = torch.zeros(csr.rows, csr.cols, dtype=x.dtype, device=x.device)
    dense[csr.row_index(), csr.indices.long()] = work.subject.explicit_values.to(x.dtype)
    return lambda: dense @ x


#: The peers by name.
PEERS = {
    "cusparse-best": Peer(("spmm", "sddmm"), ("cuda",), cusparse_variants),
    "cusparse": Peer(
        ("spmm",), ("cuda",), lambda work: partial(operator.matmul, sparse_csr(work), *work.dense)
    ),
    "cublas": Peer(("spmm",), ("cuda",), _cublas),
    "sparse_mm": Peer(
        ("spmm",), ("cpu",), lambda work: partial(torch.sparse.mm, sparse_csr(work), *work.dense), ("fp32",)
    ),
    "sparse_mm_reduce": Peer(
        ("spmm",), ("cpu",), lambda work: partial(torch.sparse.mm, sparse_csr(work), *work.dense, "sum")
    ),
    "pyg": Peer(("spmm",), ("cpu", "cuda"), _pyg),
    "dgl": Peer(("spmm",), ("cpu",), _dgl, ("fp32",)),
    "sampled_addmm": Peer(("sddmm",), ("cpu", "cuda"), _sampled_addmm, ("fp32",)),
    "gather_dot": Peer(("sddmm",), ("cpu", "cuda"), _gather_dot),
}

#: The peers whose times ratios are relative to, by (op, type of device): the first that was measured and is
#: right. The last one is torch's own function, which on a GPU calls cuSPARSE too.
BASELINES: dict[tuple[str, str], tuple[str, ...]] = {
    ("spmm", "cuda"): ("cusparse-best", "cusparse"),
    ("spmm", "cpu"): ("sparse_mm",),
    ("sddmm", "cuda"): ("cusparse-best", "sampled_addmm"),
    ("sddmm", "cpu"): ("sampled_addmm",),
}


def peer_precision(name: str, precision: Precision) -> Precision:
    """Return the precision in which a peer is compared: of as many bits, or fp32 where it lacks that."""
    if precision.value in PEERS[name].precisions:
        return precision
    storage = Precision.FP32 if precision is Precision.TF32 else precision.rounded
    return storage if storage.value in PEERS[name].precisions else Precision.FP32


def peer_candidates(name: str, work: Workload) -> list[Callable[[], Candidate]]:
    """Return functions that make a peer's candidates, or raise UnavailableError, as they may too."""
    peer = PEERS[name]
    try:
        bound = peer.bind(work)
    except ImportError as error:
        raise UnavailableError(f"not installed: {error}") from error
    columns = work.subject.csr.indices

    def candidate(variant: str, make: Callable[[], Any]) -> Candidate:
        call, ms = make()
        return Candidate(name, False, call, columns, variant=variant, preprocess_ms=ms)

    variants: Any = [("", lambda: (bound, None))] if callable(bound) else bound
    return [partial(candidate, *variant) for variant in variants]
