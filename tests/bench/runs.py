"""Rows of the benchmarks of kernels and of latency, and runs with peers of a test's own making."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gnnsparse.bench.arguments import MatrixSpec
from gnnsparse.bench.candidates import KERNELS, PEERS, Peer
from gnnsparse.bench.kernels import Bench, Settings
from gnnsparse.bench.kernels_command import add_ratios

#: A run of `gnnsparse bench`: of its words, what it prints and the result that it writes.
Run = Callable[..., tuple[str, Any]]
#: A small generated graph.
SPEC = MatrixSpec("dd_like:scale=0.003", "dd_like", scale=0.003)


def row(kernel: str, ms: float, **fields: Any) -> dict[str, Any]:
    base = {
        "graph": "g", "op": "spmm", "values": "gcn", "width": 64, "precision": "fp16", "ok": True,
        "ours": kernel in KERNELS, "lower_quartile_ms": 0.99 * ms, "upper_quartile_ms": 1.01 * ms,
        "error": 1e-4, "plan": "csr: why",
    }  # fmt: skip
    return {**base, "kernel": kernel, "ms": ms, **fields}


def latency_row(backend: str, ms: float, **fields: Any) -> dict[str, Any]:
    base = {
        "model": "gcn", "dataset": "d", "batch": 1, "cache": "warm", "precision": "fp32", "mode": "eager",
        "ok": True, "ours": backend == "gnnsparse", "preprocess_ms": 0.0, "spread": 0.0, "p99_ms": 2 * ms,
        "break_even": 7,
    }  # fmt: skip
    return {**base, "backend": backend, "p50_ms": ms, **fields}


def run_with(monkeypatch: pytest.MonkeyPatch, name: str, bind: Any, *precisions: str) -> Bench:
    """A run of SPEC with sparse_mm and a peer that `bind` makes."""
    monkeypatch.setitem(PEERS, name, Peer(("spmm",), ("cpu",), bind))
    wanted = {"precisions": precisions or ("fp32",), "widths": (8,), "peers": ("sparse_mm", name)}
    bench = Bench(Settings((SPEC,), repeats=3, **wanted))  # type: ignore[arg-type]
    bench.run()
    add_ratios(bench.rows, "cpu")
    return bench
