"""Whether the machine was quiet enough for times to be compared.

A fixed piece of work, a matrix product and a sum of two arrays, is timed when a run begins and again as it
goes on. If its time changes, the clocks or other programs changed the times of the candidates as well; and if
the repeats of one measurement lie far apart, its median says little.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from gnnsparse.runtime.timing import Timing, measure

__all__ = ["DRIFT_LIMIT", "SPREAD_LIMIT", "NoiseMeter", "is_noise", "noise_lines", "spread_of"]

#: The fraction by which the reference may change between begin and end, and by which quartiles may lie apart.
DRIFT_LIMIT, SPREAD_LIMIT = 0.05, 0.10
#: Rows of the reference's square matrices by type of device: about 0.1 ms on a GPU and 1 ms on a core.
_SIZES = {"cuda": 4096, "cpu": 384}
_REPEATS = 20


def spread_of(lower_quartile: float, median: float, upper_quartile: float) -> float:
    """Return how far the quartiles lie apart, as a fraction of the median."""
    return (upper_quartile - lower_quartile) / median if median > 0 else 0.0


def is_noise(mine: dict[str, Any], other: dict[str, Any], drift: float) -> bool:
    """Return whether two measurements differ by no more than the noise that was measured.

    That is so if the repeats of one of them lie too far apart, if their quartiles overlap, or if the
    reference changed by as much (`drift`) as they differ.
    """
    rows = mine, other
    bounds = [(row["lower_quartile_ms"], row["ms"], row["upper_quartile_ms"]) for row in rows]
    if max(spread_of(*row) for row in bounds) > SPREAD_LIMIT:
        return True
    low, high = sorted(bounds, key=lambda row: row[1])
    return high[0] <= low[2] or high[1] <= (1 + drift) * low[1]


@dataclass
class NoiseMeter:
    """Times the reference work whenever `read` is called.

    `earlier` are the reference's medians, in milliseconds, in a run that this one goes on with.
    """

    device: torch.device | str
    readings: list[Timing] = field(default_factory=list)
    earlier: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        size = _SIZES[torch.device(self.device).type]
        factors = torch.ones(2, size, size, dtype=torch.float32, device=self.device)
        self._factors, self._out = factors, torch.empty_like(factors[0])

    def _reference(self) -> None:
        torch.mm(*self._factors, out=self._out)
        torch.add(*self._factors, out=self._out)

    def read(self) -> None:
        """Time the reference once more."""
        self.readings.append(measure(self._reference, self.device, repeats=_REPEATS))

    @property
    def drift(self) -> float:
        """The largest change of the reference's median, as a fraction of the smallest; 0 at first."""
        medians = self.medians
        return max(medians) / min(medians) - 1 if medians else 0.0

    @property
    def medians(self) -> list[float]:
        """The medians of the reference in milliseconds, those of an earlier run first."""
        return [*self.earlier, *(reading.median for reading in self.readings)]

    @property
    def spread(self) -> float:
        """How far the quartiles of the worst reading lay apart, as a fraction of the median."""
        spreads = [spread_of(r.lower_quartile, r.median, r.upper_quartile) for r in self.readings]
        return max(spreads, default=0.0)

    def summary(self, spreads: list[float]) -> dict[str, Any]:
        """Return what the JSON file says of the noise, and of how far the quartiles of each row lie apart."""
        noisy = sum(spread > SPREAD_LIMIT for spread in spreads)
        return {
            "reference_ms": self.medians,
            "drift": self.drift, "spread": self.spread, "noisy_rows": noisy, "rows": len(spreads),
            "noisy": self.drift > DRIFT_LIMIT or self.spread > SPREAD_LIMIT,
        }  # fmt: skip


def noise_lines(noise: dict[str, Any]) -> list[str]:
    """Return the lines of a report about `NoiseMeter.summary`: none if the machine was quiet."""
    lines = []
    if noise["noisy"]:
        lines.append(
            f"too noisy: the reference changed by {noise['drift']:.0%} (accepted: {DRIFT_LIMIT:.0%}), its "
            f"quartiles lay {noise['spread']:.0%} apart (accepted: {SPREAD_LIMIT:.0%}): run it again on a "
            "quiet machine before you compare"
        )
    if noise["noisy_rows"]:
        lines.append(
            f"noisy: {noise['noisy_rows']} of {noise['rows']} rows have quartiles more than "
            f"{SPREAD_LIMIT:.0%} of their median apart; they are marked with ~"
        )
    return lines
