"""The registry of papers with their figures and tables, and what reproducing one of them returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gnnsparse.errors import bad_value, check_choice
from gnnsparse.registry import Registry

if TYPE_CHECKING:
    from papers.session import Session

__all__ = ["NEEDS", "ORIGINS", "PAPERS", "Figure", "Missing", "Outcome", "Paper", "Row", "register_paper"]

#: What a matrix is to the paper's: one of its matrices; a part of its collection; another matrix of a similar
#: kind, which the paper does not have; or an example that the paper's text gives.
ORIGINS = ("paper's", "subset", "stand-in", "example")
#: What a figure needs: nothing but the matrices; a GPU; or the trainings of train.py, in a checkout.
NEEDS = ("cpu", "gpu", "train")


@dataclass(frozen=True)
class Row:
    """A number of a paper beside ours.

    Attributes:
        quantity: what the number is.
        matrix: name of the matrix, or of several.
        origin: one of ORIGINS.
        ours: our number.
        paper: the paper's number; None: its text has none for this row.
        unit: "%", "x", "GFLOP/s", ...; "" for counts.
        note: what the reader has to know of the row.
    """

    quantity: str
    matrix: str
    origin: str
    ours: float
    paper: float | None = None
    unit: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        check_choice("origin", self.origin, ORIGINS)


@dataclass(frozen=True)
class Missing:
    """Something that a figure needs and that is not there.

    Attributes:
        what: the matrix, the GPU or the program.
        how: how to get it.
    """

    what: str
    how: str


@dataclass
class Outcome:
    """What reproducing a figure gave.

    Attributes:
        rows: the numbers.
        missing: what was not there.
        notes: what holds for the whole figure, such as what the paper leaves open.
    """

    rows: list[Row] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(
        self,
        quantity: str,
        matrix: str,
        origin: str,
        ours: float,
        paper: float | None = None,
        unit: str = "",
        note: str = "",
    ) -> None:
        """Add a row; the arguments are its attributes."""
        self.rows.append(Row(quantity, matrix, origin, ours, paper, unit, note))


@dataclass(frozen=True)
class Figure:
    """A figure or table of a paper that can be reproduced.

    Attributes:
        name: its name, such as "figure-12" or "table-7".
        title: what it shows.
        run: computes it.
        needs: one of NEEDS.
        minutes: whether it takes minutes; such figures run when they are asked for by name.
    """

    name: str
    title: str
    run: Callable[[Session], Outcome]
    needs: str = "cpu"
    minutes: bool = False


@dataclass
class Paper:
    """A paper.

    Attributes:
        name: its name in the command.
        title: authors, title and year.
        figures: its figures and tables by name, in the order of the paper.
    """

    name: str
    title: str
    figures: dict[str, Figure] = field(default_factory=dict)

    def figure(
        self, name: str, title: str, *, needs: str = "cpu", minutes: bool = False
    ) -> Callable[[Callable[[Session], Outcome]], Callable[[Session], Outcome]]:
        """Register the decorated function as a figure or table; the arguments are the attributes of Figure.

        Raises:
            ValueError: the name is taken, or `needs` is none of NEEDS.
        """
        check_choice("needs", needs, NEEDS)

        def keep(run: Callable[[Session], Outcome]) -> Callable[[Session], Outcome]:
            if name in self.figures:
                bad_value("figure", f"got {name!r} to register; accepted: a name that is not taken")
            self.figures[name] = Figure(name, title, run, needs, minutes)
            return run

        return keep


#: The papers by the names that the command takes.
PAPERS: Registry[Paper] = Registry("paper")


def register_paper(name: str, title: str) -> Paper:
    """Register a paper, whose figures are then registered by `Paper.figure`.

    Raises:
        ValueError: the name is taken.
    """
    paper = Paper(name, title)
    PAPERS.register(name, paper)
    return paper
