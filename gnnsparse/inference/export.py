"""`gnnsparse export`: a trained model as a package of AOTInductor, and what runs it in a server.

A package is compiled code and weights in one file. It needs neither the model's class nor its recipe; sparse
operations in it are operators of this package, in Python.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from gnnsparse.bench.arguments import add_device
from gnnsparse.errors import bad_value, check_flag, check_integer, check_tensor, path_of
from gnnsparse.inference.loading import LoadError, load
from gnnsparse.inference.predict import load_data
from gnnsparse.train.trained import ForEdges, LoadedModel, ModelRecipe, Prediction
from gnnsparse_cli import file_option

__all__ = ["DESCRIPTION", "Package", "add_arguments", "export_model", "load_package", "run"]

DESCRIPTION = """\
Compiles a trained model of nodes or graphs into one file, a package of AOTInductor, for this kind of machine.
gnnsparse.inference.export.load_package runs it. A C++ compiler is needed here, and none where it runs.
"""
#: The name of the package's description in what AOTInductor stores as metadata.
_ABOUT = "gnnsparse"
_FLOAT, _INTEGER = (torch.float32,), (torch.int64,)
_FLOATS: dict[str, Any] = {"dtype": torch.float32}  # whatever torch's default dtype is
#: The least size of `graph_ptr` that a program can take: torch.export treats a single graph apart.
_LEAST = 3
#: How far logits of a package may be from those of the model, relative to the largest: compiled code adds in
#: another order, and in 16 bits it rounds elsewhere.
_TOLERANCE = {"fp32": 1e-4, "tf32": 1e-2}


def export_model(
    model: LoadedModel, path: str | os.PathLike[str], *, graph: Any = None, edge_weight: bool = False
) -> float:
    """Compile a loaded model of nodes or graphs into a package, and compare the package with the model.

    Args:
        model: what `gnnsparse.load` returned, on the type of device that the package is for.
        path: the file, whose name ends in .pt2; an existing one is replaced.
        graph: the graph of all calls, in a form that `gnnsparse.prepare` takes, which becomes a part of the
            package; None: each call has a graph of its own, of any size.
        edge_weight: whether a call has a weight for each edge, too; without one all edges weigh 1. Not with
            `graph`, which has its own.

    Returns:
        The largest difference of a logit from the model's, on random features, relative to the largest logit.

    Raises:
        ValueError: the name has another ending, `for_edges` refuses the model or the graph,
            `edge_weight` is given with a graph, the model can't be compiled, as without a C++ compiler, or
            the package differs.
    """
    target = path_of("path", path, "a file to write")
    if target.suffix != ".pt2":
        bad_value("path", f"got {str(target)!r}; accepted: a name that ends in .pt2")
    if not target.parent.is_dir():
        bad_value("path", f"there is no folder {str(target.parent)!r}; accepted: a file in one that is there")
    if check_flag("edge_weight", edge_weight) and graph is not None:
        bad_value("edge_weight", "goes without a graph, which has its weights; accepted: False")
    module = model.for_edges(graph)
    arguments = _example(model, module.num_nodes, edge_weight)
    about = {
        "in_channels": model.recipe.in_channels,
        "nodes": module.num_nodes,
        "inputs": [*arguments],
        "several_labels": model.recipe.several_labels,
        "regression": model.recipe.regression,
        "device": model.device.type,
    }
    _compile(module, arguments, target, json.dumps(about))
    with torch.no_grad():
        want = module(**arguments)
    error = float(
        (load_package(target)(*arguments.values()) - want).abs().max() / want.abs().max().clamp(min=1e-30)
    )
    if not error <= _TOLERANCE.get(model.recipe.precision, 5e-2):
        bad_value("model", f"the compiled package differs from it by {error:.2g} of the largest logit; "
                  "accepted: a model that AOTInductor compiles rightly")  # fmt: skip
    return error


def _example(model: LoadedModel, num_nodes: int | None, weighted: bool) -> dict[str, torch.Tensor]:
    """Return random arguments of a module by name: features, and edges if it has no graph of its own."""
    draws: dict[str, Any] = {"device": "cpu", "generator": torch.Generator("cpu").manual_seed(0)}
    found = {"x": torch.randn(num_nodes or 24, model.recipe.in_channels, **_FLOATS, **draws)}
    if num_nodes is None:
        found["edge_index"] = torch.randint(24, (2, 80), **draws)
        if weighted:
            found["edge_weight"] = torch.rand(80, **_FLOATS, **draws)
    if model.recipe.task == "graph":
        found["graph_ptr"] = torch.tensor([0, 9, 15, 24], device="cpu")
    return {name: tensor.to(model.device) for name, tensor in found.items()}


def _compile(module: ForEdges, arguments: dict[str, torch.Tensor], target: Path, about: str) -> None:
    nodes, edges = torch.export.Dim("nodes"), torch.export.Dim("edges")
    sizes = {"x": {0: nodes}, "edge_index": {1: edges}, "edge_weight": {0: edges},
             "graph_ptr": {0: torch.export.Dim("offsets", min=_LEAST)}}  # fmt: skip
    shapes = None if module.num_nodes is not None else {name: sizes[name] for name in arguments}
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, of its own insides
            program = torch.export.export(module, (), arguments, dynamic_shapes=shapes, strict=False)
            torch._inductor.aoti_compile_and_package(
                program, package_path=str(target), inductor_configs={"aot_inductor.metadata": {_ABOUT: about}}
            )
    except RuntimeError as error:  # of torch.export, of its compiler, and of the C++ compiler
        reason = " ".join(str(error).split())[:300]
        bad_value("model", f"can't be compiled ({reason}); accepted: one that torch.export takes, and a C++ "
                  "compiler, which CXX may name")  # fmt: skip


class Package:
    """A package of `gnnsparse export` that runs in this process, called by any number of threads.

    AOTInductor lets a call wait for one that runs while it keeps Python from going on, so that two calls of
    its own loader, of which one runs an operator in Python, wait for each other forever. Here calls wait in
    Python.

    Attributes:
        inputs: the names of the tensors of a call: "x"; if each call has a graph of its own, "edge_index" and
            perhaps "edge_weight"; of a model of graphs "graph_ptr".
        device: where it runs.
    """

    def __init__(self, compiled: Any, about: dict[str, Any], threads: int) -> None:
        self._compiled, self._about = compiled, about
        self._free = threading.BoundedSemaphore(threads)
        self.inputs, self.device = tuple(about["inputs"]), torch.device(about["device"])

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Compute the logits, float32 [nodes, out_channels] or [graphs, out_channels], on `device`.

        Args:
            tensors: those that `inputs` names, on any device: x, float32 [nodes, in_channels]; edge_index,
                int64 [2, edges], sources over targets, from 0 to nodes - 1; edge_weight, float32 [edges];
                graph_ptr, int64 [graphs + 1], the first node of each graph, and the number of nodes.

        Raises:
            TypeError: a tensor is missing, is none or has another dtype.
            ValueError: a shape is wrong, or an edge has a node that is not there.
        """
        if len(tensors) != len(self.inputs) or any(tensor is None for tensor in tensors):
            raise TypeError(f"tensors: got {len(tensors)}; accepted: {', '.join(self.inputs)}")
        given = dict(zip(self.inputs, tensors, strict=True))
        self._check(**given)
        given = {name: tensor.detach().to(self.device).contiguous() for name, tensor in given.items()}
        if (offsets := given.get("graph_ptr")) is not None:  # graphs without nodes, so that there are enough
            given["graph_ptr"] = torch.cat([offsets, offsets[-1:].expand(_LEAST)])
        with self._free, torch.no_grad():
            out: torch.Tensor = self._compiled(**given)
        return out if offsets is None else out[:-_LEAST]

    def _check(self, x: Any, edge_index: Any = None, edge_weight: Any = None, graph_ptr: Any = None) -> None:
        check_tensor("x", x, dtypes=_FLOAT, shape=(self._about["nodes"], self._about["in_channels"]))
        if edge_index is not None:
            check_tensor("edge_index", edge_index, dtypes=_INTEGER, shape=(2, None))
            low, high = edge_index.aminmax() if edge_index.numel() else (0, -1)
            if low < 0 or high >= x.shape[0]:
                accepted = f"0 to {x.shape[0] - 1}, the rows of x"
                bad_value("edge_index", f"has nodes from {int(low)} to {int(high)}; accepted: {accepted}")
        if edge_weight is not None:
            check_tensor("edge_weight", edge_weight, dtypes=_FLOAT, shape=(edge_index.shape[1],))
        if graph_ptr is not None:
            check_tensor("graph_ptr", graph_ptr, dtypes=_INTEGER, shape=(None,))
            ends = graph_ptr[[0, -1]].tolist() if len(graph_ptr) else []
            if ends != [0, x.shape[0]] or bool((graph_ptr.diff() < 0).any()):
                bad_value("graph_ptr", f"does not ascend from 0 to {x.shape[0]}; accepted: offsets that do")

    def warm_up(self) -> None:
        """Call the package once, with zeros, so that no request waits for what the first call loads."""
        nodes = self._about["nodes"] or 2
        known = {
            "x": torch.zeros(nodes, self._about["in_channels"], device="cpu", **_FLOATS),
            "edge_index": torch.zeros(2, 1, dtype=torch.int64, device="cpu"),
            "edge_weight": torch.zeros(1, device="cpu", **_FLOATS),
            "graph_ptr": torch.tensor([0, nodes], device="cpu"),
        }
        self(*(known[name] for name in self.inputs))

    def predict(self, *tensors: torch.Tensor) -> Prediction:
        """Compute logits, probabilities and classes; arguments and errors are those of a call."""
        return Prediction(self(*tensors), self._about["several_labels"], self._about["regression"])


def load_package(path: str | os.PathLike[str], *, threads: int = 1) -> Package:
    """Load a package that `gnnsparse export` wrote. Its code runs: load only files that you trust.

    Args:
        path: the file.
        threads: how many calls run at once; each has memory of its own for intermediate results. Others wait.

    Raises:
        TypeError: an argument is of another type.
        LoadError: there is no such file, or it is no package of `gnnsparse export` for this machine.
    """
    from torch._inductor.package.package import load_package as load_compiled

    file = path_of("path", path, "a file that gnnsparse export wrote")
    check_integer("threads", threads)
    if file.suffix != ".pt2" or not file.is_file():
        raise LoadError(f"path: there is no file {str(file)!r}; accepted: one that ends in .pt2")
    try:
        compiled = load_compiled(str(file), num_runners=threads)
        about = json.loads(compiled.get_metadata()[_ABOUT])
    except (RuntimeError, KeyError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise LoadError(f"path: {str(file)!r} is no package of gnnsparse export, or not for this machine "
                        f"({reason})") from error  # fmt: skip
    return Package(compiled, about, threads)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("source", metavar="RUN", help="the folder of a run, or a checkpoint in it")
    parser.add_argument(
        "--out", type=partial(file_option, endings=(".pt2",)), required=True, metavar="FILE.pt2",
        help="the package; an existing file is replaced",
    )  # fmt: skip
    parser.add_argument(
        "--graph", nargs="?", const="", metavar="NAME_OR_FILE",
        help="make a graph part of the package: that of a data set of train.py, or of a file or folder as "
        "dataset=custom takes; without a name that of the training. Default: each call has its graph",
    )  # fmt: skip
    parser.add_argument("--root", metavar="DIR", help="the folder with the files of a published data set")
    parser.add_argument("--edge-weight", action="store_true", help="each call has weights of its edges, too")
    add_device(parser)


def notes(recipe: ModelRecipe, inputs: Sequence[str]) -> list[str]:
    """Return what whoever calls a package has to know of the training: a line for each thing."""
    said = []
    if names := recipe.feature_names:
        said.append(f"columns of x: {', '.join(names)}")
    scale = (recipe.run.get("dataset", {}).get("transform") or {}).get("scale", {})
    if scale:
        how = [f"{name} (mean {mean:.6g}, deviation {width:.6g})" for name, (mean, width) in scale.items()]
        said.append(f"standardized, as in training, is to be: {', '.join(how)}")
    if recipe.run.get("edge_weights") and "edge_index" in inputs and "edge_weight" not in inputs:
        said.append("warning: edges had weights in the training, and weigh 1 here; --edge-weight takes them")
    return said


def run(options: argparse.Namespace) -> int:
    """Write the package, say what its calls take, and return the exit status 0."""
    sys.path.append(os.getcwd())  # for the module of the models, as `gnnsparse predict` does
    model, graph = load(options.source, device=options.device), None
    if options.graph is not None:
        graph = load_data(model, options.graph or None, options.root)[2].graph
    error = export_model(model, options.out, graph=graph, edge_weight=options.edge_weight)
    package = load_package(options.out)
    within = f"within {error:.1g} of the model's, relative to the largest"
    difference = within if error else "the model's, bit for bit"
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"{options.out}: takes {', '.join(package.inputs)}; runs on {package.device}\n"
        f"Tried on random features: its logits are {difference}."
    )
    for line in notes(model.recipe, package.inputs):
        console.print(line)
    return 0
