"""SSpMM (Xue et al., TPDS 2025): sparsity and storage of CVSE, and speeds."""

from __future__ import annotations

from statistics import mean

from gnnsparse.formats.csr import Csr
from papers.analysis import footprint, vector_density
from papers.figures import Outcome, register_paper
from papers.session import Session, by_sparsity, one_of_each
from papers.speed import FormatCase, compare_cases, over_peer

__all__ = ["density_gain"]

PAPER = register_paper("sspmm", "Xue et al., SSpMM, IEEE TPDS 2025")

#: Table III: rows in thousands, nonzeros.
_SIZES = {
    "circuit204": (1, 588), "psmigr_1": (3, 543.1e3), "poisson3Da": (13, 352.7e3), "mosfet2": (46, 149.9e3),
    "mip1": (66, 10.3e6), "2cubes_sphere": (101, 1.6e6), "filter3D": (106, 2.7e6), "cop20k_A": (121, 2.6e6),
    "scircuit": (170, 958.9e3), "m133-b3": (200, 800.8e3), "mario002": (389, 2.1e6),
    "ASIC_680k": (682, 3.8e6),
    "eu-2005": (862, 19.2e6), "web-Google": (916, 5.1e6), "in-2004": (1382, 16.9e6),
}  # fmt: skip


def density_gain(csr: Csr, height: int) -> float:
    """Compute equation 1: the density of the nonzero vectors over that of the matrix."""
    return vector_density(csr, height) * csr.rows * csr.cols / csr.nnz


@PAPER.figure("table-3", "sizes of the 15 matrices of SuiteSparse")
def table_3(session: Session) -> Outcome:
    """Count rows and nonzeros."""
    outcome = Outcome()
    for found in session.each(_SIZES, outcome, stand_ins=False):
        rows, nnz = _SIZES[found.name]
        outcome.add("rows, thousands", found.name, found.origin, found.csr.rows / 1e3, rows)
        outcome.add("nonzeros", found.name, found.origin, found.csr.nnz, nnz)
    return outcome


@PAPER.figure("figure-12", "sparsity of the nonzero vectors, and density over the matrix's")
def figure_12(session: Session) -> Outcome:
    """Compute equation 1 for V = 8 and 16."""
    outcome = Outcome()
    groups = list(by_sparsity(session.pruned(outcome)))
    for height, paper in ((8, 11.50), (16, 6.48)):
        gains = []
        for sparsity, group in groups:
            gains.append(mean(density_gain(matrix.csr, height) for matrix in group))
            left = 100 * (1 - mean(vector_density(matrix.csr, height) for matrix in group))
            name = f"DLMC at {sparsity:g} ({len(group)})"
            outcome.add(f"V = {height}: new sparsity", name, "subset", left, unit="%")
            outcome.add(f"V = {height}: density over the matrix's", name, "subset", gains[-1], unit="x")
        if gains:
            what = f"V = {height}: density over the matrix's, mean"
            outcome.add(what, "DLMC", "subset", mean(gains), paper, "x")
    papers = {8: 9301.74, 16: 5461.77}
    found = list(session.each(_SIZES, outcome))
    for height, paper in papers.items():
        for matrix in found:
            what = f"V = {height}: density over the matrix's"
            outcome.add(what, matrix.name, matrix.origin, density_gain(matrix.csr, height), unit="x")
        whole = [matrix for matrix in found if matrix.origin == "paper's"]
        if len(whole) == len(_SIZES):
            gain = mean(density_gain(matrix.csr, height) for matrix in whole)
            outcome.add(
                f"V = {height}: density over the matrix's, mean", "all 15", "paper's", gain, paper, "x"
            )
    outcome.notes.append(
        "Means over DLMC are means of the sparsities. They hang on few matrices with next to no nonzeros: a "
        "layer of 512 x 512 with 971 nonzeros has 33 times the density."
    )
    return outcome


@PAPER.figure("figure-13", "storage of CVSE against CSR and ME-TCF, fp16 values")
def figure_13(session: Session) -> Outcome:
    """Compare bytes by the formats' formulas."""
    outcome = Outcome()
    groups = list(by_sparsity(session.pruned(outcome)))
    for height, paper, of_tcf in ((8, 1.75, 0.65), (16, 2.23, 0.86)):
        ratios: dict[str, list[float]] = {"csr": [], "me-tcf": []}
        for sparsity, group in groups:
            for other, found in ratios.items():
                found.append(
                    mean(
                        footprint(matrix.csr, f"cvse-{height}") / footprint(matrix.csr, other)
                        for matrix in group
                    )
                )
            name = f"DLMC at {sparsity:g} ({len(group)})"
            outcome.add(f"V = {height}: bytes over CSR", name, "subset", ratios["csr"][-1], unit="x")
        if groups:
            what, tcf = f"V = {height}: bytes over CSR, mean", f"V = {height}: bytes over ME-TCF, mean"
            outcome.add(what, "DLMC", "subset", mean(ratios["csr"]), paper, "x")
            outcome.add(tcf, "DLMC", "subset", mean(ratios["me-tcf"]), of_tcf, "x")
    outcome.notes.append(
        "Means over DLMC are means of the sparsities. The paper's ME-TCF is larger than the arrays of "
        "DTC-SpMM that are counted here (one byte of place a nonzero); it does not say what it stores."
    )
    return outcome


@PAPER.figure("figure-9", "SpMM of DLMC, N = 512, beside cuSPARSE and cuBLAS", needs="gpu", minutes=True)
def figure_9(session: Session) -> Outcome:
    """Measure cvse in fp16 beside cuSPARSE; speeds over cuBLAS's dense product are added."""
    outcome = Outcome(
        notes=["The paper's text gives speeds over Sputnik and vectorSparse, which are not here."]
    )
    matrices = one_of_each(session.pruned(outcome), 0.7)
    peers = ("cusparse-best", "cusparse", "cublas")
    rows = over_peer(session, outcome, matrices, "cvse", width=512, peers=peers)
    times = {(row["graph"], row["kernel"]): row["ms"] for row in rows}
    for matrix in matrices:
        if (matrix.name, "cvse") in times and (matrix.name, "cublas") in times:
            speed = times[matrix.name, "cublas"] / times[matrix.name, "cvse"]
            outcome.add("fp16: speed over cuBLAS, dense", matrix.name, "subset", speed, unit="x")
    return outcome


@PAPER.figure("figure-11", "what the register shuffle is worth, N = 512", needs="gpu", minutes=True)
def figure_11(session: Session) -> Outcome:
    """Measure V = 8 with the register shuffle, and with elements exchanged through shared memory."""
    outcome = Outcome(
        notes=["The paper's 1.12 at N = 512 is on a V100, where it holds the other parts alike."]
    )
    plain = FormatCase("cvse", "exchange", policy={"shuffle": False, "stage_x": True})
    cases = (FormatCase("cvse", "shuffle"), plain)
    compare_cases(session, outcome, one_of_each(session.pruned(outcome)), cases, 1.12, width=512)
    return outcome


@PAPER.figure("figure-14", "V = 8 against V = 16 by sparsity, N = 512", needs="gpu", minutes=True)
def figure_14(session: Session) -> Outcome:
    """Measure both lengths of vectors."""
    outcome = Outcome(
        notes=["The paper finds V = 16 faster below a sparsity of 0.9, and V = 8 from there on."]
    )
    cases = (FormatCase("cvse", "V8", panel=8), FormatCase("cvse", "V16", panel=16))
    compare_cases(session, outcome, one_of_each(session.pruned(outcome)), cases, width=512)
    return outcome
