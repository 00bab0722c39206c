"""Rows of `gnnsparse bench latency`, for tests."""

from __future__ import annotations

from typing import Any

__all__ = ["latency_row"]


def latency_row(backend: str, ms: float, **fields: Any) -> dict[str, Any]:
    """Makes the row of a right measurement, with what the fields say in place of what they name."""
    base = {
        "model": "gcn", "dataset": "d", "batch": 1, "cache": "warm", "precision": "fp32", "mode": "eager",
        "ok": True, "ours": backend == "gnnsparse", "preprocess_ms": 0.0, "spread": 0.0,
    }  # fmt: skip
    return {**base, "backend": backend, "p50_ms": ms, **fields}
