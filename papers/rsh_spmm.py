"""RSH-SpMM (Li et al., 2026): storage of RS-Tile, division of rows, row orders, speeds and training."""

from __future__ import annotations

from statistics import mean

from gnnsparse.preprocess.reorder import METHODS
from papers.analysis import READINGS, adjacent_dissimilarity, count_vectors, footprint, partition_rows
from papers.figures import Missing, Outcome, register_paper
from papers.session import Session
from papers.speed import FormatCase, compare_cases, over_peer, precision_of
from papers.training import train_once

__all__: list[str] = []

PAPER = register_paper("rsh-spmm", "Li et al., RSH-SpMM")

#: Table 1: nodes, and the rows and columns of the COO list, which are nonzeros.
_SIZES = {
    "com-amazon": (548_551, 925_872), "ddi": (4_267, 2_140_089), "DD": (334_925, 1_686_092),
    "amazon0505": (410_236, 3_356_824), "Amazon": (403_394, 3_387_388), "Yeast": (1_710_902, 3_636_546),
    "OVCAR-8H": (1_889_542, 3_946_402), "YeastH": (3_138_114, 6_487_230),
    "web-BerkStan": (685_230, 7_600_595),
}  # fmt: skip
_COLLECTION = (5_000, 100_000)
#: The thresholds of figure 14.
_THRESHOLDS = (0, 2, 4, 6, 8)
_ORDERS = ("community", "rcm", "tca", "jaccard")


@PAPER.figure("table-1", "sizes of the matrices")
def table_1(session: Session) -> Outcome:
    """Count nodes and nonzeros, with a self-loop for each node where the paper has them."""
    return session.sizes(_SIZES)


@PAPER.figure("figure-13", "metadata of formats over COO's")
def figure_13(session: Session) -> Outcome:
    """Compare what stands beside the values, by the formats' formulas."""
    outcome = Outcome()
    found = list(session.each(_SIZES, outcome))
    found += [matrix for matrix in session.library.square(*_COLLECTION) if matrix.origin == "subset"]
    formats = ("csr", "me-tcf", "bit-tcf", "rs-tile")
    over_coo = {
        name: [footprint(m.csr, name, 0) / footprint(m.csr, "coo", 0) for m in found] for name in formats
    }
    for number, matrix in enumerate(found):
        percent = 100 * over_coo["rs-tile"][number]
        outcome.add("rs-tile, of COO", matrix.name, matrix.origin, percent, unit="%")
    if found:
        where = f"{len(found)} matrices"
        for name in formats:
            outcome.add(f"{name}, of COO, mean", where, "subset", 100 * mean(over_coo[name]), unit="%")
        pairs = zip(over_coo["rs-tile"], over_coo["me-tcf"], over_coo["bit-tcf"], strict=True)
        saved = 100 * mean(1 - tile / mean(others) for tile, *others in pairs)
        outcome.add("rs-tile less than ME-TCF and BitTCF", where, "subset", saved, 15.05, "%")
    outcome.notes.append(
        "The paper compares with ME-TCF and BitTCF after their load balancing, which adds 7 to 8 % to each; "
        "here they are as they are without it."
    )
    return outcome


@PAPER.figure("figure-14", "effect of the threshold on blocks and windows")
def figure_14(session: Session) -> Outcome:
    """Divide the rows by algorithm 1 for thresholds 0 to 8, by both readings of its second rule."""
    outcome = Outcome()
    papers = {("block", 0): 16.7, ("block", 4): 19.5, ("window", 0): 174.0, ("window", 4): 233.0}
    found = list(session.each(_SIZES, outcome))
    where = f"{len(found)} matrices"
    for reading in READINGS if found else ():
        first = [partition_rows(m.csr, 0, reading=reading) for m in found]
        for threshold in _THRESHOLDS:
            parts = [partition_rows(m.csr, threshold, reading=reading) for m in found] if threshold else first
            what = f"{reading}, threshold {threshold}"
            for unit in ("block", "window"):
                of = [getattr(part, f"nnz_per_{unit}") for part in parts]
                paper = papers.get((unit, threshold))
                outcome.add(f"{what}: nonzeros of a {unit}", where, "subset", mean(of), paper)
                if threshold:
                    before = [getattr(part, f"nnz_per_{unit}") for part in first]
                    gain = mean(now / was for now, was in zip(of, before, strict=True))
                    grown = None if paper is None else paper / papers[unit, 0]
                    outcome.add(f"{what}: {unit} over threshold 0", where, "subset", gain, grown, "x")
            kept_out = zip(parts, found, strict=True)
            percent = 100 * mean(part.residual_nnz / m.csr.nnz for part, m in kept_out)
            outcome.add(f"{what}: nonzeros on CUDA cores", where, "subset", percent, unit="%")
    outcome.notes.append(
        "The paper contradicts itself on the second rule (papers.analysis.partition_rows): algorithm 1 "
        "keeps out short rows that add few columns, its text those with weak overlap, which add the most."
    )
    return outcome


@PAPER.figure("figure-16", "what row orders do to blocks and to the objective")
def figure_16(session: Session) -> Outcome:
    """Count blocks of 8 x 8 and the sum of dissimilarities; figure-16-speed has the speeds."""
    outcome = Outcome()
    for name in _ORDERS:
        if name not in METHODS:
            outcome.missing.append(Missing(f"the order {name}", "no such reordering is registered"))
    names = {"ddi": "paper's", "PROTEINS": "stand-in", "GitHub": "stand-in"}
    for found in session.each(names, outcome, stand_ins=False):
        csr, origin = found.csr, names[found.name]
        blocks = int((-(-count_vectors(csr, 8) // 8)).sum())
        apart = adjacent_dissimilarity(csr)
        for name in (name for name in _ORDERS if name in METHODS):
            order = METHODS[name].order(csr)
            now = int((-(-count_vectors(csr, 8, order) // 8)).sum())
            left = 100 * adjacent_dissimilarity(csr, order) / apart if apart else 100.0
            outcome.add(f"{name}: fewer blocks", found.name, origin, 100 * (1 - now / blocks), unit="%")
            outcome.add(f"{name}: dissimilarity left", found.name, origin, left, unit="%")
    return outcome


@PAPER.figure("figure-16-speed", "speed of row orders over the given one", needs="gpu", minutes=True)
def figure_16_speed(session: Session) -> Outcome:
    """Measure rs-tile with each order."""
    outcome = Outcome()
    papers = {"jaccard": 1.25, "tca": 1.15, "community": 0.87}
    found = list(session.each(("ddi", "DD", "amazon0505"), outcome))
    for name in ("jaccard", "tca", "community"):
        if name not in METHODS:
            outcome.missing.append(Missing(f"the order {name}", "no such reordering is registered"))
            continue
        cases = (FormatCase("rs-tile", name, reorder=name), FormatCase("rs-tile", "none"))
        compare_cases(session, outcome, found, cases, papers[name], precision=precision_of("rs-tile"))
    outcome.notes.append("The paper's 0.87 is that of Rabbit Order; `community` is of its kind.")
    return outcome


@PAPER.figure("figure-10", "SpMM, N = 64 to 512, beside cuSPARSE", needs="gpu", minutes=True)
def figure_10(session: Session) -> Outcome:
    """Measure rs-tile beside cuSPARSE as torch calls it."""
    outcome = Outcome(
        notes=["The paper's 2.35 is the mean on an RTX 4090, beside cuSPARSE as it is called plainly."]
    )
    found = list(session.each(_SIZES, outcome))
    for width in (64, 128, 256, 512):
        over_peer(
            session,
            outcome,
            found,
            "rs-tile",
            2.35,
            peer="cusparse",
            label=f"cuSPARSE, N = {width}",
            width=width,
            precision=precision_of("rs-tile"),
        )
    return outcome


@PAPER.figure("figure-17", "500 epochs of a GCN of 6 layers", needs="train", minutes=True)
def figure_17(session: Session) -> Outcome:
    """Train with 64 and 256 hidden features on arxiv_like: the paper's graphs have no classes."""
    outcome = Outcome()
    options = [
        "dataset=arxiv_like",
        "model=gcn",
        "model.num_layers=6",
        "trainer.max_epochs=500",
        "precision=fp16",
    ]
    for hidden in (64, 256):
        result, missing = train_once(session, [*options, f"model.hidden_channels={hidden}"])
        if missing is not None:
            outcome.missing.append(missing)
            break
        assert result is not None
        what = f"training, {hidden} hidden features"
        outcome.add(
            what, "arxiv_like for web-BerkStan and others", "stand-in", result["fit_seconds"], unit="s"
        )
    outcome.notes.append("The paper's mean over four graphs and both widths is 44.32 s on an RTX 4090.")
    return outcome
