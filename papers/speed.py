"""Figures of speed: the papers' formats measured by the benchmark of kernels, with every result checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import geometric_mean
from typing import Any

from gnnsparse.bench.kernels import Settings
from gnnsparse.bench.kernels_report import add_ratios
from gnnsparse.bench.matrices import MatrixSpec
from gnnsparse.bench.presets import FormatCase, PresetBench
from gnnsparse.sparse.graph import SparseGraph
from papers.figures import Missing, Outcome
from papers.matrices import Found
from papers.session import Session

__all__ = ["compare_cases", "over_peer", "speed_rows"]


@dataclass(frozen=True)
class _Loaded(MatrixSpec):
    """A matrix that has been read already."""

    graph: SparseGraph | None = field(default=None, compare=False)

    def load(self, device: Any) -> SparseGraph:
        """Returns the matrix on a device."""
        assert self.graph is not None
        return self.graph.to(device)


def speed_rows(
    session: Session, outcome: Outcome, matrices: Iterable[Found], cases: Sequence[FormatCase], *,
    peers: tuple[str, ...] = ("cusparse-best", "cusparse"), op: str = "spmm", width: int = 128,
    precision: str = "fp16", auto: bool = False,
) -> list[dict[str, Any]]:  # fmt: skip
    """Measures formats and peers on matrices with stored values.

    Args:
        session: the device and the number of repeats.
        outcome: gets what could not be measured, and why.
        matrices: the matrices.
        cases: the formats.
        peers: names of peers.
        op, width, precision: the product.
        auto: whether the plan's own choice is measured, too.

    Returns:
        The right rows, as `gnnsparse bench kernels` writes them.
    """
    specs = tuple(_Loaded(found.name, graph=SparseGraph(found.csr)) for found in matrices)
    settings = Settings(
        specs, device=session.device, ops=(op,), precisions=(precision,), widths=(width,), values=("random",),
        kernels=("auto",) if auto else (), peers=peers, repeats=session.repeats,
        timing="graph" if session.device == "cuda" else "events",
    )  # fmt: skip
    bench = PresetBench(settings)
    bench.cases = tuple(cases)
    bench.run()
    add_ratios(bench.rows, session.device)
    for skipped in bench.skipped:
        where = " on ".join(filter(None, (skipped.name, skipped.graph)))
        gone = Missing(f"{where} ({skipped.op} {skipped.precision})", skipped.reason)
        if gone not in outcome.missing:
            outcome.missing.append(gone)
    wrong = [row for row in bench.rows if not row["ok"]]
    outcome.notes.extend(f"WRONG: {row['kernel']} on {row['graph']}: {row['problem']}" for row in wrong)
    return [row for row in bench.rows if row["ok"]]


def over_peer(
    session: Session, outcome: Outcome, matrices: Iterable[Found], name: str, paper: float | None = None, *,
    peer: str = "cusparse-best", label: str = "cuSPARSE at its best", **product: Any,
) -> list[dict[str, Any]]:  # fmt: skip
    """Adds the speeds of a paper's format over a peer's, and their geometric mean beside the paper's.

    Args:
        session, outcome: as of `speed_rows`.
        matrices: the matrices.
        name: name of the format.
        paper: the paper's mean.
        peer: the peer that speeds are relative to.
        label: what rows call it.
        product: `op`, `width`, `precision` and `peers`.

    Returns:
        The right rows.
    """
    found = list(matrices)
    rows = speed_rows(session, outcome, found, [FormatCase(name, name)], **product)
    origin = {matrix.name: matrix.origin for matrix in found}
    times = {(row["graph"], row["kernel"]): row["ms"] for row in rows}
    precision = product.get("precision", "fp16")
    speeds = []
    for matrix in origin:
        if (matrix, name) in times and (matrix, peer) in times:
            speeds.append(times[matrix, peer] / times[matrix, name])
            outcome.add(f"{precision}: speed over {label}", matrix, origin[matrix], speeds[-1], unit="x")
    if speeds:
        mean, where = geometric_mean(speeds), f"{len(speeds)} matrices"
        outcome.add(f"{precision}: speed over {label}, mean", where, "subset", mean, paper, "x")
    return rows


def compare_cases(
    session: Session, outcome: Outcome, matrices: Iterable[Found], cases: tuple[FormatCase, FormatCase],
    paper: float | None = None, **product: Any,
) -> None:  # fmt: skip
    """Adds the speeds of one case over another, and their geometric mean beside the paper's.

    Args:
        session, outcome: as of `speed_rows`.
        matrices: the matrices.
        cases: the mechanism, and what it is compared with.
        paper: the paper's mean.
        product: `op`, `width` and `precision`.
    """
    found = list(matrices)
    rows = speed_rows(session, outcome, found, cases, peers=(), **product)
    times = {(row["graph"], row["kernel"]): row["ms"] for row in rows}
    with_it, without = (case.label for case in cases)
    what = f"{product.get('op', 'spmm')}: speed of {with_it} over {without}"
    speeds = []
    for matrix in found:
        if (matrix.name, with_it) in times and (matrix.name, without) in times:
            speeds.append(times[matrix.name, without] / times[matrix.name, with_it])
            outcome.add(what, matrix.name, matrix.origin, speeds[-1], unit="x")
    if speeds:
        outcome.add(f"{what}, mean", f"{len(speeds)} matrices", "subset", geometric_mean(speeds), paper, "x")
