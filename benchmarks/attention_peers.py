"""Times attention beside other libraries in one process on one GPU, and checks each result first.

    python -m benchmarks.attention_peers --out benchmarks/results/attention_peers.json
    python -m benchmarks.attention_peers --only window blocks --peers gnnsparse FA4 --precision bf16

A row is a piece of work: patterns of Transformers, a graph like ogbn-arxiv, and the bipartite graphs of a
weather model, whose edges have features that are added to keys and values ("map": behind a linear map).
A column is a library. Outputs and gradients of the first and the last head are compared with float64; what
is wrong, crashes or can't be imported is not timed, and its reason is printed and written. Libraries whose
kernels may bring a process down compute each row in a process of its own before. Times are medians in
milliseconds, forward and forward with backward, of CUDA graphs where a call can be captured.
notes/reproducibility.md says how each library is had; none is part of this package.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

import gnnsparse
from benchmarks.graph_attention import DTYPES, MESHES, mesh, times
from benchmarks.script import record, script_parser
from gnnsparse import masks
from gnnsparse.data import graph_like

_Call = Callable[..., torch.Tensor]
_PRECISIONS = {**DTYPES, "bf16": torch.bfloat16}
#: The largest relative error, in the Frobenius norm, of a result that is not called wrong.
LIMITS = {"fp32": 1e-3, "fp16": 5e-2, "bf16": 5e-2}
#: Rows and columns of a block, the share of blocks that are kept, and the window's radius.
BLOCK, KEPT, RADIUS = 128, 0.094, 128
SLOPE = 0.2
#: Seconds in which a process has to check one library.
PATIENCE = 90
#: Score, heads and features a head of the work on a graph like ogbn-arxiv.
ON_ARXIV = {
    "dot 8 x 16": ("dot", 8, 16),
    "dot 4 x 32": ("dot", 4, 32),
    "GAT 8 x 16": ("additive", 8, 16),
    "GATv2 8 x 16": ("gatv2", 8, 16),
    "GATv2 4 x 32": ("gatv2", 4, 32),
}
#: Heads, features a head and features of an edge of the weather model.
WEATHER, EDGE_WIDTH = (16, 64), 32
PATTERNS = ("dense", "window", "blocks", "vector-wise 90 %", "vector-wise 95 %", "vector-wise 98 %")
ROWS = (*PATTERNS, *ON_ARXIV, *(f"{name}{kind}" for name in MESHES for kind in (", map", "")))


@dataclass(frozen=True)
class Sizes:
    """Batch, heads and tokens of patterns."""

    batch: int = 8
    heads: int = 8
    length: int = 8192


@dataclass(frozen=True)
class Work:
    """One row: operands by name, and what attention of them is.

    Attributes:
        kind: "dense", "window", "blocks", "vector-wise", "map", "edges", or a score of graph layers.
        leaves: the operands, which get gradients: q, k and v of patterns [batch, heads, length, features],
            of graphs [nodes, heads, features].
        graph: which keys each query attends to; of dense attention None.
        features: of edges behind a map [edges, features], else None.
        ours: prepares the graph and returns gnnsparse's call; takes options of `gnnsparse.attention`.
        exact: attention of two heads: takes what `part` makes of the leaves.
        part: takes the name of a leaf (or "out") and it, and returns its first and its last head.
    """

    name: str
    precision: str
    kind: str
    leaves: dict[str, torch.Tensor]
    graph: gnnsparse.SparseGraph | None
    features: torch.Tensor | None
    ours: Callable[..., _Call]
    exact: _Call
    part: Callable[[str, torch.Tensor], torch.Tensor]


# The work


def kept_blocks(count: int) -> torch.Tensor:
    return torch.rand(count, count, generator=torch.Generator().manual_seed(0)) < KEPT


def pattern(name: str, length: int) -> gnnsparse.SparseGraph | None:
    if name == "dense":
        return None
    if name == "window":
        return masks.window(length, RADIUS)
    if name == "blocks":
        return masks.block(kept_blocks(length // BLOCK), BLOCK)
    return masks.vector_wise(length, float(name.split()[1]) / 100, 8, seed=0)


def on_pattern(name: str, precision: str, device: torch.device, sizes: Sizes) -> Work:
    size = sizes.batch, sizes.heads, sizes.length, 64
    leaves = {
        x: torch.randn(size, device=device, dtype=_PRECISIONS[precision], requires_grad=True) for x in "qkv"
    }
    graph = pattern(name, sizes.length)

    def ours(**options: Any) -> _Call:
        assert graph is not None
        a = gnnsparse.prepare(graph.to(device), precision=precision, cache=False)
        return partial(gnnsparse.attention, a, **options)

    def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.mT * q.shape[-1] ** -0.5
        if graph is not None:
            masked = torch.ones(scores.shape[1:], dtype=torch.bool, device=device)
            masked[graph.csr.row_index().to(device), graph.csr.indices.long().to(device)] = False
            scores = scores.masked_fill(masked, float("-inf"))
        return scores.softmax(-1).nan_to_num() @ v  # a row without keys gives zeros

    def part(name: str, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(0, 1)[[0, -1]]

    return Work(name, precision, kind_of(name), leaves, graph, None, ours, exact, part)


def by_edges(
    graph: gnnsparse.SparseGraph, kind: str, features: torch.Tensor | None, **leaves: torch.Tensor
) -> torch.Tensor:
    """Compute attention over edges in plain torch, with a row of features for each edge."""
    row, col = graph.csr.row_index(), graph.csr.indices.long()
    q, k, v = leaves["q"], leaves["k"], leaves.get("v", leaves["k"])
    keys, values = k[col], v[col]
    edges = leaves.get("edges")
    if features is not None:
        edges = torch.einsum("me,hde->mhd", features.to(q.dtype), leaves["weight"])
    if edges is not None:
        keys, values = keys + edges, values + edges
    if kind == "additive":
        scores = F.leaky_relu(q[row] + keys, SLOPE)
    elif kind == "gatv2":
        scores = (F.leaky_relu(q[row] + keys, SLOPE) * leaves["att"]).sum(-1)
    else:
        scores = (q[row] * keys).sum(-1) * q.shape[-1] ** -0.5
    top = scores.new_full((q.shape[0], scores.shape[1]), float("-inf"))
    top = top.scatter_reduce(0, row[:, None].expand_as(scores), scores.detach(), "amax")
    weights = (scores - top[row]).exp()
    total = torch.zeros_like(top).index_add(0, row, weights)
    sums = v.new_zeros(q.shape[0], *values.shape[1:]).index_add(0, row, weights[..., None] * values)
    return sums / total.clamp_min(torch.finfo(total.dtype).tiny)[..., None]


def on_graph(name: str, precision: str, device: torch.device) -> Work:
    kind, (heads, width) = kind_of(name), ON_ARXIV.get(name, ("", *WEATHER))[1:]
    if name in ON_ARXIV:
        graph = graph_like("arxiv_like", device=device)
    else:
        graph = mesh(name.removesuffix(", map"), device)
    dtype = _PRECISIONS[precision]

    def draw(*size: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.randn(size, device=device, dtype=dtype, requires_grad=True)

    rows, cols, edges = graph.num_rows, graph.num_cols, graph.nnz
    inner = () if kind == "additive" else (width,)
    leaves = {"q": draw(rows, heads, *inner), "k": draw(cols, heads, *inner)}
    features = None
    if kind == "gatv2":
        leaves["att"] = draw(heads, width, dtype=torch.float32)
    else:
        leaves["v"] = draw(cols, heads, width)
    if kind == "edges":
        leaves["edges"] = draw(edges, heads, width)
    if kind == "map":
        features = draw(edges, EDGE_WIDTH).detach()
        leaves["weight"] = draw(heads * width, EDGE_WIDTH)

    def ours() -> _Call:
        a = gnnsparse.prepare(graph, precision=precision, cache=False)
        places = torch.arange(edges, device=device, dtype=torch.float64)
        if name not in ON_ARXIV and not torch.equal(a.from_coo_order(places), places):
            raise RuntimeError("the operand has another order of edges than the graph")

        def call(**x: torch.Tensor) -> torch.Tensor:
            terms: dict[str, Any] = {"score": kind if name in ON_ARXIV else "dot", "att": x.get("att")}
            if name not in ON_ARXIV:
                given = x.get("edges", features)
                terms |= {"edge_features": given, "edge_weight": x.get("weight"), "edge_order": "operand"}
            return gnnsparse.graph_attention(a, x["q"], x["k"], x.get("v", x["k"]), **terms)

        return call

    def part(name: str, x: torch.Tensor) -> torch.Tensor:
        if name == "weight":
            return x.view(heads, width, -1)[[0, -1]]
        return x[[0, -1]] if name == "att" else x[:, [0, -1]]

    exact = partial(by_edges, graph, kind, features)
    return Work(name, precision, kind, leaves, graph, features, ours, exact, part)


def kind_of(name: str) -> str:
    if name in PATTERNS:
        return name.split()[0]
    return ON_ARXIV[name][0] if name in ON_ARXIV else "map" if name.endswith(", map") else "edges"


def precisions_of(name: str) -> tuple[str, ...]:
    """Return the precisions that work is measured in."""
    if name in PATTERNS:
        return "fp16", "bf16"
    return ("fp16", "fp32") if name in ON_ARXIV else ("fp16",)


# The libraries: each function returns the call of one for the work that it has


def cudnn(work: Work) -> _Call:
    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v)

    return call


def fa4(work: Work) -> _Call:
    flash: Any = importlib.import_module("flash_attn.cute")
    sparsity: Any = importlib.import_module("flash_attn.cute.block_sparsity")
    options: dict[str, Any] = {"window_size": (RADIUS, RADIUS)} if work.kind == "window" else {}

    def lists(kept: torch.Tensor) -> Any:
        count = kept.sum(1, dtype=torch.int32)
        order = kept.to(torch.int32).argsort(dim=1, descending=True, stable=True).int()
        none = torch.zeros_like(count)[None, None]
        return sparsity.BlockSparseTensorsTorch(
            none, none[..., None].clone(), count[None, None], order[None, None].contiguous(),
            block_size=(BLOCK, BLOCK),
        )  # fmt: skip

    if work.kind == "blocks":
        kept = kept_blocks(work.leaves["q"].shape[2] // BLOCK).to(work.leaves["q"].device)
        options = {
            "block_sparse_tensors": lists(kept),
            "block_sparse_tensors_bwd": lists(kept.T.contiguous()),
        }

    def call(**leaves: torch.Tensor) -> torch.Tensor:
        out = flash.flash_attn_func(*(leaves[x].transpose(1, 2) for x in "qkv"), **options)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

    return call


def flex(backend: str, work: Work) -> _Call:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    length, device = work.leaves["q"].shape[2], work.leaves["q"].device
    kept = kept_blocks(length // BLOCK).to(device)

    def in_window(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q - k).abs() <= RADIUS

    def in_block(b: Any, h: Any, q: Any, k: Any) -> Any:
        return kept[q // BLOCK, k // BLOCK]

    see = in_window if work.kind == "window" else in_block
    mask = create_block_mask(see, None, None, length, length, device=device)
    torch.compiler.reset()  # it compiles one function a few times only
    compiled = torch.compile(flex_attention, dynamic=False)
    options: Any = {"BACKEND": backend}
    return lambda q, k, v: compiled(q, k, v, block_mask=mask, kernel_options=options)


def csr_of(work: Work, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Return offsets, sources and targets of edges by target, and offsets, edges and targets by source."""
    assert work.graph is not None
    csr = work.graph.csr
    source, target = csr.indices.long(), csr.row_index()
    order = torch.argsort(source, stable=True)
    offsets = torch.zeros(csr.cols + 1, dtype=torch.int64, device=source.device)
    offsets[1:] = torch.bincount(source, minlength=csr.cols).cumsum(0)
    return tuple(x.to(dtype) for x in (csr.indptr, source, target, offsets, order, target[order]))


def turbo_gnn(work: Work) -> _Call:
    turbo: Any = importlib.import_module("turbo_gnn")
    indptr, source, _, offsets, _, targets = csr_of(work, torch.int32)
    graph = turbo.AdjacencyForwardBackwardWithNodeBuckets.from_csr(indptr, source, offsets, targets)
    options = {"autotune": True, "autotune_config": turbo.AutotuneConfig(warmup=3, iters=10)}

    def dot(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        # What is called Q there belongs to sources.
        x = {"Q": k, "K": q, "V": v, "scale": q.shape[-1] ** -0.5}
        return turbo.graph_transformer_aggr(graph, q.flatten(1), **x, **options)

    def gatv2(q: torch.Tensor, k: torch.Tensor, att: torch.Tensor) -> torch.Tensor:
        x = {"x_neighbors": k, "attention_weights": att.to(q.dtype), "negative_slope": SLOPE}
        return turbo.gatv2_aggr(graph, q, **x, **options).view_as(k)

    return dot if work.kind == "dot" else gatv2


def anemoi(work: Work) -> _Call:
    triton: Any = importlib.import_module("anemoi.models.triton.gt")
    indptr, source, target, offsets, order, _ = csr_of(work, torch.int64)

    def call(**x: torch.Tensor) -> torch.Tensor:
        edges = x.get("edges")
        if edges is None:
            assert work.features is not None
            edges = F.linear(work.features, x["weight"]).unflatten(1, x["q"].shape[1:])
        qkv = x["q"], x["k"], x["v"]
        of_edges = (source, indptr), (offsets, order, target)
        return cast(torch.Tensor, triton.graph_transformer_attention_conv(*qkv, edges, *of_edges))

    return call


def df_gnn(work: Work) -> _Call:
    """Make its call: of dot products without gradients, which it has for small neighbourhoods alone."""
    gat: Any = importlib.import_module("DFGNN.operators.fused_gatconv")
    gt: Any = importlib.import_module("DFGNN.operators.fused_gtconv")
    indptr, source, _, offsets, order, targets = csr_of(work, torch.int32)

    def additive(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return gat.GATConvFuse(q, k, indptr, source, offsets, targets, order, SLOPE, v, 0.0)

    def dot(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scales = torch.full_like(source, q.shape[-1] ** -0.5, dtype=q.dtype)
        return gt.GTConvFuse_inference_tiling(indptr, source, scales, 0, *(x.detach() for x in (q, k, v)))

    return dot if work.kind == "dot" else additive


def fused3s(work: Work) -> _Call:
    """Make its call: of one head after the other, without gradients."""
    f3s: Any = importlib.import_module("F3S")
    indptr, source, *_ = csr_of(work, torch.int32)
    rows, window, warps = indptr.numel() - 1, 16, 8
    scratch = (indptr.new_zeros(size) for size in (-(-rows // window), source.numel(), source.numel()))
    offsets, order, *_, columns, bits, _ = f3s.preprocess_gpu(source, indptr, rows, window, window, *scratch)

    def dot(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        heads = []
        for head in range(q.shape[1]):
            # Whole windows of rows are read.
            qkv = (F.pad(x.detach()[:, head], (0, 0, 0, -x.shape[0] % window)) for x in (q, k, v))
            matrix = offsets, order, columns, bits, rows
            _, out, *_ = f3s.f3s_1tb1rw_scheduled_permuteV_scaleQK(*matrix, *qkv, q.shape[-1] ** -0.5, warps)
            heads.append(out[:rows])
        return torch.stack(heads, 1).to(q.dtype)

    return dot


@dataclass(frozen=True)
class Peer:
    """A column: the function that makes its call, the work that it has, and what is imported for it.

    `alone`: whether a process of its own computes each row before, because a crash may end the process; such
    libraries launch on the default stream, whose kernels no CUDA graph has, and are timed with their Python.
    """

    make: Callable[[Work], _Call]
    kinds: tuple[str, ...]
    module: str = "torch"
    package: str = "torch"
    precisions: tuple[str, ...] = tuple(_PRECISIONS)
    alone: bool = False

    def problem(self) -> str | None:
        """Return why it can't be imported, or None."""
        try:
            importlib.import_module(self.module)
        # Extensions that were built for another torch or GPU raise errors of any type.
        except Exception as error:
            return f"can't be imported: {one_line(error)}"
        return None

    def version(self) -> str | None:
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return None


PEERS = {
    "gnnsparse": Peer(
        lambda work: work.ours(),
        ("window", "blocks", "vector-wise", "dot", "additive", "gatv2", "edges", "map"),
        "gnnsparse", "gnnsparse",
    ),
    "gnnsparse tiles": Peer(lambda work: work.ours(impl="blocks"), ("blocks",), "gnnsparse", "gnnsparse"),
    "FA4": Peer(fa4, ("dense", "window", "blocks"), "flash_attn.cute", "flash-attn-4"),
    # In one precision, because it compiles for long.
    "FlexAttention": Peer(partial(flex, "TRITON"), ("window", "blocks"), precisions=("fp16",)),
    "FlexAttention FLASH": Peer(
        partial(flex, "FLASH"), ("window", "blocks"), "flash_attn.cute", "flash-attn-4", ("fp16",)
    ),
    "cuDNN": Peer(cudnn, ("dense",)),
    "turbo-gnn": Peer(turbo_gnn, ("dot", "gatv2"), "turbo_gnn", "turbo-gnn", alone=True),
    "anemoi": Peer(anemoi, ("edges", "map"), "anemoi.models.triton.gt", "anemoi-models"),
    "DF-GNN": Peer(
        df_gnn, ("dot", "additive"), "DFGNN.operators.fused_gtconv", "DFGNN", ("fp32",), alone=True
    ),
    "Fused3S": Peer(fused3s, ("dot",), "F3S", "F3S", ("fp16",), alone=True),
}  # fmt: skip


# Checks and times


def one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


class Row:
    """Work, and its results in float64, which are computed once."""

    def __init__(self, name: str, precision: str, device: torch.device, sizes: Sizes) -> None:
        torch.manual_seed(0)
        if name in PATTERNS:
            self.work = on_pattern(name, precision, device, sizes)
        else:
            self.work = on_graph(name, precision, device)
        self.device = device
        self._exact: tuple[torch.Tensor, dict[str, torch.Tensor]] | None = None

    def exact(self) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return a gradient of the output; and the first and last head of the output and of all gradients."""
        if self._exact is None:
            work = self.work
            fine = {n: work.part(n, x.detach()).double().requires_grad_() for n, x in work.leaves.items()}
            out = work.exact(**fine)
            grad = torch.randn_like(work.leaves["v" if work.kind == "additive" else "q"].detach())
            grads = torch.autograd.grad(out, [*fine.values()], work.part("out", grad).double())
            self._exact = grad, {"out": out.detach(), **dict(zip(fine, grads, strict=True))}
        return self._exact

    def errors(self, call: _Call) -> dict[str, float]:
        """Return the errors of a call against float64: of the output, and the largest of its gradients."""
        work, (grad, exact) = self.work, self.exact()
        out = call(**work.leaves)
        got = {"out": out.detach()}
        if out.requires_grad:
            grads = torch.autograd.grad(out, [*work.leaves.values()], grad.to(out.dtype))
            got |= dict(zip(work.leaves, grads, strict=True))
        errors = {
            n: float((work.part(n, x).double() - exact[n]).norm() / exact[n].norm()) for n, x in got.items()
        }
        found = {"forward_error": errors.pop("out")}
        return found | ({"gradient_error": max(errors.values(), key=lambda e: (e != e, e))} if errors else {})

    def measure(self, peer: Peer, repeats: int) -> dict[str, Any]:
        """Return the errors and times of a library, or its problem; without repeats, errors alone.

        Those whose gradients can't be computed have both: what there is without them, and the problem.
        """
        # Whatever a library raises is its result.
        try:
            return self._measure(peer, repeats)
        except Exception as error:
            problem = f"crashed: {one_line(error)}"
        try:
            with torch.no_grad():
                found = self._measure(peer, repeats)
        except Exception:
            return {"problem": problem}
        return {"problem": f"gradients: {problem}"} | found

    def _measure(self, peer: Peer, repeats: int) -> dict[str, Any]:
        call = peer.make(self.work)
        found: dict[str, Any] = self.errors(call)
        if not all(error <= LIMITS[self.work.precision] for error in found.values()):
            return {"problem": "wrong: " + ", ".join(f"{n} {e:.1e}" for n, e in found.items())}
        if repeats:
            leaves = [*self.work.leaves.values()]
            in_graph = not peer.alone
            found |= times(lambda: call(**self.work.leaves), leaves, self.device, repeats, graph=in_graph)
        if isinstance(call, partial) and call.func is gnnsparse.attention and not call.keywords:
            # Its plan may name a library.
            heads = self.work.leaves["q"].shape[:2].numel()
            found["kernel"] = call.args[0].plan(op="attention", width=64, heads=heads).kernel
        return found


def probe_command(name: str, precision: str, peer: str, device: torch.device, sizes: Sizes) -> list[str]:
    size = (f"--{n}={x}" for n, x in vars(sizes).items())
    return [sys.executable, "-m", "benchmarks.attention_peers", "--probe", f"--device={device}", *size,
            "--only", name, "--precision", precision, "--peers", peer]  # fmt: skip


def probe(*work: Any) -> str | None:
    """Check one library in a process of its own, and return its problem or None."""
    try:
        ended = subprocess.run(probe_command(*work), capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return f"took more than {PATIENCE} s"
    if ended.returncode < 0:
        return f"crashed: {signal.Signals(-ended.returncode).name}"
    if ended.returncode:
        return f"crashed: {(ended.stderr.strip().splitlines() or ['no message'])[-1][:200]}"
    return json.loads(ended.stdout.splitlines()[-1])["problem"]


def probes(cells: list[tuple[str, str, str]], *about: Any) -> dict[tuple[str, str, str], str | None]:
    """Check all libraries that need processes of their own, side by side, and return their problems."""
    with ThreadPoolExecutor(max_workers=12) as pool:
        return dict(zip(cells, pool.map(lambda cell: probe(*cell, *about), cells), strict=True))


def rows(
    names: list[str], precisions: list[str], peers: dict[str, Peer], device: torch.device, sizes: Sizes,
    repeats: int,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Measure all work that there is, and yield a result for each library that has it."""
    missing = {name: peer.problem() for name, peer in peers.items()}
    cells = {
        (name, precision): [
            peer for peer, p in peers.items() if kind_of(name) in p.kinds and precision in p.precisions
        ]
        for precision in precisions for name in names if precision in precisions_of(name)
    }  # fmt: skip
    alone = [
        (*key, peer)
        for key, found in cells.items() for peer in found
        if peers[peer].alone and missing[peer] is None and repeats
    ]  # fmt: skip
    tried: dict[tuple[str, str, str], str | None] = {}
    for (name, precision), found in cells.items():
        if not tried and any((name, precision, peer) in alone for peer in found):
            tried = probes(alone, device, sizes)
        row = Row(name, precision, device, sizes) if any(missing[peer] is None for peer in found) else None
        for peer in found:
            problem = missing[peer] or tried.get((name, precision, peer))
            result = {"problem": problem} if problem or row is None else row.measure(peers[peer], repeats)
            yield {"work": name, "precision": precision, "peer": peer, **result}
        del row
        if device.type == "cuda":
            torch.cuda.synchronize()  # raises what made the GPU unusable
            torch.cuda.empty_cache()


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, device="cuda")
    works = ", ".join(ROWS).replace("%", "%%")  # argparse formats it
    parser.add_argument("--only", nargs="+", default=[*ROWS], choices=ROWS, metavar="WORK", help=works)
    parser.add_argument("--peers", nargs="+", default=[*PEERS], choices=[*PEERS])
    parser.add_argument("--precision", nargs="+", default=[*_PRECISIONS], choices=[*_PRECISIONS])
    for name, size in vars(Sizes()).items():
        parser.add_argument(f"--{name}", type=int, default=size, help="of patterns")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument(
        "--probe", action="store_true", help="check one library in one row, and print its problem"
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    device, sizes = torch.device(options.device), Sizes(options.batch, options.heads, options.length)
    peers = {name: PEERS[name] for name in options.peers}
    measured = rows(
        options.only, options.precision, peers, device, sizes, 0 if options.probe else options.repeats
    )
    if options.probe:
        print(json.dumps({"problem": next(measured).get("problem")}))
        return
    about = {name: {"version": p.version(), "problem": p.problem()} for name, p in peers.items()}
    for name, found in about.items():
        print(f"{name}: {found['problem'] or found['version'] or 'no version'}", flush=True)
    record(measured, options.out, device, **vars(sizes), peers=about)


if __name__ == "__main__":
    main()
