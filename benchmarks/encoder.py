"""Times the forward pass of a sparse and a dense Transformer encoder, in the setting of SSpMM's figure 10.

    python -m benchmarks.encoder --out benchmarks/results/encoder.json --plot benchmarks/results/encoder.png

The encoders have 4 layers, heads of 64 features, feed-forward networks of 4 times the width, and run in
evaluation mode. Patterns are random vectors of 8 rows. Both encoders have equal weights, and equal code
around the attention. The dense one is timed with each kernel of torch's scaled_dot_product_attention that can
run; the fastest is the baseline. Each sparse result is compared with dense attention masked by the pattern.
On a CPU the sizes are small.
"""

from __future__ import annotations

import argparse
import copy
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import gnnsparse
from benchmarks.dense import make_dense
from benchmarks.script import device_of, record, script_parser
from gnnsparse import masks
from gnnsparse.bench.figures import drawing
from gnnsparse.nn import TransformerEncoder, TransformerEncoderLayer
from gnnsparse.precision import Precision
from gnnsparse.runtime.timing import measure

HEAD = 64
#: Layers, lengths, heads and batch sizes, by type of device.
SIZES: dict[str, dict[str, Any]] = {
    "cuda": {"layers": 4, "lengths": (4096, 8192), "heads": (4, 8), "batches": (2, 8)},
    "cpu": {"layers": 2, "lengths": (256,), "heads": (2,), "batches": (1, 2)},
}
BACKENDS = {
    "cuda": {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION},
    "cpu": {"flash": SDPBackend.FLASH_ATTENTION, "math": SDPBackend.MATH},
}


def make_encoder(layers: int, heads: int, dtype: torch.dtype, device: torch.device) -> TransformerEncoder:
    torch.manual_seed(0)
    width = HEAD * heads
    layer = TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True)
    encoder = TransformerEncoder(layer, layers)
    encoder.reset_parameters()
    return encoder.to(device, dtype).eval()


def timed(call: Callable[[], torch.Tensor], device: torch.device, repeats: int) -> dict[str, Any]:
    """Return the times of a call in milliseconds, and on a GPU the memory of its activations in bytes."""
    peak = None
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    time = measure(call, device, repeats=repeats, seconds=20.0)
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device) - before
    return {"ms": time.median, "fastest_ms": time.fastest, "slowest_ms": time.slowest, "peak_bytes": peak}


def run_dense(encoder: torch.nn.Module, x: torch.Tensor, repeats: int) -> dict[str, dict[str, Any]]:
    """Time the encoder with attention of all pairs by each of torch's kernels that accepts the problem."""
    results = {}
    dense = make_dense(copy.deepcopy(encoder), masked=False)
    for name, backend in BACKENDS[x.device.type].items():
        with sdpa_kernel([backend]):
            try:
                dense(x, None)
            except RuntimeError:
                continue
            results[f"dense {name}"] = timed(lambda: dense(x, None), x.device, repeats)
    return results


def error_of(encoder: torch.nn.Module, x: torch.Tensor, operand: gnnsparse.SparseOperand) -> float:
    """Return the largest difference to masked dense attention in float32, over the largest value."""
    want = make_dense(copy.deepcopy(encoder).float(), masked=True)(x[:1].float(), operand)
    got = encoder(x[:1], operand).float()
    return float((got - want).abs().max() / want.abs().max())


def run_case(
    length: int, heads: int, batch: int, layers: int, options: argparse.Namespace, device: torch.device
) -> list[dict[str, Any]]:
    """Time the dense encoder, and the sparse encoder at every sparsity."""
    precision = Precision.parse(options.precision)
    encoder = make_encoder(layers, heads, precision.storage, device)
    x = torch.randn(batch, length, HEAD * heads, device=device, dtype=precision.storage)
    about = {"length": length, "heads": heads, "batch": batch, "layers": layers, "precision": precision.value}
    dense = run_dense(encoder, x, options.repeats)
    baseline = min(result["ms"] for result in dense.values())
    rows = [{**about, "name": name, "sparsity": 0.0, **result} for name, result in dense.items()]
    for sparsity in options.sparsity:
        pattern = masks.vector_wise(length, sparsity, options.vector, seed=0)
        operand = gnnsparse.prepare(pattern, precision=precision, cache=False).to(device)
        error = error_of(encoder, x, operand)
        result = timed(lambda operand=operand: encoder(x, operand), device, options.repeats)
        rows.append({**about, "name": "sparse", "sparsity": sparsity, "error": error, **result})
    return [{**row, "speed": baseline / row["ms"]} for row in rows]


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the milliseconds of each case as a group of bars: dense, then each sparsity."""
    cases = list(dict.fromkeys((r["length"], r["heads"], r["batch"]) for r in rows))
    names = list(dict.fromkeys((r["name"], r["sparsity"]) for r in rows))
    with drawing(path, (max(7.0, 1.6 * len(cases)), 4.0)) as figure:
        axes = figure.add_subplot()
        for place, (name, sparsity) in enumerate(names):
            mine = [r for r in rows if (r["name"], r["sparsity"]) == (name, sparsity)]
            at = [cases.index((r["length"], r["heads"], r["batch"])) + 0.8 * place / len(names) for r in mine]
            label = name if name != "sparse" else f"sparse {sparsity:.0%}"
            axes.bar(at, [r["ms"] for r in mine], 0.8 / len(names), label=label)
        ticks = [f"L={length}\nH={heads} B={batch}" for length, heads, batch in cases]
        axes.set_xticks([i + 0.3 for i in range(len(cases))], ticks)
        title = f"{rows[0]['layers']} layers, {rows[0]['precision']}"
        axes.set(yscale="log", ylabel="ms, forward", title=title)
        axes.legend(fontsize="small")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, device="auto")
    parser.add_argument("--precision", help="default: fp16 on a GPU, fp32 on a CPU")
    parser.add_argument("--lengths", nargs="+", type=int)
    parser.add_argument("--heads", nargs="+", type=int)
    parser.add_argument("--batches", nargs="+", type=int)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--sparsity", nargs="+", type=float, default=(0.9, 0.95, 0.98))
    parser.add_argument("--vector", type=int, default=8, help="rows of a vector")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--plot", type=Path, help="figure to draw")
    return parser.parse_args(arguments)


def shown(r: dict[str, Any]) -> str:
    error = f"  error {r['error']:.1e}" if "error" in r else ""
    return (
        f"L={r['length']} H={r['heads']} B={r['batch']}  {r['name']:12s} {r['sparsity']:4.2f}  "
        f"{r['ms']:9.3f} ms  {r['speed']:5.2f}x{error}"
    )


@torch.inference_mode()
def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    device = device_of(options.device)
    sizes = SIZES[device.type]
    options.precision = options.precision or ("fp16" if device.type == "cuda" else "fp32")
    layers = options.layers or sizes["layers"]
    lengths, heads = options.lengths or sizes["lengths"], options.heads or sizes["heads"]
    cases = itertools.product(lengths, heads, options.batches or sizes["batches"])
    found = (row for case in cases for row in run_case(*case, layers, options, device))
    rows = record(found, options.out, device, show=shown, vector=options.vector)
    if options.plot:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()
