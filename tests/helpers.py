"""Dense float64 oracles, independent of the package's own arithmetic."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse import Precision, SparseGraph, SparseOperand
from gnnsparse.formats import FORMAT_NAMES, PRESETS, exclusive_preset, operations
from gnnsparse.plan import CsrPlan, PanelCounts, Plan, WindowPlan
from gnnsparse.plan.gpu_records.model import TileCounts
from gnnsparse.precision import round_operand
from gnnsparse.testing import assert_all_accurate, in_float64, random_graph, with_gradients
from papers.decode import decode

#: For tests of the installed module, or of memory that a sanitizer holds back (tests/native_build.py).
needs_installed_module = pytest.mark.skipif(
    "GNNSPARSE_TEST_NATIVE" in os.environ, reason="the native module is another build, for a sanitizer"
)

#: torch's own tools warn about themselves.
WARNINGS_OF_TORCH = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*TF32.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*AccumulateGrad.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning"),
]

PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
FORMATS = tuple(name for name in FORMAT_NAMES if name != "auto")
#: The formats whose operands run every operation.
FREE_FORMATS = tuple(name for name in FORMATS if exclusive_preset(name) is None)


def has_precision(name: str, precision: str) -> bool:
    """Whether operands can be prepared in a format and a precision."""
    return name not in PRESETS or Precision(precision) in PRESETS[name].precisions


#: Formats with each precision that they have.
FORMAT_PRECISIONS = tuple((n, p) for n in FORMATS for p in PRECISIONS if has_precision(n, p))


def precision_for(name: str) -> str:
    """A precision that a format has: fp16, or tf32."""
    return "fp16" if has_precision(name, "fp16") else "tf32"


#: The relative error of one rounding of an operand, at most doubled; in fp32 panels hold two tf32 numbers.
ROUNDING = {"fp32": 2**-22, "tf32": 2**-10, "fp16": 2**-10, "bf16": 2**-7}
#: A layer rounds in each of its products and sums, about 16 times from its input to a gradient. Over the few
#: elements of a small layer these may cancel in another package's run and not in ours.
FLOOR = 16 * ROUNDING["fp32"]


def dense_matrix(graph: SparseGraph, weights: str | None) -> torch.Tensor:
    """The float64 matrix that prepare(graph, values=weights) stands for."""
    a = torch.from_numpy(graph.to_scipy().toarray()).double()
    if weights == "mean":
        return a / a.sum(1, keepdim=True).where(a.sum(1, keepdim=True) != 0, torch.tensor(1.0))
    if weights == "gcn":
        a = a + torch.diag((a.diagonal() == 0).double())
        scale = a.sum(1).clamp(min=0).rsqrt()
        return scale[:, None] * a * torch.where(torch.isfinite(scale), scale, 0.0)
    return a


def plain_product(matrix: torch.Tensor, x: torch.Tensor, precision: str) -> torch.Tensor:
    """matrix @ x in the given precision by plain operations: rounded operands, float32 sums."""
    rounded = [round_operand(t.float(), Precision.parse(precision)).float() for t in (matrix, x)]
    return (rounded[0] @ rounded[1]).to(x.dtype)


def product_scale(matrix: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """How large the terms of matrix @ x are: the `scale` of gnnsparse.testing."""
    return (matrix.double().square() @ x.double().square()).sqrt()


def agnn_beta_scale(
    x: torch.Tensor, beta: float, counts: torch.Tensor, targets: torch.Tensor | None = None
) -> torch.Tensor:
    """How large the terms of an AGNNConv's gradient of beta are, [1], where `with_gradients` takes it.

    It is a single number, a sum over all edges of p * dp * cos minus what is the same for a row: p the weight
    of the edge, dp its gradient.
    """
    x, counts = x.detach().double().cpu(), counts.double()
    y = x if targets is None else targets.detach().double().cpu()
    probe = torch.randn(y.shape, generator=torch.Generator().manual_seed(0)).double()
    cosine = torch.nn.functional.normalize(y) @ torch.nn.functional.normalize(x).T
    p = (beta * cosine + counts.log()).softmax(1).nan_to_num()
    return (p * (probe @ x.T) * cosine).norm().reshape(1)


@contextlib.contextmanager
def reference_layers() -> Iterator[None]:
    """The layers of gnnsparse.nn run the reference implementation in here, and take float64 with it.

    In the precision of their operands it is the plain run that they are compared with, and in float64 the
    exact one.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in (
            "nn.aggregation.spmm",
            "nn.gcn_conv.spmm",
            "nn.gin_conv.spmm",
            "nn.rgcn_conv.spmm",
            "nn.sparse_linear.spmm",
            "nn.agnn_conv.attention",
            "patterns.operands.attention",
            "nn.edges.graph_attention",
        ):
            operation = getattr(gnnsparse, name.rpartition(".")[2])
            patch.setattr(f"gnnsparse.{name}", functools.partial(operation, impl="reference"))
        # A layer in one step of autograd computes its gradient by kernels.
        patch.setattr("gnnsparse.nn.gcn_conv.can_propagate", lambda *_: False)
        yield


def named(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters of a module, each once."""
    return dict(module.named_parameters())


def assert_same_results(
    ours: Any,
    theirs: Any,
    call: Callable[..., torch.Tensor],
    inputs: list[torch.Tensor],
    *,
    parameters: Callable[[Any], dict[str, torch.Tensor]] = named,
    in_one: bool = True,
    floor: float | None = FLOOR,
    scales: list[torch.Tensor | None] | None = None,
    rounded: bool = False,
) -> list[torch.Tensor]:
    """Compares `call(module, *inputs)` and all gradients of two modules; the second in float64 judges.

    Those of the parameters are compared as one vector if `in_one`: some are sums over all edges of terms that
    cancel, that of TransformerConv's lin_key.bias to 0. `rounded`: what float32 makes of the computation is
    allowed too, where rows may be divided by small lengths. Ours are returned.
    """

    def run(module: Any, given: list[torch.Tensor]) -> list[torch.Tensor]:
        found = with_gradients(lambda *x: call(module, *x), given, parameters(module).values())
        others, of_parameters = found[: 1 + len(given)], found[1 + len(given) :]
        if in_one and of_parameters:
            of_parameters = [torch.cat([grad.flatten() for grad in of_parameters])]
        return others + of_parameters

    def exactly() -> list[torch.Tensor]:
        with in_float64(theirs):
            return run(theirs, [x.double() for x in inputs])

    got, plain = run(ours, inputs), run(theirs, inputs)
    assert [x.dtype for x in got] == [x.dtype for x in plain]
    assert_all_accurate(got, plain, exactly if rounded else exactly(), floor=floor, scales=scales)
    return got


def copies_of(thing: Any) -> list[Any]:
    """A deep copy, and what comes back from a pickle and from a file of torch's."""
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return [copy.deepcopy(thing), pickle.loads(pickle.dumps(thing)), torch.load(file, weights_only=False)]


def capture(step: Callable[[], Any], runs: int = 1) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A CUDA graph of a step that ran before, and what it returned."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(runs):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    return graph, found


def panel_counts(*slots: int, tiles: tuple[TileCounts, ...] = ()) -> tuple[PanelCounts, ...]:
    """Counts of panels of 16 rows, and of 32, as plans take them."""
    lengths = tiles or ((),) * len(slots)
    return tuple(PanelCounts(*of) for of in zip((16, 32), slots, lengths, strict=False) if of[1])


def cut_at(plan: Plan, tile_limit: int, row_limit: int) -> Plan:
    """A plan whose rows, windows or panels are cut at other lengths."""
    if isinstance(plan, CsrPlan):
        return replace(plan, row_limit=row_limit)
    if isinstance(plan, WindowPlan):
        return replace(plan, tile_limit=tile_limit, residual=replace(plan.residual, row_limit=row_limit))
    return replace(plan, tile_limit=tile_limit)  # type: ignore[call-arg]


def make(graph: SparseGraph, device: str, **options: Any) -> SparseOperand:
    """The graph prepared without the cache, on a device."""
    return gnnsparse.prepare(graph.to(device), cache=False, **options)


def results(a: SparseOperand) -> list[torch.Tensor]:
    """Products, their gradient, all that is in the order of edges, and the structure of its format."""
    torch.manual_seed(0)
    x, y = torch.randn(a.shape[1], 8, requires_grad=True), torch.randn(a.shape[0], 8)
    own = a.from_coo_order(torch.randn(a.num_edges))
    products = [a @ x]
    found = [a.T @ y, own, a.to_coo_order(torch.randn(a.nnz)), a.to_dense(), a.indices(), a.T.indices()]
    found.append(a.T.transpose_values(own[a.transpose_map]))
    if "sddmm" in operations(a.kernels.format_name):
        scores = gnnsparse.sddmm(a, y, x)
        products += [gnnsparse.spmm(a, x, own), gnnsparse.attention(a, y, x, x)]
        found += [scores, gnnsparse.edge_softmax(a, scores)]
    if a.kernels.blocked is not None:
        found += decode(a.kernels.blocked)[:2]
    loss = torch.stack([product.square().sum() for product in products]).sum()
    return [*found, *products, *torch.autograd.grad(loss, [x])]


def same(found: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> bool:
    """Whether results are equal bit for bit."""
    return len(found) == len(right) and all(map(torch.equal, found, right))


def assert_same_by_threads(make: Callable[[], Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    """Any number of threads makes the same tensors, bit for bit; a test needs the fixture `any_threads`."""
    found = []
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        assert torch.get_num_threads() == count
        found.append(list(make()))
    assert found[0]
    assert all(same(other, found[0]) for other in found)
    return found[0]


def at_nonzeros(a: SparseOperand, dense: torch.Tensor) -> torch.Tensor:
    """The elements of a dense matrix at the operand's nonzeros, in its order."""
    row, col = a.indices().cpu()
    return dense[row, col]


def overwrite(path: Path, content: bytes) -> None:
    """Change a file of the cache in place, which nobody may write to."""
    path.chmod(0o600)
    path.write_bytes(content)
    path.chmod(0o400)


def short_rows(seed: int = 3) -> SparseGraph:
    """A matrix of 90 x 60, of which rs-tile keeps rows out of its windows."""
    graph = random_graph(90, 60, 0.15, seed=seed, hubs=1)
    dense = torch.from_numpy(graph.to_scipy().toarray())
    dense[30:60] = 0
    dense[30:60, 1] = 2
    return SparseGraph.from_torch_sparse(dense.to_sparse())
