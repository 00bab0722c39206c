"""FlashSparse (Shi et al., PPoPP 2025): counts, footprints, speeds and accuracy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from statistics import mean

from gnnsparse.formats.csr import Csr
from papers.analysis import Accesses, count_accesses, count_vectors, footprint
from papers.figures import Outcome, register_paper
from papers.session import Found, Session
from papers.speed import FormatCase, compare_cases, over_peer
from papers.training import train_study

__all__ = ["access_cuts", "vector_zeros"]

PAPER = register_paper("flashsparse", "Shi et al., FlashSparse, PPoPP 2025")

#: Table 4: nodes and edges.
_SIZES = {
    "GitHub": (37_700, 615_706), "Artist": (50_515, 1_638_396), "Blog": (88_784, 4_186_390),
    "Ell": (203_769, 672_479), "Yelp": (716_847, 13_954_819), "DD": (334_925, 1_686_092),
    "Reddit": (232_965, 114_848_857), "Amazon": (403_394, 9_068_096), "amazon0505": (410_236, 4_878_874),
    "com-amazon": (334_863, 1_851_744), "Yeast": (1_710_902, 5_347_448),
    "OGBProducts": (2_449_029, 126_167_053), "AmazonProducts": (1_569_960, 264_339_468),
    "IGB-small": (1_000_000, 13_068_130), "IGB-medium": (10_000_000, 129_994_908),
}  # fmt: skip
#: Table 2: zeros in nonzero vectors of 16 and of 8 rows, in millions.
_ZEROS = {
    "Reddit": (762.6, 435.7), "OGBProducts": (1072.1, 570.6), "IGB-medium": (1502.1, 751.2),
    "IGB-large": (16468.8, 8085.4), "AmazonProducts": (2648.8, 1396.9),
}  # fmt: skip
#: Matrices that are counted one by one, beside the collection, and what they are to the paper's.
_NAMED = {
    "GitHub": "paper's", "DD": "paper's", "NotreDame_www": "subset", "ddi": "stand-in",
    "PROTEINS": "stand-in", "BlogCatalog": "stand-in", "new_sites": "stand-in", "cnr-2000": "subset",
}  # fmt: skip
#: The least rows, and the least nonzeros, of the 500 matrices of SuiteSparse (section 4).
_COLLECTION = (10_000, 100_000)


def vector_zeros(csr: Csr, height: int) -> int:
    """Count the zeros in the nonzero vectors of `height` rows."""
    return height * int(count_vectors(csr, height).sum()) - csr.nnz


def access_cuts(csr: Csr, op: str, width: int) -> dict[str, float]:
    """Compute how much less vectors of 8 rows cost than vectors of 16 rows, in percent, fp16 and k = 8.

    Returns:
        The cuts in instructions ("mma"), which is that in operand loads as well; in operand loads and results
        ("accesses"); and in gathered rows ("gathered"), which is negative where 8 rows gather more.
    """
    short, tall = (count_accesses(csr, height, op=op, width=width) for height in (8, 16))

    def cut(of: str) -> float:
        before: int = getattr(tall, of)
        return 100 * (1 - getattr(short, of) / before) if before else 0.0

    assert isinstance(short, Accesses)
    return {"mma": cut("mma"), "accesses": cut("total_bytes"), "gathered": cut("gathered_bytes")}


def _collection(session: Session, outcome: Outcome) -> Iterator[Found]:
    """Yield the named matrices, then those of SuiteSparse that meet the paper's criteria."""
    for found in session.each(_NAMED, outcome, stand_ins=False):
        yield replace(found, origin=_NAMED[found.name])
    for found in session.library.square(*_COLLECTION):
        if found.origin == "subset":
            yield found


@PAPER.figure("table-2", "zeros in nonzero vectors of 16 and of 8 rows, in millions")
def table_2(session: Session) -> Outcome:
    """Count the zeros."""
    outcome = Outcome()
    for found in session.each(_ZEROS, outcome):
        paper = _ZEROS[found.name.rpartition(" for ")[2]]
        for height, published in zip((16, 8), paper, strict=True):
            zeros = vector_zeros(found.csr, height) / 1e6
            outcome.add(f"zeros in {height}x1 vectors, M", found.name, found.origin, zeros, published)
    return outcome


@PAPER.figure("table-4", "sizes of the graphs")
def table_4(session: Session) -> Outcome:
    """Count nodes and edges, with a self-loop for each node where the paper has them."""
    return session.sizes(_SIZES, "edges")


@PAPER.figure("figure-1", "instructions of SpMM with 8x1 vectors against 16x1, N = 16")
def figure_1(session: Session) -> Outcome:
    """Count `mma.m16n8k8`, of which each covers 8 columns of the dense matrix (16x1), or 16 (8x1)."""
    outcome = Outcome()
    cuts = []
    for found in _collection(session, outcome):
        cuts.append(access_cuts(found.csr, "spmm", 16)["mma"])
        origin = found.origin
        outcome.add("fewer instructions", found.name, origin, cuts[-1], unit="%")
    if cuts:
        outcome.add("fewer instructions, mean", f"{len(cuts)} matrices", "subset", mean(cuts), 43.0, "%")
        outcome.notes.append("The paper's 43 % is the mean over its graphs, of which figure 1 shows bars.")
    return outcome


@PAPER.figure("figure-12", "memory accesses of SpMM (N = 128) and SDDMM (N = 32), 8x1 against 16x1")
def figure_12(session: Session) -> Outcome:
    """Count both readings of an access: operands of every instruction, and rows that are gathered."""
    outcome = Outcome()
    found = list(_collection(session, outcome))
    for op, width, published in (("spmm", 128, 35.0), ("sddmm", 32, 28.0)):
        cuts = [access_cuts(matrix.csr, op, width) for matrix in found]
        if not cuts:
            continue
        name, where = f"{len(cuts)} matrices", "subset"
        for of, text, paper in (
            ("mma", "operand loads", published),
            ("accesses", "operand loads and results", published),
            ("gathered", "gathered rows", None),
        ):
            every = [cut[of] for cut in cuts]
            outcome.add(f"{op}: fewer {text}, mean", name, where, mean(every), paper, "%")
            if of != "gathered":
                outcome.add(f"{op}: fewer {text}, most", name, where, max(every), 49.0, "%")
    outcome.notes.append(
        "The paper does not define an access. Operands of all instructions fall with the instructions; rows "
        "of the dense matrix that are gathered once a vector rise, for two vectors may share a column."
    )
    return outcome


@PAPER.figure("table-7", "footprint of ME-BCRS against SR-BCRS")
def table_7(session: Session) -> Outcome:
    """Compare the bytes by the formats' formulas, with fp16 values."""
    outcome = Outcome()
    saved = []
    for found in _collection(session, outcome):
        saved.append(100 * (1 - footprint(found.csr, "me-bcrs") / footprint(found.csr, "sr-bcrs")))
        outcome.add("smaller than SR-BCRS", found.name, found.origin, saved[-1], unit="%")
    if saved:
        name = f"{len(saved)} matrices"
        outcome.add("smaller than SR-BCRS, mean", name, "subset", mean(saved), 11.72, "%")
        outcome.add("smaller than SR-BCRS, most", name, "subset", max(saved), 50.0, "%")
        over_10 = 100 * sum(cut > 10 for cut in saved) / len(saved)
        outcome.add("matrices with more than 10 %", name, "subset", over_10, 100 * 336 / 515, "%")
    return outcome


_GRAPHS = ("GitHub", "DD", "Reddit", "OGBProducts", "amazon0505", "Amazon")


@PAPER.figure("figure-11", "SpMM, N = 128, beside cuSPARSE", needs="gpu", minutes=True)
def figure_11(session: Session) -> Outcome:
    """Measure me-bcrs in fp16 and tf32 beside cuSPARSE."""
    outcome = Outcome(
        notes=["The paper's text gives speeds over DTC-SpMM, RoDe and others, which are not here."]
    )
    for precision in ("fp16", "tf32"):
        over_peer(session, outcome, session.each(_GRAPHS, outcome), "me-bcrs", precision=precision)
    return outcome


@PAPER.figure("figure-13", "SDDMM, N = 32, beside cuSPARSE", needs="gpu", minutes=True)
def figure_13(session: Session) -> Outcome:
    """Measure me-bcrs in fp16 beside cuSPARSE."""
    outcome = Outcome(notes=["The paper's text gives speeds over RoDe and TC-GNN, which are not here."])
    over_peer(session, outcome, session.each(_GRAPHS, outcome), "me-bcrs", op="sddmm", width=32)
    return outcome


_TALL = FormatCase("me-bcrs", "16x1", panel=16, policy={"swapped": False})


@PAPER.figure("figure-14", "8x1 vectors against 16x1, fp16", needs="gpu", minutes=True)
def figure_14(session: Session) -> Outcome:
    """Measure the kernel with A as the right operand of the instruction, and as the left one."""
    outcome = Outcome()
    cases = (FormatCase("me-bcrs", "8x1"), _TALL)
    for op, width, paper in (("spmm", 128, 1.89), ("sddmm", 32, 2.61)):
        compare_cases(session, outcome, session.each(_GRAPHS, outcome), cases, paper, op=op, width=width)
    return outcome


@PAPER.figure("figure-15", "coalesced loads against the direct mapping, SpMM fp16", needs="gpu", minutes=True)
def figure_15(session: Session) -> Outcome:
    """Measure both mappings of threads to elements of X (figure 7)."""
    outcome = Outcome()
    plain = FormatCase("me-bcrs", "direct", policy={"x_load": "plain", "shuffle": False})
    cases = (FormatCase("me-bcrs", "coalesced"), plain)
    compare_cases(session, outcome, session.each(_GRAPHS, outcome), cases, 1.34)
    return outcome


@PAPER.figure("table-8", "test accuracy of a GCN by precision", needs="train", minutes=True)
def table_8(session: Session) -> Outcome:
    """Run the study `experiment=flashsparse_table8` of train.py."""
    return train_study(session, "flashsparse_table8")
