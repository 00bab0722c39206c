"""The cost model that chooses how ranks share a product: by rows with a halo or a gather, or by features."""

from __future__ import annotations

import functools
import importlib.resources
import json
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

from gnnsparse.distributed.names import WAYS
from gnnsparse.distributed.shard import ShardFacts
from gnnsparse.errors import bad_type, bad_value, check_choice, check_integer, check_number
from gnnsparse.runtime.device import SLICE_BYTES
from gnnsparse.runtime.serialization import from_plain

#: Features of a chunk are a multiple of this, so that its rows begin at addresses that vector loads need.
_CHUNK_MULTIPLE = 8
#: Most chunks in which features travel.
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
        add_passes: how often a rank's results are read or written to add a second product to the first,
            beyond writing both: 3 where that is an operation of its own, 1 where kernels add to memory.
        select: how much longer a copy of chosen rows takes than one of all rows.
        scattered: most nonzeros outside the own columns, as a fraction, that are taken to cost twice their
            fraction of a product: rows have fewer of these columns in common.
        beside: part of the time of an exchange by which a product that runs beside it takes longer: both need
            multiprocessors and memory.
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
    add_passes: float = 3.0
    select: float = 1.2
    scattered: float = 0.25
    beside: float = 0.35
    about: str = ""

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self) if field.name != "about"):
            if check_number(f"rates.{name}", getattr(self, name)) <= 0:
                bad_value(f"rates.{name}", f"got {getattr(self, name)}; accepted: a number above 0")

    def product(self, nnz: float, row_bytes: float) -> float:
        """Return the seconds of a product of `nnz` nonzeros with rows of `row_bytes` bytes of features."""
        return nnz * max(row_bytes, self.narrow_bytes) / self.product_bytes


@functools.cache
def _stored() -> dict[str, Rates]:
    text = importlib.resources.files("gnnsparse.distributed").joinpath("rates.json").read_text()
    return {name: from_plain(Rates, content, name) for name, content in json.loads(text).items()}


def known_rates(backend: str) -> Rates:
    """Return the rates that are stored for a backend: "nccl" (H200s of one host) or "gloo" (CPUs).

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
        chunks: in how many chunks of the features those of other ranks travel.
        seconds: estimated time of a product by each way that was compared.
        reasons: one line for each way, and one for what decided.
        split: whether own columns are multiplied while features travel, in a product of their own; False: all
            columns in one product, chunk after chunk.
    """

    way: str
    chunks: int
    seconds: dict[str, float]
    reasons: tuple[str, ...]
    split: bool = False

    def __str__(self) -> str:
        products = ", own columns first" if self.split else ""
        return "\n".join((f"{self.way}, in chunks: {self.chunks}{products}", *self.reasons))


def slices_of(width: int, itemsize: int, chunks: int) -> list[slice]:
    """Divide features of some bytes each into chunks of about equal width, at most `chunks` of them.

    There are no more chunks than a row has slices of 128 bytes: a product of narrower rows takes nearly as
    long as one of 128 bytes. All widths but the last are multiples of 8.
    """
    chunks = max(1, min(chunks, -(-width * itemsize // SLICE_BYTES)))
    multiples = math.ceil(width / chunks / _CHUNK_MULTIPLE)
    step = max(multiples * _CHUNK_MULTIPLE, 1)
    return [slice(begin, min(begin + step, width)) for begin in range(0, width, step)] or [slice(0, 0)]


class _Rows(NamedTuple):
    """A product by rows on the rank that takes longest: all seconds, those of transfers, and of waiting."""

    seconds: float
    transfer: float
    waits: float
    chunks: int
    split: bool


@dataclass(frozen=True)
class _Model:
    """Estimates of products one after the other, of `widths` features of `itemsize` bytes each."""

    facts: ShardFacts
    widths: Sequence[int]
    itemsize: int
    rates: Rates
    packs: bool

    def product(self, nnz: float, width: float) -> float:
        return self.rates.product(nnz, width * self.itemsize)

    def transfer(self, rows: float, width: float) -> float:
        # Of a training step gradients travel as they are.
        sent = (1 + self.itemsize) / 2 if self.packs else self.itemsize
        return self.rates.latency + rows * width * sent / self.rates.link_bytes

    def copy(self, rows: float, width: float) -> float:
        return 2 * rows * width * self.itemsize / self.rates.copy_bytes

    def _on_rank(self, rank: int, way: str, width: int, chunks: int, split: bool) -> _Rows:
        """Estimate a product on a rank: chunks are packed, and each travels behind those before it."""
        facts = self.facts
        widths = [part.stop - part.start for part in slices_of(width, self.itemsize, chunks)]
        rows, nnz = facts.starts[rank + 1] - facts.starts[rank], facts.nnz[rank]
        gathers = way == "gather"
        received = (facts.ranks - 1) * facts.most_rows if gathers else facts.halo[rank]
        # A gather packs the own rows into its result. A halo packs what others need, about what they send;
        # in one product the own rows have to be beside it.
        packed = rows if gathers else self.rates.select * facts.halo[rank] + (0 if split else rows)
        if not received:
            packed = 0
        outside = facts.outside[rank] / max(nnz, 1)
        own = nnz * (1 - max(outside, min(2 * outside, 2 * self.rates.scattered))) if split else 0.0
        now = self.copy(packed, width) + (self.product(own, width) if split else 0.0)
        arrived, transfer, waits = self.copy(packed, widths[0]), 0.0, 0.0
        for part in widths:
            took = self.transfer(received, part) if received else 0.0
            arrived, transfer = arrived + took, transfer + took
            waits += max(arrived - now, 0.0)
            now = max(now, arrived) + self.product(nnz - own, part)
        # A copy is two passes over the rows: they are read and written.
        added = self.rates.add_passes / 2 * self.copy(rows, width) if split else 0.0
        slower = self.rates.beside * max(transfer - waits, 0.0)
        return _Rows(now + added + slower, transfer, waits, len(widths), split)

    def by_rows(self, way: str) -> _Rows:
        """Estimate the fastest of the products by rows, with and without chunks and splitting."""
        found = [
            self._of_all(way, chunks, split)
            for split in (False, True)
            for chunks in range(1, _MOST_CHUNKS + 1)
        ]
        # To the nanosecond, so that rounding does not decide between equal ones: the first is the simplest.
        return min(found, key=lambda rows: round(1e9 * rows.seconds))

    def _of_all(self, way: str, chunks: int, split: bool) -> _Rows:
        """Estimate the products of all widths, each on the rank that takes longest for it."""
        ranks, longest = range(self.facts.ranks), operator.attrgetter("seconds")
        each = [
            max((self._on_rank(rank, way, width, chunks, split) for rank in ranks), key=longest)
            for width in self.widths
        ]
        seconds, transfer, waits = (
            math.fsum(of(rows) for rows in each) for of in map(operator.attrgetter, _Rows._fields[:3])
        )
        return _Rows(seconds, transfer, waits, max(rows.chunks for rows in each), split)

    def features(self) -> float:
        facts, ranks = self.facts, self.facts.ranks
        rows, found = facts.most_rows, 0.0
        for width in self.widths:
            moves = 2 * (self.transfer(rows * (ranks - 1) / ranks, width) + self.copy(rows, width))
            found += moves + self.product(sum(facts.nnz), math.ceil(width / ranks))
        return found


def choose_way(
    facts: ShardFacts,
    width: int | Sequence[int],
    itemsize: int = 4,
    *,
    rates: Rates,
    ways: Sequence[str] = WAYS,
    packs: bool = False,
) -> Choice:
    """Estimate the time of products by each way, and return the fastest with the reasons.

    By rows, a rank multiplies all columns when the features of others have come, chunk by chunk; or the
    columns that it owns while these travel, and then the others. By features, it multiplies the whole matrix
    by its share of the features, between two exchanges of its rows.

    Args:
        facts: counts of the partitioned matrix.
        width: features of a product, or those of each of several.
        itemsize: bytes of a feature.
        rates: rates of the machine.
        ways: the ways to compare.
        packs: whether features of other ranks travel in 8 bits.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range.
    """
    widths = tuple(width) if isinstance(width, Sequence) else (width,)
    if not widths:
        bad_value("width", "is empty; accepted: an integer, or one for each of several products")
    for one in widths:
        check_integer("width", one)
    check_integer("itemsize", itemsize)
    if not isinstance(rates, Rates):
        bad_type("rates", rates, "Rates, as known_rates and measure_rates return them")
    for way in ways:
        check_choice("ways", way, WAYS)
    if not ways:
        bad_value("ways", f"is empty; accepted: some of {', '.join(WAYS)}")
    model, of_each = _Model(facts, widths, itemsize, rates, packs), ", ".join(map(str, widths))
    seconds, reasons, rows = {}, [], {}
    for way in ways:
        if way == "features":
            seconds[way] = model.features()
            reasons.append(
                f"features: {_ms(seconds[way])}: two exchanges of {facts.most_rows} rows, all "
                f"{sum(facts.nnz)} nonzeros by 1/{facts.ranks} of {of_each} features"
            )
            continue
        rows[way] = found = model.by_rows(way)
        seconds[way] = found.seconds
        most = max(facts.halo) if way == "halo" else (facts.ranks - 1) * facts.most_rows
        bits = " as 8 bits a feature" if packs else ""
        behind = "the product of own columns" if found.split else "products of all columns"
        number = f"{found.chunks} chunk{'s' if found.chunks > 1 else ''}"
        reasons.append(
            f"{way}: {_ms(found.seconds)}: {most} rows of other ranks travel{bits} in {_ms(found.transfer)} "
            f"({number}) behind {behind}, with {_ms(found.waits)} of waiting"
        )
    way = min(seconds, key=lambda name: seconds[name])
    reasons.append(f"{way} is estimated to be the fastest for {of_each} features of {itemsize} bytes")
    chunks, split = (rows[way].chunks, rows[way].split) if way in rows else (1, False)
    return Choice(way, chunks, seconds, tuple(reasons), split)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
