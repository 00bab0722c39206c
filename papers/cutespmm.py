"""cuTeSpMM (Xiang et al., 2025): bricks, synergy, modelled intensity, load balance and speeds."""

from __future__ import annotations

from collections import Counter

import torch

from papers.analysis import (
    SYNERGY,
    count_bricks,
    count_vectors,
    grid_bricks,
    imbalance,
    rank_correlation,
    wave_segments,
)
from papers.figures import Missing, Outcome, register_paper
from papers.session import Session
from papers.speed import FormatCase, over_peer, speed_rows

__all__: list[str] = []

PAPER = register_paper("cutespmm", "Xiang et al., cuTeSpMM, 2025")

#: Table 4: GFLOP/s of cuTeSpMM on an A100, by the columns of the dense matrix.
_SPEEDS = {
    "amazon0505": {32: 848, 128: 1077, 512: 1088}, "Amazon": {32: 807, 128: 1047, 512: 1059},
    "Artist": {32: 512, 128: 756, 512: 929}, "citeseer": {32: 53, 128: 157, 512: 315},
    "com-amazon": {32: 446, 128: 653, 512: 689}, "cora": {32: 55, 128: 206, 512: 443},
    "DD": {32: 808, 128: 1143, 512: 1171}, "OVCAR-8H": {32: 495, 128: 671, 512: 667},
    "PROTEINS": {32: 447, 128: 822, 512: 963}, "pubmed": {32: 272, 128: 528, 512: 651},
    "Blog": {32: 828, 128: 1360, 512: 1301}, "Yeast": {32: 526, 128: 692, 512: 685},
    "YeastH": {32: 507, 128: 664, 512: 671},
}  # fmt: skip
#: Table 2: matrices of SuiteSparse of each class.
_CLASSES = {"low": 666, "medium": 198, "high": 235}
#: Thread blocks that an A100 runs at a time where each SM has one (section 6.1: 108 SMs).
_A100 = 108


@PAPER.figure("figure-1", "density of bricks of 16 x 4, on a grid and with columns packed")
def figure_1(session: Session) -> Outcome:
    """Count the bricks that are not empty."""
    outcome = Outcome()
    papers = {"Emilia_923": 20.0, "NotreDame_www": 10.0}
    for found in session.each(papers, outcome):
        paper = papers.get(found.name)
        for name, csr in (("", found.csr), (", transposed", found.csr.transpose()[0])):
            grid, packed = 100 * grid_bricks(csr).alpha, 100 * count_bricks(csr).alpha
            where = found.name + name
            outcome.add("density on a grid", where, found.origin, grid, paper, "%")
            outcome.add("density with columns packed", where, found.origin, packed, unit="%")
    outcome.notes.append('The paper says "nearly" 20 % and 10 %.')
    return outcome


@PAPER.figure("table-2", "matrices in each class of synergy")
def table_2(session: Session) -> Outcome:
    """Classify all matrices of more than 10,000 rows and columns."""
    outcome = Outcome()
    every = [(matrix, count_bricks(matrix.csr)) for matrix in session.library.square(10_001, 1)]
    for matrix, bricks in every:
        note = f"{bricks.synergy} synergy"
        outcome.add("density of bricks", matrix.name, matrix.origin, 100 * bricks.alpha, unit="%", note=note)
    found = [(matrix, bricks) for matrix, bricks in every if matrix.origin == "subset"]
    counts = Counter(bricks.synergy for _, bricks in found)
    if not found:
        what = "SuiteSparse matrices of more than 10,000 rows"
        outcome.missing.append(Missing(what, "sparse.tamu.edu; put .mtx files into the folder of --data"))
        return outcome
    for name in SYNERGY:
        percent, paper = 100 * counts[name] / len(found), 100 * _CLASSES[name] / sum(_CLASSES.values())
        outcome.add(f"{name} synergy", f"{len(found)} matrices", "subset", percent, paper, "%")
    return outcome


@PAPER.figure("figure-7", "modelled operational intensity and speed")
def figure_7(session: Session) -> Outcome:
    """Compare equation 4 with the paper's speeds of table 4, and with measured ones if there are results."""
    outcome = Outcome()
    found = list(session.each(_SPEEDS, outcome, stand_ins=False))
    intensity = {matrix.name: count_bricks(matrix.csr).intensity() for matrix in found}
    for name, modelled in intensity.items():
        outcome.add("modelled intensity (equation 4)", name, "paper's", modelled)
    for width in (32, 128, 512):
        if len(intensity) > 1:
            rho = rank_correlation(list(intensity.values()), [_SPEEDS[name][width] for name in intensity])
            what = f"rank correlation with the paper's speed on an A100, N = {width}"
            outcome.add(what, f"{len(intensity)} matrices", "subset", rho)
    _measured_correlation(session, outcome)
    outcome.notes.append(
        'The paper says "strongly correlated" of 1000 matrices and gives no number. Small graphs, such as '
        "cora, do not fill a GPU: their speed is that of a launch."
    )
    return outcome


def _measured_correlation(session: Session, outcome: Outcome) -> None:
    """Add the correlation with the speeds of hrpb in the file of results, of matrices that are here."""
    groups: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for row in session.measured():
        matrix = session.library.of_file(row["graph"]) if row["kernel"] == "hrpb" else None
        if matrix is not None:
            modelled = count_bricks(matrix).intensity()
            groups.setdefault((row["precision"], row["width"]), []).append((modelled, row["gflops"]))
    for (precision, width), pairs in groups.items():
        if len(pairs) > 1:
            rho = rank_correlation([p[0] for p in pairs], [p[1] for p in pairs])
            what = f"rank correlation with measured speed, {precision}, N = {width}"
            outcome.add(what, f"{len(pairs)} matrices", "subset", rho)
    if not groups:
        outcome.missing.append(
            Missing(
                "measured speeds of hrpb", "--results FILE.json, which benchmarks/presets.py writes on a GPU"
            )
        )


@PAPER.figure("section-5", "the wave-aware division of heavy panels, equations 6 and 7")
def section_5(session: Session) -> Outcome:
    """Divide the paper's example of 991 panels, and matrices on the SMs of an A100."""
    outcome = Outcome()
    example = torch.ones(991, dtype=torch.int64, device="cpu")
    example[0] = 10
    segments = wave_segments(example, 100)
    outcome.add(
        "segments", "991 panels, the first of 10 blocks, on 100 SMs", "example", int(segments.sum()), 991
    )
    names = {"DD": "paper's", "NotreDame_www": "paper's", "GitHub": "stand-in", "ddi": "stand-in"}
    for found in session.each(names, outcome, stand_ins=False):
        blocks = -(-count_vectors(found.csr, 16) // 16)
        segments = wave_segments(blocks, _A100)
        where = f"{found.name}, {_A100} thread blocks"
        outcome.add("panels that are divided", where, names[found.name], int((segments > 1).sum()))
        outcome.add(
            "longest over mean, undivided", where, names[found.name], imbalance(blocks, _A100), unit="x"
        )
        even = imbalance(blocks, _A100, segments)
        outcome.add("longest over mean, divided", where, names[found.name], even, unit="x")
    return outcome


@PAPER.figure("figure-9", "SpMM in tf32 by synergy beside cuSPARSE, N = 128", needs="gpu", minutes=True)
def figure_9(session: Session) -> Outcome:
    """Measure hrpb beside cuSPARSE."""
    outcome = Outcome(notes=["The paper compares with the best of cuSPARSE, Sputnik and GE-SpMM on an A100."])
    over_peer(session, outcome, session.each(_SPEEDS, outcome), "hrpb", precision="tf32")
    return outcome


@PAPER.figure("table-4", "GFLOP/s of the matrices of TC-GNN", needs="gpu", minutes=True)
def table_4(session: Session) -> Outcome:
    """Measure hrpb in tf32; the paper's speeds are of an A100."""
    outcome = Outcome(notes=["The paper's speeds are those of an A100, without the library's other costs."])
    found = list(session.each(_SPEEDS, outcome))
    origin = {matrix.name: matrix.origin for matrix in found}
    for width in (32, 128, 512):
        cases = [FormatCase("hrpb", "hrpb")]
        for row in speed_rows(session, outcome, found, cases, peers=(), precision="tf32", width=width):
            name = row["graph"]
            paper = _SPEEDS[name][width] if name in _SPEEDS else None
            outcome.add(f"N = {width}", name, origin[name], row["gflops"], paper, "GFLOP/s")
    return outcome
