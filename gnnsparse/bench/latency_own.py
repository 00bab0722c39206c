"""How long a user's own model takes: as it is, compiled, accelerated, and captured in a CUDA graph."""

from __future__ import annotations

import ast
import copy
import inspect
import io
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.utils import _pytree as pytree

from gnnsparse.bench.arguments import import_file
from gnnsparse.bench.candidates import edge_index_of, first_line, release
from gnnsparse.bench.latency_measure import collect, wait_for, warm_up
from gnnsparse.bench.session import new_table
from gnnsparse.data import GraphDataset, NodeDataset
from gnnsparse.data.custom.load import load_custom
from gnnsparse.errors import bad_type, bad_value, check_integer
from gnnsparse.precision import Precision
from gnnsparse.preprocess.api import prepare
from gnnsparse.runtime.environment import log_shown
from gnnsparse.runtime.timing import CaptureError, capture
from gnnsparse.sparse.operand import SparseOperand
from gnnsparse.train.api import inputs_of, values_of

#: The precisions of products that a model can be accelerated in.
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
#: Names that users give to the numbers of features and of outputs in `__init__`.
_INPUTS = ("in_channels", "num_features", "in_features", "in_dim", "input_dim", "num_node_features")
_OUTPUTS = ("out_channels", "num_classes", "out_features", "out_dim", "output_dim")
#: Relative difference (Frobenius) that other orders of sums make in float32, and that roundings of operands
#: make, in units of the dtype's last place.
_SUMS, _ROUNDINGS = 3e-5, 16


@dataclass(frozen=True)
class LatencyRow:
    """One way to run the model.

    Attributes:
        name: "as it is", "torch.compile", "accelerated" or "CUDA graph", perhaps with a precision.
        p50_ms: milliseconds from a call to the end of its work that half of the calls did not exceed; None:
            it was not measured, and `note` says why.
        p90_ms: that 90 % did not exceed.
        p99_ms: that 99 % did not exceed.
        memory_mib: the most memory that torch had allocated beside the model and its input, in MiB: on a GPU
            from the first call on, on a CPU in one of the later calls.
        difference: of the output from the first row's, relative (Frobenius); None for the first row.
        note: why it was not measured, what is wrong with its output, or which layers run on PyG.
        ok: whether it was measured and its output is the first row's, up to roundings.
    """

    name: str
    p50_ms: float | None = None
    p90_ms: float | None = None
    p99_ms: float | None = None
    memory_mib: float | None = None
    difference: float | None = None
    note: str = ""
    ok: bool = False


@dataclass(frozen=True)
class Latencies:
    """The rows of a model; `print` shows them as a table.

    Attributes:
        model: the name of its class.
        device: the type of the device, "cpu" or "cuda".
        rows: tuple of LatencyRow, the model as it is first.
    """

    model: str
    device: str
    rows: tuple[LatencyRow, ...]

    def table(self) -> Table:
        """Return the table of a terminal."""
        numbers = ("p50, ms", "p90", "p99", "memory, MiB", "speed", "difference")
        table, first = new_table(f"{self.model} on {self.device}", ("",), numbers), self.rows[0].p50_ms
        if any(row.note for row in self.rows):
            table.add_column("note", overflow="fold")
        for row in self.rows:
            times = row.p50_ms, row.p90_ms, row.p99_ms
            speed = f"{first / row.p50_ms:.2f}" if first and row.p50_ms else ""
            table.add_row(
                row.name, *("" if ms is None else f"{ms:.3f}" for ms in times),
                "" if row.memory_mib is None else f"{row.memory_mib:.1f}", speed,
                "" if row.difference is None else f"{row.difference:.1e}", *([row.note] if row.note else []),
            )  # fmt: skip
        return table

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=160, color_system=None)
        console.print(self.table())
        return console.file.getvalue().rstrip()  # type: ignore[attr-defined]


@torch.no_grad()
def latency(
    model: torch.nn.Module,
    x: torch.Tensor,
    graph: torch.Tensor | SparseOperand,
    inputs: Mapping[str, Any] | None = None,
    *,
    precisions: tuple[str, ...] = ("fp32",),
    compiles: bool = True,
    calls: int = 200,
    seconds: float = 5.0,
) -> Latencies:
    """Measure how long calls of your model take, one after the other, in evaluation mode without gradients.

    It is measured as it is; if it has layers of PyG, accelerated by gnnsparse.interop.pyg.accelerate; on a
    GPU that captured in a CUDA graph; and compiled by torch.compile, on a GPU with mode="reduce-overhead".
    Copies of the model are measured. Outputs are compared with those of the model as it is.

    Args:
        model: a module, which is called as model(x, graph, **inputs).
        x: features [nodes, F], on the device that is measured.
        graph: an edge_index, int64 [2, edges], or an operand, on the device of x.
        inputs: further arguments of the model by name, such as edge_weight or edge_attr.
        precisions: those of the products of the accelerated model, among fp32, tf32, fp16 and bf16.
        compiles: whether torch.compile is measured, which can take a minute.
        calls: calls of each row.
        seconds: time that the calls of a row may take; slow models are called less often.

    Returns:
        The rows. A way that fails has a row that says why.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is none of those accepted.
        Exception: what the model raises as it is.
    """
    _check(model, x, graph)
    check_integer("calls", calls)
    for name in precisions:
        if name not in PRECISIONS:
            bad_value("precisions", f"got {name!r}; accepted: {', '.join(PRECISIONS)}")
    bench = _Bench(partial(_call, x=x, graph=graph, inputs=dict(inputs or {})), x.device, calls, seconds)
    own = copy.deepcopy(model).to(x.device).eval()
    bench.add("as it is", own)
    captured, has_pyg = [("CUDA graph", own, Precision.FP32)], _has_pyg(own)
    if has_pyg:
        captured = []
        for precision in map(Precision, precisions):
            name = "accelerated" if precision is Precision.FP32 else f"accelerated, {precision.value}"
            accelerated = _accelerated(own, precision)
            bench.add(name, accelerated, precision, note=partial(_said, accelerated))
            captured.append((f"{name}, CUDA graph", accelerated, precision))
    for name, module, precision in captured if x.is_cuda else ():
        bench.add(name, module, precision, captures=True)
    if compiles:  # last, because a compiler that fails may leave a GPU unusable
        mode = "reduce-overhead" if x.is_cuda else None
        compiled: Any = torch.compile(copy.deepcopy(own), mode=mode)
        bench.add("torch.compile", compiled)
        torch._dynamo.reset()
    return Latencies(type(model).__name__, x.device.type, tuple(bench.rows))


def _check(model: Any, x: Any, graph: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        bad_type("model", model, "a torch.nn.Module")
    if not isinstance(x, torch.Tensor):
        bad_type("x", x, "a tensor of features [nodes, F]")
    if not isinstance(graph, (torch.Tensor, SparseOperand)):
        bad_type("graph", graph, "an edge_index [2, edges], or an operand of gnnsparse.prepare")
    if graph.device != x.device:
        bad_value("graph", f"is on {graph.device}; accepted: {x.device}, as x")


def _call(model: Any, x: torch.Tensor, graph: Any, inputs: dict[str, Any]) -> Any:
    return model(x, graph, **inputs)


def _has_pyg(model: torch.nn.Module) -> bool:
    if "torch_geometric" not in sys.modules:
        return False
    from gnnsparse.interop.pyg import report

    return bool(report(model).rows)


def _accelerated(model: torch.nn.Module, precision: Precision) -> torch.nn.Module:
    from gnnsparse.interop.pyg import accelerate

    given = None if precision is Precision.FP32 else precision  # else the dtype of the features decides
    return accelerate(copy.deepcopy(model), given, convert="always")


def _said(model: torch.nn.Module) -> str:
    """Return how many layers ran accelerated if not all did, and why the first other one did not."""
    from gnnsparse.interop.pyg import report

    rows = report(model).rows
    left = [row for row in rows if row.runs_on == "PyG"]
    if not left:
        return ""
    return f"{len(rows) - len(left)} of {len(rows)} layers accelerated; {left[0].name}: {left[0].why}"


class _Bench:
    """Measures ways to run a model, each of which adds a row; `call` calls a module with the input."""

    def __init__(self, call: Callable[[Any], Any], device: torch.device, calls: int, seconds: float) -> None:
        self._call, self._device, self._calls, self._seconds = call, device, calls, seconds
        self._first: list[torch.Tensor] | None = None
        self.rows: list[LatencyRow] = []

    def add(
        self, name: str, model: Any, precision: Precision = Precision.FP32, *, captures: bool = False,
        note: Callable[[], str] = str,
    ) -> None:  # fmt: skip
        """Measure a model and add its row; what the first one raises is raised."""
        try:
            row = self._measured(LatencyRow(name), partial(self._call, model), precision, captures)
            self.rows.append(replace(row, note="; ".join(filter(None, (row.note, note())))))
        except Exception as error:  # compilers and captures raise errors of any type
            if self._first is None:
                raise
            kind = "" if isinstance(error, CaptureError) else f"{type(error).__name__}: "
            self.rows.append(LatencyRow(name, note=f"failed: {kind}{first_line(error)}"))
        finally:
            release()

    def _measured(
        self, row: LatencyRow, call: Callable[[], Any], precision: Precision, captures: bool
    ) -> LatencyRow:
        cuda, device = self._device.type == "cuda", self._device
        before = torch.cuda.memory_allocated(device) if cuda else 0
        if cuda:
            torch.cuda.reset_peak_memory_stats(device)
        result: list[Any] = []
        if captures:

            def keep() -> None:
                result[:] = [call()]

            call = capture(keep, 1)
            for kept in _tensors(result):
                kept.fill_(float("nan"))  # so that a replay that writes nothing shows
            call()
        else:
            result = [call()]
        # Copies: CUDA graphs write their results into the same memory again.
        output = [tensor.clone() for tensor in _tensors(result)]
        del result[:]
        warm_up(call, device, self._seconds)
        times = collect(call, device, calls=self._calls, seconds=self._seconds)
        wait_for(device)()
        memory = torch.cuda.max_memory_allocated(device) - before if cuda else _peak(call)
        found = {key: times[key] for key in ("p50_ms", "p90_ms", "p99_ms")}
        return self._judged(replace(row, **found, memory_mib=memory / 2**20), output, precision)

    def _judged(self, row: LatencyRow, output: list[torch.Tensor], precision: Precision) -> LatencyRow:
        """Return a row that says how far its output is from the first one's."""
        if self._first is None:
            self._first = output
            return replace(row, ok=True)
        shapes = [[tuple(t.shape) for t in tensors] for tensors in (output, self._first)]
        if shapes[0] != shapes[1]:
            return replace(row, note=f"WRONG: outputs of shapes {shapes[0]}, as it is {shapes[1]}")
        difference = max(map(_difference, output, self._first), default=0.0)
        narrowest = max((torch.finfo(t.dtype).eps for t in self._first), default=0.0)
        rounded = torch.float16 if precision is Precision.TF32 else precision.storage
        eps = max(narrowest, torch.finfo(rounded).eps)
        allowed = _SUMS + _ROUNDINGS * eps
        ok = difference <= allowed  # and not NaN
        note = "" if ok else f"WRONG: its output differs by {difference:.1e}, {allowed:.0e} are allowed"
        return replace(row, difference=difference, note=note, ok=ok)


def _tensors(result: Any) -> list[torch.Tensor]:
    """Return the floating-point tensors of an output, which may be nested."""
    leaves = pytree.tree_leaves(result)
    return [t for t in leaves if isinstance(t, torch.Tensor) and t.is_floating_point()]


def _difference(output: torch.Tensor, first: torch.Tensor) -> float:
    if torch.equal(output, first):
        return 0.0
    wide = first.double()
    return float((output.double() - wide).norm() / wide.norm().clamp(min=torch.finfo(torch.float32).tiny))


def _peak(call: Callable[[], Any]) -> int:
    """Return the most bytes that torch has allocated at a time in a call on the CPU."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # it would report its own progress on stderr
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu], profile_memory=True) as profile:
        call()
    events: Any = profile.profiler and profile.profiler.kineto_results.events()
    total = most = 0
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        total += event.nbytes()
        most = max(most, total)
    return most


# The command: a class in a file of the user's, and a graph of the user's.


def is_own(name: str) -> bool:
    """Return whether a name of the option --model is FILE.py:NAME."""
    return ".py:" in name


def own_arguments(text: str) -> list[tuple[str, Any]]:
    """Parse `--model-args`: NAME=VALUE with commas between them; numbers and names as Python writes them."""
    found = []
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or not name.isidentifier():
            bad_value("--model-args", f"got {part!r}; accepted: NAME=VALUE, such as hidden=64")
        try:
            found.append((name, ast.literal_eval(value)))
        except (ValueError, SyntaxError):
            found.append((name, value))
    return found


def own_model(name: str, sizes: tuple[int, int | None], arguments: Mapping[str, Any]) -> torch.nn.Module:
    """Make the model of FILE.py:NAME: the file is run, and its errors are raised as they are.

    Args:
        name: a file of Python and the name of a class or of a function that returns a model.
        sizes: numbers of features and of classes, for arguments that are named so; None: unknown.
        arguments: its other arguments.

    Raises:
        ValueError: there is no such file or name, or it takes other arguments.
    """
    file, _, attribute = name.rpartition(":")
    path = Path(file).resolve()
    if not path.is_file():
        bad_value("--model", f"there is no file {file!r}; accepted: FILE.py:NAME, or a model of gnnsparse")
    module = import_file(path)
    make = getattr(module, attribute, None)
    if not callable(make):
        own, found = module.__name__, vars(module)
        kinds = [n for n, v in found.items() if isinstance(v, type) and v.__module__ == own]
        bad_value("--model", f"{file} has no {attribute!r}; accepted: {', '.join(kinds) or 'a class in it'}")
    made = make(**_filled(attribute, inspect.signature(make), sizes, arguments))
    if not isinstance(made, torch.nn.Module):
        bad_type("--model", made, f"a class of torch.nn.Module, or a function that returns one: {name}")
    return made


def _filled(
    name: str, signature: inspect.Signature, sizes: tuple[int, int | None], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a model; raise if some are missing or unknown."""
    parameters, filled = signature.parameters, dict(given)
    for names, size in zip((_INPUTS, _OUTPUTS), sizes, strict=True):
        filled |= {key: size for key in names if size and key in parameters and key not in given}
    any_name = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if not any_name and (unknown := [key for key in filled if key not in parameters]):
        accepted = ", ".join(parameters) or "none"
        bad_value("--model-args", f"{name} has no argument {unknown[0]!r}; accepted: {accepted}")
    ordinary = [p for p in parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if missing := [p.name for p in ordinary if p.default is p.empty and p.name not in filled]:
        bad_value(
            "--model-args",
            f"{name}{signature} needs {', '.join(missing)}; accepted: --model-args {missing[0]}=VALUE. Only "
            f"features ({', '.join(_INPUTS)}) and classes ({', '.join(_OUTPUTS)}) are known from the graph",
        )
    return filled


def _load_weights(model: torch.nn.Module, file: Path) -> None:
    try:
        model.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    except Exception as error:  # torch raises errors of many types for files that are something else
        reason = " ".join(str(error).split())[:400]
        bad_value("--weights", f"{file} does not fit: {reason}; accepted: a state_dict of the model")


def _read_graph(path: Path) -> tuple[Any, int | None]:
    """Return a graph of a user's own and its number of classes; None: it has no labels, which is no fault."""
    try:
        with log_shown("gnnsparse.data", lambda line: None):
            data = load_custom(path)
            outputs: int | None = getattr(data, "num_classes", None)
            if not isinstance(data, (NodeDataset, GraphDataset)):  # one of edges or links
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # which have been shown
                    data = load_custom(path, task="node", classes=2)  # as for predictions
    except (ValueError, TypeError, OSError, ImportError) as error:
        bad_value("--graph", f"{path} can't be read: {error}")
    if isinstance(data, GraphDataset):
        bad_value("--graph", f"{path} has several graphs; accepted: a file or folder with one graph")
    return data, outputs


def own_latency(
    name: str, graph: Path, device: str, *, weights: Path | None, arguments: Mapping[str, Any], **options: Any
) -> Latencies:
    """Measure the model FILE.py:NAME on a graph that `load_custom` reads; see `latency`."""
    data, outputs = _read_graph(graph)
    model = own_model(name, (data.num_features, outputs), arguments)
    if weights is not None:
        _load_weights(model, weights)
    x, csr, values = data.x.to(device), data.graph.csr.to(torch.device(device)), data.graph.values
    if inputs_of(model) == "operand":
        operand = prepare(data.graph, values=values_of(model), cache=False)
        return latency(model, x, operand.to(device), **options)
    found = {"edge_index": edge_index_of(csr)} | ({} if values is None else {"edge_weight": values})
    if data.edge_features is not None:
        found = data.edge_features.attributes
    taken = inspect.signature(model.forward).parameters
    inputs = {k: v.to(device) for k, v in found.items() if k in taken and k != "edge_index"}
    return latency(model, x, found["edge_index"].to(device), inputs, **options)
