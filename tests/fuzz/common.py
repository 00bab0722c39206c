"""What all generators of the fuzzer share: random choices that can be replayed, counts, and one case's calls.

A case is a function of a Trial: it draws what to do from `trial.draw`, and makes its calls through the trial,
which counts them and judges their errors. `tests.fuzz.worker` runs cases in processes that may crash.
"""

from __future__ import annotations

import contextlib
import random
import re
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

#: Exceptions by which a call may refuse its arguments. A MemoryError has to give sizes.
REFUSALS = (ValueError, TypeError, IndexError, ImportError, MemoryError)
#: How a message names what was refused: "name: ...", "group.name: ...".
_NAMED = re.compile(r"^[A-Za-z_][\w.\[\]]*: \S")
_PACKAGE = Path(__file__).resolve().parents[2] / "gnnsparse"


@dataclass
class Failure:
    """A call that did what it must not do, with what its case drew, from which it can be replayed.

    Its kind is "error", "wrong", "accepted", "crash", "hang" or "memory", or "generator" for a mistake here.
    """

    generator: str
    kind: str
    message: str
    seed: int
    case: int
    choices: list[int] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)

    @property
    def signature(self) -> str:
        """Equal for failures that are likely to have one cause: the message without its numbers."""
        last = self.calls[-1].split(" ")[0] if self.calls else ""
        return f"{self.kind} {last} " + re.sub(r"-?\d[\d.e+-]*|0x[0-9a-f]+", "#", self.message)[:160]


@dataclass
class Counts:
    """What a run of a generator has done; `kinds` are those of its cases, of a generator that has several."""

    cases: int = 0
    calls: int = 0
    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        refused = ", ".join(f"{number:,} {name}" for name, number in sorted(self.refused.items()))
        kinds = "".join(f", {number:,} {name}" for name, number in self.kinds.items())
        returned = f"{self.calls:,} calls, {self.accepted:,} returned"
        return f"{returned}, refused: {refused or 'none'}{kinds}, {len(self.failures)} failures"

    def add(self, other: Counts) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


class Draw:
    """Random choices, small integers all of them, which are noted in `made` and can be replayed.

    After the last of the `choices` to be replayed every choice is the smallest one.
    """

    def __init__(self, seed: str, choices: Sequence[int] | None = None, made: Any = None) -> None:
        self._random = random.Random(seed)
        self._given = choices
        self.made = [] if made is None else made

    def below(self, count: int) -> int:
        """An integer in [0, count)."""
        if self._given is None:
            value = self._random.randrange(count)
        else:
            at = len(self.made)
            value = min(self._given[at], count - 1) if at < len(self._given) else 0
        self.made.append(value)
        return value

    def integer(self, low: int, high: int) -> int:
        return low + self.below(high - low + 1)

    def choice(self, options: Sequence[T]) -> T:
        """One of the options; put the simplest first, for a reduced case takes that one."""
        return options[self.below(len(options))]

    def chance(self, share: float) -> bool:
        """True in this share of all cases; a reduced case gets False."""
        return self.below(1000) >= 1000 * (1 - share)

    def seed(self) -> int:
        return self.below(2**31)

    def shuffled(self, items: Sequence[T]) -> list[T]:
        left = list(items)
        return [left.pop(self.below(len(left))) for _ in items]


class FailedCallError(Exception):
    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def describe(error: BaseException) -> str:
    """An exception with the innermost line of the package that it passed through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if Path(f.filename).is_relative_to(_PACKAGE)]
    at = (own or frames)[-1]
    where = f"{Path(at.filename).parent.name}/{Path(at.filename).name}:{at.lineno}"
    return f"{type(error).__name__} in {where}: {error}"


def is_refusal(error: BaseException) -> bool:
    """Whether an exception refuses arguments as documented: it is of an accepted kind and names one."""
    message = str(error)
    if isinstance(error, MemoryError):
        return bool(re.search(r"\d", message))
    is_named = bool(_NAMED.match(message)) or "is not defined for a SparseOperand" in message
    return isinstance(error, REFUSALS) and is_named


class Trial:
    """The calls of one case."""

    def __init__(self, draw: Draw, counts: Counts, calls: Any = None) -> None:
        self.draw = draw
        self.counts = counts
        self.calls = [] if calls is None else calls
        #: Entered around each call: autocast, another default dtype, and so on.
        self.mode: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext

    @contextlib.contextmanager
    def noted(self, label: str) -> Iterator[None]:
        self.counts.calls += 1
        self.calls.append(label)
        with self.mode():
            yield

    def call(self, label: str, function: Callable[[], T]) -> T:
        """Makes a call whose arguments are valid, and returns its result."""
        try:
            with self.noted(label):
                result = function()
        except Exception as error:
            raise FailedCallError("error", f"valid input was refused: {describe(error)}") from error
        self.counts.accepted += 1
        return result

    def attempt(
        self, label: str, function: Callable[[], T], also: Callable[[Exception], bool] = lambda error: False
    ) -> T | None:
        """Makes a call whose arguments may be refused, by an error that `also` accepts, too; None: it was."""
        try:
            with self.noted(label):
                result = function()
        except Exception as error:
            if not is_refusal(error) and not also(error):
                raise FailedCallError("error", describe(error)) from error
            self.counts.refused[type(error).__name__] += 1
            return None
        self.counts.accepted += 1
        return result

    def refuse(self, label: str, function: Callable[[], Any]) -> None:
        """Makes a call whose arguments must be refused."""
        before = self.counts.accepted
        self.attempt(label, function)
        if self.counts.accepted != before:
            raise FailedCallError("accepted", f"{label}: invalid input was accepted")

    def check(self, holds: bool, what: str) -> None:
        """Ends the case as wrong unless something holds."""
        if not holds:
            raise FailedCallError("wrong", what)


Case = Callable[[Trial], None]
