"""The registry of reorderings, and `reorder`, which computes a row order and measures its locality."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar, cast

import torch

from gnnsparse.errors import bad_type, bad_value, check_choice
from gnnsparse.formats.csr import Csr, Locality, check_csr, check_permutation, coo_to_csr, measure_locality
from gnnsparse.registry import Names, Option, Registry, check_options
from gnnsparse.sparse.graph import SparseGraph


def undirected(csr: Csr) -> Csr:
    """Return the structure of A + A^T without its diagonal, columns ascending; A is on the CPU."""
    row, col = csr.row_index().to(torch.int32), csr.indices
    off_diagonal = row != col
    row, col = row[off_diagonal], col[off_diagonal]
    return coo_to_csr(torch.cat([row, col]), torch.cat([col, row]), csr.rows, csr.cols)[0]


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True, eq=False)
class Found:
    """What a reordering's function may return: an order, and what it wants to report of it.

    Attributes:
        order: a permutation of the rows, an integer tensor [rows].
        details: what is reported beside the order, as plain values of JSON by name.
    """

    order: torch.Tensor
    details: dict[str, Any] = field(default_factory=dict)


OrderFunction = TypeVar("OrderFunction", bound="Callable[..., torch.Tensor | Found]")


@dataclass(frozen=True)
class Method:
    """A reordering.

    Attributes:
        name: the name that users give.
        function: computes the order. It is called with a matrix on the CPU and every option by keyword, and
            returns a permutation of the rows, an integer tensor [rows]: row i of the reordered matrix is row
            order[i] of the given one; or a Found with such an order. Callers use `find` or `order`, which
            check what goes in and what comes out.
        options: the options by name. If there are integers `height` and `width` whose default is 0,
            `prepare` replaces that by the rows of a panel and the columns of a block of its format.
        square: whether the matrix has to be square.
        symmetric: whether the order of A is used for A^T, too. False: an order is computed for A^T.
        package: an optional package that the function imports; None: it imports none.
        empty: whether the function is called for a matrix without nonzeros. False: such a matrix keeps its
            order.
        undirected: whether the function gets A + A^T without its diagonal in place of A.
        most_nnz: the most nonzeros that the function accepts; None: no limit.
    """

    name: str
    function: Callable[..., torch.Tensor | Found]
    options: Mapping[str, Option] = field(default_factory=dict)
    square: bool = False
    symmetric: bool = False
    package: str | None = None
    empty: bool = False
    undirected: bool = False
    most_nnz: int | None = None

    def __post_init__(self) -> None:
        takes = list(inspect.signature(self.function).parameters)[1:]
        if takes != list(self.options):
            bad_value("options", f"got {list(self.options)} for {self.name}; accepted: {takes}")
        for name in ("symmetric", "undirected"):
            if getattr(self, name) and not self.square:
                bad_value(name, "got True; accepted: False where the matrix need not be square")
        for name, option in self.options.items():
            option.check(name, option.default)

    def check_options(self, given: Mapping[str, Any] | None, argument: str = "reorder") -> dict[str, Any]:
        """Check the given options, and return all options of the reordering with defaults for the others.

        Raises:
            TypeError: an option is of another type.
            ValueError: an option is unknown or out of range.
        """
        defaults = {name: option.default for name, option in self.options.items()}
        return defaults | check_options(argument, self.name, self.options, given)

    def _check_nnz(self, csr: Csr, what: str) -> None:
        most = self.most_nnz
        if most is not None and csr.nnz > most:
            bad_value("reorder", f"{self.name!r} takes at most {most} nonzeros; {what} has {csr.nnz}")

    def order(self, csr: Csr, **options: Any) -> torch.Tensor:
        """Return the order that `find` finds, int32 [rows]; see there."""
        return self.find(csr, **options).order

    def find(self, csr: Csr, **options: Any) -> Found:
        """Check a matrix and the options, compute the order, and check it.

        Args:
            csr: the matrix, on the CPU.
            options: options of the reordering.

        Returns:
            The order, int32 [rows], a permutation of the rows, and what the function reports of it.

        Raises:
            TypeError: an option is of another type, or the function returned no tensor of integers.
            ValueError: an option or the matrix is not accepted, or the function returned no permutation.
            ImportError: the package that the reordering needs is not installed.
        """
        options = self.check_options(options)
        if self.square and csr.rows != csr.cols:
            bad_value("reorder", f"{self.name!r} needs a square matrix, got {csr.rows} x {csr.cols}")
        check_csr("graph", csr)
        self._check_nnz(csr, "the matrix")
        if csr.nnz == 0 and not self.empty:
            return Found(torch.arange(csr.rows, dtype=torch.int32, device="cpu"))
        self.check_package()
        if self.undirected:
            csr = undirected(csr)
            self._check_nnz(csr, "A + A^T")
        found = self.function(csr, **options)
        order, details = (found.order, found.details) if isinstance(found, Found) else (found, {})
        return Found(self._permutation(order, csr.rows), details)

    def _permutation(self, order: Any, rows: int) -> torch.Tensor:
        """Return an order as int32 [rows] if it is a permutation: native code reads memory at its indices."""
        wrong = f"{self.name!r} returned no permutation of the {rows} rows"
        if not isinstance(order, torch.Tensor) or order.layout != torch.strided:
            bad_type("reorder", order, f"an integer tensor [rows]; {wrong}")
        if order.dtype not in _INTEGERS or order.device.type not in ("cpu", "cuda"):
            bad_type("reorder", order, f"integers on the CPU; {wrong}")
        if order.shape != (rows,):
            bad_value("reorder", f"{wrong}, but a tensor of shape {tuple(order.shape)}")
        order = order.detach().cpu().to(torch.int64).contiguous()
        try:
            check_permutation("order", order, rows)
        except ValueError as error:
            bad_value("reorder", f"{wrong}: {error}")
        return order.to(torch.int32)

    @property
    def missing_package(self) -> str | None:
        """The package that the reordering needs if it is not installed, else None. Nothing is imported."""
        is_missing = self.package is not None and importlib.util.find_spec(self.package) is None
        return self.package if is_missing else None

    def check_package(self) -> None:
        """Raise an ImportError if the package that the reordering needs can't be imported."""
        if self.package is None:
            return
        try:
            importlib.import_module(self.package)
        except ImportError as error:
            needs = f"reorder={self.name!r} needs the package {self.package}"
            raise ImportError(f"{needs}: pip install {self.package}") from error


#: The reorderings by name.
METHODS: Registry[Method] = Registry("reorder")

#: The names that `reorder` accepts: "none" and those of the registered reorderings.
REORDERINGS = Names(METHODS, "none")


def register_reordering(name: str, **attributes: Any) -> Callable[[OrderFunction], OrderFunction]:
    """Register the decorated function as a reordering.

    The name of the function stands for `Method.order` afterwards: whoever calls it gets the checks as well.

    Args:
        name: the name that users give.
        attributes: further attributes of Method.

    Raises:
        TypeError: Method has no such attribute.
        ValueError: the name is taken, or the options are not the function's parameters after the matrix.
    """

    def register(function: OrderFunction) -> OrderFunction:
        method = Method(name, function, **attributes)
        METHODS.register(name, method)

        @functools.wraps(function)
        def checked(csr: Csr, *given: Any, **more: Any) -> torch.Tensor:
            return method.order(csr, **dict(zip(method.options, given, strict=False)), **more)

        return cast(OrderFunction, checked)

    return register


@dataclass(frozen=True, eq=False)
class Reordering:
    """The result of `reorder`.

    Attributes:
        method: name of the reordering.
        order: int32 [rows] on the CPU: row i of the reordered matrix is row order[i] of the graph. None: the
            order is unchanged.
        seconds: wall time of the reordering.
        before, after: locality of the graph's own order and of `order`.
        details: what the reordering itself reports, as plain values: the row shuffle's tiles, the objective
            after each stage of "jaccard", the orders that "auto" tried; empty for the others.
    """

    method: str
    order: torch.Tensor | None
    seconds: float
    before: Locality
    after: Locality
    details: dict[str, Any] = field(default_factory=dict)

    def report(self) -> dict[str, Any]:
        """Return everything but the order as plain values."""
        plain = asdict(replace(self, order=None))
        return {name: value for name, value in plain.items() if name != "order"}


def reorder(graph: SparseGraph, method: str = "none", **options: Any) -> Reordering:
    """Compute a row order of a graph, and measure its locality.

    Args:
        graph: the graph, on any device; reorderings run on the CPU.
        method: one of REORDERINGS: "none"; "degree": longest rows first; "rcm": reverse Cuthill-McKee;
            "metis": parts of about `part_size` (128) rows, which needs the package pymetis; "community":
            communities found by local moving, in at most `rounds` (10) sweeps at each level, at a
            `resolution` (1.0) of the modularity. "community" is fast enough for large graphs, and its
            `columns_32` is never above that of the graph's own order. The last three accept square matrices
            only and work on A + A^T.
            "row-shuffle" (Tiled-CSR), "jaccard" (RSH-SpMM), "tca" (like DTC-SpMM's) and "auto", the best of
            several by counts, take any matrix; their functions in `gnnsparse.preprocess.reorder` document
            their options. `register_reordering` adds further ones.
        options: options of the reordering, those in parentheses.

    Returns:
        The order, its time and its locality. The order does not depend on the number of threads.

    Raises:
        TypeError: `method` or an option is of another type, or a registered function returned no integers.
        ValueError: there is no such reordering or option, a value is out of range, or the reordering needs
            a square matrix, fewer nonzeros, or returned no permutation.
        ImportError: the package that the reordering needs is not installed.
        MemoryError: the reordering needs more scratch memory than this machine has.
    """
    check_choice("reorder", method, REORDERINGS)
    csr = graph.csr.to(torch.device("cpu"))
    if method == "none":
        check_options("reorder", method, {}, options)
        before = measure_locality(csr, None)
        return Reordering(method, None, 0.0, before, before)
    start = time.perf_counter()
    found = METHODS[method].find(csr, **options)
    seconds = time.perf_counter() - start
    before = measure_locality(csr, None)
    if csr.nnz == 0 and not METHODS[method].empty:
        return Reordering(method, None, 0.0, before, before)
    after = measure_locality(csr, found.order)
    return Reordering(method, found.order, seconds, before, after, found.details)
