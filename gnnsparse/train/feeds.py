"""Feeds: what the steps of a run in blocks are made on, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Feed", "StepInput", "repeated"]


@dataclass(frozen=True, eq=False)
class StepInput:
    """The batch of a step.

    Attributes:
        single: makes the batch for a step that is launched by itself.
        place: what steps of one captured graph have in common; None: the step can't be captured.
        load: puts into place what the batch is made of, before the graph of its step is replayed.
        placed: makes the batch of what `load` has put into place, as a part of the step that is captured.
    """

    single: Callable[[], Any]
    place: Hashable | None = None
    load: Callable[[], None] = lambda: None
    placed: Callable[[], Any] = lambda: None


@dataclass(frozen=True, eq=False)
class Feed:
    """The batches of a run in blocks.

    Attributes:
        steps: yields the input of each step without end, from the trainer's next one on.
        validation: the batch that `TaskModule.validation_step` takes.
        captures_validation: whether the arrays of that batch keep their places, and a validation comes after
            so few steps that capturing it is worth the memory that its graph keeps.
    """

    steps: Iterator[StepInput]
    validation: Any
    captures_validation: bool = True


def repeated(batch: Any) -> Feed:
    """Returns the feed of a run whose every step takes one batch, which holds all of the data."""

    def steps() -> Iterator[StepInput]:
        while True:
            yield one

    one = StepInput(lambda: batch, "all", placed=lambda: batch)
    return Feed(steps(), batch)
