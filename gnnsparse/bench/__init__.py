"""Measurements: kernels, models, errors, and of a user's own model `latency`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnnsparse.bench.latency_own import Latencies, LatencyRow, latency

__all__ = ["Latencies", "LatencyRow", "latency"]


def __getattr__(name: str) -> Any:
    """Import what is public when it is asked for: commands import modules of this package to start fast."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gnnsparse.bench import latency_own

    return getattr(latency_own, name)
