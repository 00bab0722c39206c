"""What a run of `python -m papers` has: the matrices, the device, and earlier results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gnnsparse.errors import bad_value
from papers.figures import Missing, Outcome
from papers.matrices import Found, Library, Pruned

__all__ = ["DLMC", "Session"]

DLMC = Missing("DLMC", "storage.googleapis.com/sgk-sc2020/dlmc.tar.gz; unpack it into the folder of --data")


@dataclass
class Session:
    """What a run has.

    Attributes:
        data: the folder of the matrices; None: none is given.
        device: "cpu" or "cuda".
        results: a JSON file of `gnnsparse bench kernels` or benchmarks/presets.py, whose speeds models are
            compared with; None: there is none.
        repeats: number of timed calls of a kernel.
        generate: whether generated graphs stand in for large ones that are missing.
        seeds: number of seeds of a training.
    """

    data: Path | None = None
    device: str = "cpu"
    results: Path | None = None
    repeats: int = 20
    generate: bool = False
    seeds: int | None = None

    @cached_property
    def library(self) -> Library:
        """The matrices."""
        return Library(self.data, self.device)

    def each(self, names: Iterable[str], outcome: Outcome, stand_ins: bool = True) -> Iterator[Found]:
        """Yields the matrices that are there, or what stands in for them, and notes those that are missing.

        Args:
            names: names of KNOWN.
            outcome: gets what is missing.
            stand_ins: whether stand-ins are wanted. Each is yielded once.
        """
        seen = set()
        for name in names:
            found, missing = self.library.get(name, self.generate and stand_ins)
            if missing is not None and missing not in outcome.missing:
                outcome.missing.append(missing)
            if found is None or (found.origin == "stand-in" and not stand_ins):
                continue
            if id(found.csr) not in seen:
                seen.add(id(found.csr))
                yield found

    def sizes(self, published: Mapping[str, tuple[int, int]], nonzeros: str = "nonzeros") -> Outcome:
        """Counts the nodes and the nonzeros of the graphs that are there, without stand-ins.

        Args:
            published: nodes and nonzeros by the paper, with a self-loop for each node where it has them.
            nonzeros: what the paper calls them.
        """
        outcome = Outcome()
        for found in self.each(published, outcome, stand_ins=False):
            nodes, nnz = published[found.name]
            outcome.add("nodes", found.name, found.origin, found.csr.rows, nodes)
            outcome.add(nonzeros, found.name, found.origin, found.csr.nnz, nnz)
        return outcome

    def pruned(self, outcome: Outcome) -> list[Pruned]:
        """Returns the matrices of DLMC, and notes if there are none."""
        found = list(self.library.pruned())
        if not found:
            outcome.missing.append(DLMC)
        return found

    def measured(self) -> list[dict[str, Any]]:
        """Returns the right rows of the file of results.

        Raises:
            ValueError: the file is none of results.
            OSError: it can't be read.
        """
        if self.results is None:
            return []
        try:
            rows = json.loads(self.results.read_text())["rows"]
            return [row for row in rows if row["ok"] and row["kernel"] and row["ms"] > 0]
        except (KeyError, TypeError, ValueError) as error:
            bad_value("results", f"{self.results.name} is no file of `gnnsparse bench kernels`: {error}")
