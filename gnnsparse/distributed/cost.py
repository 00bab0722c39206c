"""The cost model that chooses how ranks share a product: by rows with a halo or a gather, or by features."""

from __future__ import annotations

import functools
import importlib.resources
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from gnnsparse.distributed.names import WAYS
from gnnsparse.distributed.shard import ShardFacts
from gnnsparse.errors import bad_type, bad_value, check_choice, check_integer, check_number
from gnnsparse.plain import from_plain

__all__ = ["Choice", "Rates", "choose_way", "known_rates"]

#: Fewest features of a chunk: a product of fewer takes nearly as long.
_CHUNK_FEATURES = 64
#: Most chunks in which a halo travels.
_MOST_CHUNKS = 4


@dataclass(frozen=True)
class Rates:
    """What the cost model knows of a machine.

    Attributes:
        link_bytes: bytes that a rank receives from others in a second, while it sends as many.
        latency: seconds that an exchange takes at the least.
        product_bytes: nonzeros times bytes of a row of features that a product works off in a second.
        narrow_bytes: bytes of a row of features below which a product does not become faster.
        copy_bytes: bytes that are copied in a second.
        about: where the numbers come from.

    Raises:
        TypeError: a rate is no number.
        ValueError: a rate is not above 0.
    """

    link_bytes: float
    latency: float
    product_bytes: float
    narrow_bytes: float
    copy_bytes: float
    about: str = ""

    def __post_init__(self) -> None:
        for name in ("link_bytes", "latency", "product_bytes", "narrow_bytes", "copy_bytes"):
            if check_number(f"rates.{name}", getattr(self, name)) <= 0:
                bad_value(f"rates.{name}", f"got {getattr(self, name)}; accepted: a number above 0")

    def product(self, nnz: float, row_bytes: float) -> float:
        """Returns the seconds of a product of `nnz` nonzeros with rows of `row_bytes` bytes of features."""
        return nnz * max(row_bytes, self.narrow_bytes) / self.product_bytes


@functools.cache
def _stored() -> dict[str, Rates]:
    text = importlib.resources.files("gnnsparse.distributed").joinpath("rates.json").read_text()
    return {name: from_plain(Rates, content, name) for name, content in json.loads(text).items()}


def known_rates(backend: str) -> Rates:
    """Returns the rates that are stored for a backend: "nccl" (H200s of one host) or "gloo" (CPUs).

    `gnnsparse.distributed.measure_rates` measures those of another machine.

    Raises:
        TypeError: `backend` is no string.
        ValueError: there are no rates of it.
    """
    return _stored()[check_choice("backend", backend, tuple(_stored()))]


@dataclass(frozen=True)
class Choice:
    """How ranks share products, with the reasons; `print` shows these.

    Attributes:
        way: one of WAYS.
        chunks: in how many parts of the features a halo travels behind the product.
        seconds: estimated time of a product by each way that was compared.
        reasons: one line for each way, and one for what decided.
    """

    way: str
    chunks: int
    seconds: dict[str, float]
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join((f"{self.way}, in chunks: {self.chunks}", *self.reasons))


@dataclass(frozen=True)
class _Model:
    """Estimates of one product of `width` features of `itemsize` bytes each."""

    facts: ShardFacts
    width: int
    itemsize: int
    rates: Rates

    def product(self, nnz: float, width: float) -> float:
        return self.rates.product(nnz, width * self.itemsize)

    def transfer(self, rows: float) -> float:
        return self.rates.latency + rows * self.width * self.itemsize / self.rates.link_bytes

    def copy(self, rows: float) -> float:
        return 2 * rows * self.width * self.itemsize / self.rates.copy_bytes

    def _by_rows(self, received: Sequence[int], packed: Sequence[int]) -> tuple[float, float, float]:
        """Returns the time of the slowest rank, and of its transfer and the product beside it."""
        facts, found = self.facts, []
        for rank in range(facts.ranks):
            rows = facts.starts[rank + 1] - facts.starts[rank]
            transfer = self.transfer(received[rank])
            beside = self.product(facts.nnz[rank] - facts.outside[rank], self.width)
            after = self.product(facts.outside[rank], self.width) + self.copy(rows)
            found.append((self.copy(packed[rank]) + max(transfer, beside) + after, transfer, beside))
        return max(found)

    def halo(self) -> tuple[float, float, float]:
        return self._by_rows(self.facts.halo, self.facts.halo)

    def gather(self) -> tuple[float, float, float]:
        ranks = self.facts.ranks
        return self._by_rows([(ranks - 1) * self.facts.most_rows] * ranks, [0] * ranks)

    def features(self) -> float:
        facts, ranks = self.facts, self.facts.ranks
        rows = facts.most_rows
        moves = 2 * (self.transfer(rows * (ranks - 1) / ranks) + self.copy(rows))
        return moves + self.product(sum(facts.nnz), math.ceil(self.width / ranks))


def choose_way(
    facts: ShardFacts,
    width: int,
    itemsize: int = 4,
    *,
    rates: Rates,
    ways: Sequence[str] = WAYS,
) -> Choice:
    """Estimates the time of a product by each way, and returns the fastest with the reasons.

    By rows, a rank multiplies the columns that it owns while those of others travel, and then these. By
    features, it multiplies the whole matrix by its share of the features, between two exchanges of its rows.

    Args:
        facts: counts of the partitioned matrix.
        width: features of a product.
        itemsize: bytes of a feature.
        rates: rates of the machine.
        ways: the ways to compare.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range.
    """
    check_integer("width", width)
    check_integer("itemsize", itemsize)
    if not isinstance(rates, Rates):
        bad_type("rates", rates, "Rates, as known_rates and measure_rates return them")
    for way in ways:
        check_choice("ways", way, WAYS)
    if not ways:
        bad_value("ways", f"is empty; accepted: some of {', '.join(WAYS)}")
    model = _Model(facts, width, itemsize, rates)
    seconds, reasons, chunks = {}, [], {}
    for way in ways:
        if way == "features":
            seconds[way], chunks[way] = model.features(), 1
            reasons.append(
                f"features: {_ms(seconds[way])}: two exchanges of {facts.most_rows} rows, all "
                f"{sum(facts.nnz)} nonzeros by {math.ceil(width / facts.ranks)} of {width} features"
            )
            continue
        seconds[way], transfer, beside = model.halo() if way == "halo" else model.gather()
        most = max(facts.halo) if way == "halo" else (facts.ranks - 1) * facts.most_rows
        behind = transfer > beside
        chunks[way] = max(1, min(_MOST_CHUNKS, width // _CHUNK_FEATURES)) if behind else 1
        reasons.append(
            f"{way}: {_ms(seconds[way])}: {most} rows of other ranks travel in {_ms(transfer)}, "
            f"{'longer than' if behind else 'behind'} the product of own columns, {_ms(beside)}"
        )
    way = min(seconds, key=lambda name: seconds[name])
    reasons.append(f"{way} is estimated to be the fastest for {width} features of {itemsize} bytes")
    return Choice(way, chunks[way], seconds, tuple(reasons))


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
