"""Tiled-CSR (Xue et al.): utilisation with and without the row shuffle, and speeds."""

from __future__ import annotations

from statistics import mean

import torch

from gnnsparse.formats.csr import Csr
from gnnsparse.preprocess.reorder import METHODS
from papers.analysis import row_utilisation, tile_utilisation
from papers.figures import Missing, Outcome, register_paper
from papers.session import Pruned, Session, by_sparsity, one_of_each
from papers.speed import FormatCase, compare_cases, over_peer

__all__ = ["SHUFFLE", "shuffled_order"]

PAPER = register_paper("tiled-csr", "Xue et al., Tiled-CSR: unstructured SpMM on Tensor Cores")

#: The reordering of section III-B.
SHUFFLE = "row-shuffle"
#: Figure 9: utilisation over that of SR-BCRS, by sparsity.
_IMPROVEMENT = {0.5: 3.89, 0.9: 1.82}


def shuffled_order(csr: Csr) -> torch.Tensor | None:
    """Return the order of the row shuffle; None if the reordering is not registered."""
    return METHODS[SHUFFLE].order(csr) if SHUFFLE in METHODS else None


def _groups(session: Session, outcome: Outcome) -> list[tuple[float, list[Pruned]]]:
    matrices = [matrix for matrix in session.pruned(outcome) if "/transformer/" in f"/{matrix.name}"]
    if SHUFFLE not in METHODS:
        outcome.missing.append(Missing("the row shuffle", f"no reordering {SHUFFLE!r} is registered"))
    return list(by_sparsity(matrices))


@PAPER.figure("figure-8", "fraction of Tensor Core work on nonzeros, by format")
def figure_8(session: Session) -> Outcome:
    """Compute the utilisation of SR-BCRS, of unprocessed matrices and of tiles of 8 x 16."""
    outcome = Outcome()
    for sparsity, group in _groups(session, outcome):
        name = f"DLMC at {sparsity:g} ({len(group)})"
        rows = 100 * mean(row_utilisation(m.csr) for m in group)
        dense = 100 * mean(m.csr.nnz / (m.csr.rows * m.csr.cols) for m in group)
        tiles = 100 * mean(tile_utilisation(m.csr) for m in group)
        outcome.add("SR-BCRS", name, "subset", rows, unit="%")
        outcome.add("unprocessed", name, "subset", dense, unit="%")
        outcome.add("Tiled-CSR, rows as given", name, "subset", tiles, unit="%")
        if SHUFFLE in METHODS:
            moved = 100 * mean(tile_utilisation(m.csr, order=shuffled_order(m.csr)) for m in group)
            outcome.add("Tiled-CSR, rows shuffled", name, "subset", moved, unit="%")
    outcome.notes.append("SR-BCRS of unstructured matrices has vectors of one row: at most 12.5 %.")
    return outcome


@PAPER.figure("figure-9", "utilisation of Tiled-CSR over SR-BCRS")
def figure_9(session: Session) -> Outcome:
    """Compute the improvement by sparsity, with and without the row shuffle."""
    outcome = Outcome()
    given, shuffled = [], []
    for sparsity, group in _groups(session, outcome):
        name, paper = f"DLMC at {sparsity:g} ({len(group)})", _IMPROVEMENT.get(sparsity)
        base = [row_utilisation(m.csr) for m in group]
        given.append(mean(tile_utilisation(m.csr) / b for m, b in zip(group, base, strict=True)))
        outcome.add("over SR-BCRS, rows as given", name, "subset", given[-1], paper, "x")
        if SHUFFLE in METHODS:
            orders = [shuffled_order(m.csr) for m in group]
            moved = [tile_utilisation(m.csr, order=o) for m, o in zip(group, orders, strict=True)]
            shuffled.append(mean(now / b for now, b in zip(moved, base, strict=True)))
            outcome.add("over SR-BCRS, rows shuffled", name, "subset", shuffled[-1], paper, "x")
            before = [tile_utilisation(m.csr) for m in group]
            worth = mean(now / was for now, was in zip(moved, before, strict=True))
            outcome.add("rows shuffled over rows as given", name, "subset", worth, unit="x")
    for what, found in (("rows as given", given), ("rows shuffled", shuffled)):
        if found:
            outcome.add(f"over SR-BCRS, {what}, mean", "DLMC", "subset", mean(found), 2.66, "x")
    outcome.notes.append(
        "Means over DLMC are means of the sparsities. Threshold, k and the length of the bins of the row "
        "shuffle are unpublished."
    )
    return outcome


@PAPER.figure("figure-10", "3D grid against a flat one, N = 512", needs="gpu", minutes=True)
def figure_10(session: Session) -> Outcome:
    """Measure both orders of thread blocks, and A in registers in place of shared memory."""
    outcome = Outcome()
    found = one_of_each(session.pruned(outcome))
    for label, policy in (("flat", {"grid": "flat"}), ("A in registers", {"stage_a": "none"})):
        cases = (FormatCase("tiled-csr", "tiled-csr"), FormatCase("tiled-csr", label, policy=policy))
        compare_cases(session, outcome, found, cases, width=512)
    outcome.notes.append(
        "The paper finds 1.3x from the 3D grid and the adaptive memory access together (A100)."
    )
    return outcome


@PAPER.figure("figure-11", "SpMM of DLMC beside cuSPARSE, N = 512", needs="gpu", minutes=True)
def figure_11(session: Session) -> Outcome:
    """Measure tiled-csr in fp16 beside cuSPARSE."""
    outcome = Outcome(notes=["The paper's text gives speeds over Magicube, which is not here."])
    over_peer(session, outcome, one_of_each(session.pruned(outcome)), "tiled-csr", width=512)
    return outcome
