"""`load`, which makes the model of a checkpoint, and predictions by it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gnnsparse.errors import bad_type, bad_value, check_tensor
from gnnsparse.inference.edges import EdgeModel
from gnnsparse.inference.exported import CONFIG, WEIGHTS, read_exported
from gnnsparse.precision import Precision
from gnnsparse.preprocess.api import prepare
from gnnsparse.sparse.operand import SparseOperand
from gnnsparse.train.checkpoint import MODEL, CheckpointError, read_trained
from gnnsparse.train.device import numerics, resolve_device
from gnnsparse.train.recipe import ModelRecipe

__all__ = ["LoadError", "LoadedModel", "Prediction", "arrays_of", "load", "make_model"]

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_INTEGERS = (torch.int16, torch.int32, torch.int64)


class LoadError(ValueError):
    """A model can't be made from a checkpoint; the message says why."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a model says of N nodes or sequences.

    Attributes:
        logits: float32 [N, C], for C classes or labels; of a model that predicts numbers the numbers.
        several_labels: whether a node can have several labels.
        regression: whether the model predicts numbers; there are no probabilities and no classes then.
    """

    logits: torch.Tensor
    several_labels: bool = False
    regression: bool = False

    @property
    def values(self) -> torch.Tensor:
        """float32 [N, C], the numbers that a model of a regression predicts.

        Raises:
            ValueError: the model predicts classes.
        """
        if not self.regression:
            bad_value("values", "the model predicts classes; accepted: .probabilities, .classes, .logits")
        return self.logits

    @property
    def probabilities(self) -> torch.Tensor:
        """float32 [N, C]: of classes, which sum to 1 in a row; or of each label by itself.

        Raises:
            ValueError: the model predicts numbers.
        """
        self._check_classes("probabilities")
        return self.logits.sigmoid() if self.several_labels else self.logits.softmax(dim=1)

    @property
    def classes(self) -> torch.Tensor:
        """int64 [N], the most probable class; or bool [N, C], the labels more probable than one half.

        Raises:
            ValueError: the model predicts numbers.
        """
        self._check_classes("classes")
        return self.logits > 0 if self.several_labels else self.logits.argmax(dim=1)

    def _check_classes(self, name: str) -> None:
        if self.regression:
            bad_value(name, "the model predicts numbers; accepted: .values")


def arrays_of(prediction: Prediction) -> dict[str, torch.Tensor]:
    """Returns the classes and probabilities of a prediction by name, or its numbers, on the CPU."""
    if prediction.regression:
        return {"values": prediction.values.cpu()}
    return {"classes": prediction.classes.cpu(), "probabilities": prediction.probabilities.cpu()}


class LoadedModel:
    """A trained model on a device, in evaluation mode, with what it is called with.

    Args:
        recipe: what the model is made of.
        module: the model, with its weights, on the device.
        device: the device.

    Attributes:
        recipe, module, device: the arguments.
    """

    def __init__(self, recipe: ModelRecipe, module: torch.nn.Module, device: torch.device) -> None:
        self.recipe, self.module, self.device = recipe, module, device

    def prepare(self, graph: Any, **options: Any) -> SparseOperand:
        """Prepares a graph or a pattern with the weights and the precision that the model needs.

        Args:
            graph: what `gnnsparse.prepare` takes.
            options: options of `gnnsparse.prepare`, such as `num_nodes`.

        Returns:
            The operand, on the model's device.
        """
        options = {"values": self.recipe.values, "precision": self.recipe.precision, **options}
        return prepare(graph, **options).to(self.device)

    def inputs(
        self,
        x: Any,
        graph: Any,
        padding: torch.Tensor | None = None,
        graph_ptr: torch.Tensor | None = None,
    ) -> tuple[Any, ...]:
        """Checks the arguments of `predict`, and returns those of the model, on its device."""
        if isinstance(self.module, EdgeModel) and _is_edge_index(graph):
            check_tensor("x", x, dtypes=_FLOATS, shape=(None, self.recipe.in_channels))
            return x.to(self.device, self._storage()), graph.to(self.device)
        adj = graph if isinstance(graph, SparseOperand) else self.prepare(graph)
        if adj.device != self.device:
            bad_value("graph", f"is on {adj.device}; accepted: {self.device}")
        if self.recipe.task == "sequence":
            return self._sequences(x, adj, padding)
        if self.recipe.task not in ("node", "graph"):
            bad_value(
                "task",
                f"{self.recipe.task!r} is unknown here; accepted: node, graph, sequence (or call .module)",
            )
        if padding is not None:
            bad_value("padding", "goes with models of sequences; accepted: None")
        if graph_ptr is not None and self.recipe.task != "graph":
            bad_value("graph_ptr", "goes with models of graphs; accepted: None")
        check_tensor("x", x, dtypes=_FLOATS, shape=(adj.shape[1], self.recipe.in_channels))
        dtype = self._storage()
        if self.recipe.task == "node":
            return x.to(self.device, dtype), adj
        if graph_ptr is None:
            graph_ptr = torch.tensor([0, adj.shape[0]], dtype=torch.int64, device=self.device)
        check_tensor("graph_ptr", graph_ptr, dtypes=(torch.int64,), shape=(None,))
        return x.to(self.device, dtype), adj, graph_ptr.to(self.device)

    def _storage(self) -> torch.dtype:
        """Returns the dtype of features: on a GPU that of the precision, as in training."""
        on_gpu = self.device.type == "cuda"
        return Precision.parse(self.recipe.precision).storage if on_gpu else torch.float32

    def _sequences(self, tokens: Any, adj: SparseOperand, padding: torch.Tensor | None) -> Any:
        check_tensor("x", tokens, dtypes=_INTEGERS, shape=(None, adj.shape[1]))
        if tokens.numel():
            low, high = (int(bound) for bound in tokens.aminmax())
            if low < 0 or high >= self.recipe.in_channels:
                accepted = f"tokens from 0 to {self.recipe.in_channels - 1}"
                bad_value("x", f"has tokens from {low} to {high}; accepted: {accepted}")
        if padding is None:
            padding = tokens == 0
            padding = padding if bool(padding.any()) else None
        else:
            check_tensor("padding", padding, dtypes=(torch.bool,), shape=tuple(tokens.shape))
        return tokens.to(self.device), adj, None if padding is None else padding.to(self.device)

    def predict(
        self,
        x: Any,
        graph: Any,
        padding: torch.Tensor | None = None,
        graph_ptr: torch.Tensor | None = None,
    ) -> Prediction:
        """Computes logits, probabilities and classes, without gradients, in the precision of the training.

        Args:
            x: features, floating-point [nodes, in_channels]; or tokens, int16, int32 or int64 [batch,
                length], of a model of sequences. On any device.
            graph: an operand on the model's device, prepared as `prepare` does; or a graph that `prepare`
                takes.
            padding: of a model of sequences: bool [batch, length], True for padding; None: tokens 0 are.
            graph_ptr: of a model of graphs: int64 [graphs + 1], the first node of each graph, and the number
                of nodes, where `graph` is block-diagonal; None: it is one graph.

        Raises:
            TypeError: an argument is of another type or dtype.
            ValueError: a shape, a token or a device does not fit the model, or its task is neither "node",
                "graph" nor "sequence".
        """
        inputs = self.inputs(x, graph, padding, graph_ptr)
        with torch.no_grad(), numerics(Precision.parse(self.recipe.precision), self.device):
            logits = self.module(*inputs).float()
        return Prediction(logits, self.recipe.several_labels, self.recipe.regression)


def load(
    source: str | os.PathLike[str],
    *,
    device: str = "auto",
    registry: Mapping[str, Any] | None = None,
    model: torch.nn.Module | None = None,
) -> LoadedModel:
    """Loads a trained model, ready for `predict`.

    The file is read as tensors and plain values: code in it is not executed. It names the model by a registry
    and options. The registry's module is imported, so that a file whose origin you do not trust should be
    loaded with `registry`, which imports nothing.

    Args:
        source: the folder of a run, whose best weights are loaded; or its checkpoints/best.ckpt or
            checkpoints/last.ckpt; or a folder that `gnnsparse.inference.hub` has written.
        device: "auto" (a GPU if one can be used), "cpu" or "cuda".
        registry: the models by name, such as `models.MODELS`; None: those that the file names.
        model: a model that takes the weights, in place of one that is made: for one of `gnnsparse.fit` that
            is in no registry. It is made as it was for the training. If its `forward` takes an edge_index, or
            the features alone, `module` of the result is a module around it that takes an operand.

    Raises:
        TypeError: `source` is no path, or `model` is no module.
        LoadError: there is no such file, it is no checkpoint of a run or damaged, it does not say what its
            model is (those of earlier versions do not), or the model can't be made or has other weights.
        ValueError: the device is unknown, or can't be used, or both `registry` and `model` are given.
    """
    place = resolve_device(device)
    if model is not None and not isinstance(model, torch.nn.Module):
        bad_type("model", model, "a torch.nn.Module, or None")
    if model is not None and registry is not None:
        bad_value("model", "got one together with registry; accepted: one of the two")
    file = _file(source)
    try:
        if file.name == CONFIG:
            recipe, weights, _ = read_exported(file, file.with_name(WEIGHTS))
        else:
            recipe, weights = _read_checkpoint(file)
        module = make_model(recipe, registry, weights, model)
    except LoadError:
        raise
    except OSError as error:
        raise LoadError(f"checkpoint: {file.parent} can't be read ({error})") from error
    except (ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:400]
        raise LoadError(f"checkpoint: the model of {file} can't be made: {reason}") from error
    return LoadedModel(
        recipe, module.to(place).eval(), torch.empty(0, dtype=torch.float32, device=place).device
    )


def _read_checkpoint(file: Path) -> tuple[ModelRecipe, dict[str, torch.Tensor]]:
    try:
        weights, plain = read_trained(file)
    except CheckpointError as error:
        raise LoadError(str(error)) from None
    if plain is None:
        raise LoadError(
            f"checkpoint: {file} does not say what its model is, as it was written by an earlier version or "
            f"without the argument `recipe` of fit; accepted: a file with {MODEL}. Its weights are "
            "torch.load(file, weights_only=True)['state_dict']"
        )
    return ModelRecipe.read(plain), weights


def make_model(
    recipe: ModelRecipe,
    registry: Mapping[str, Any] | None,
    weights: dict[str, torch.Tensor],
    model: torch.nn.Module | None = None,
) -> torch.nn.Module:
    """Makes the model of a recipe with given weights, or gives them to a model.

    Raises:
        ValueError, RuntimeError: it can't be made, or it has other weights.
    """
    if model is None:
        _check_shapes(recipe, registry, weights)
        module = recipe.build(registry)
    else:
        _compare_shapes(model, weights)
        module = model
    module.load_state_dict(weights)
    return module if tuple(recipe.inputs) == ("operand",) else EdgeModel(module, recipe.inputs)


def _is_edge_index(graph: Any) -> bool:
    """Returns whether a graph is given as PyG's models take it, which keeps repeated edges apart."""
    return isinstance(graph, torch.Tensor) and graph.layout == torch.strided and graph.dtype == torch.int64


def _file(source: Any) -> Path:
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(
            f"source: got {type(source).__name__}; accepted: the folder of a run, or a checkpoint"
        )
    path = Path(os.fsdecode(source))
    try:
        found = path / "checkpoints" / "best.ckpt" if path.is_dir() else path
        if path.is_dir() and not found.is_file() and (path / CONFIG).is_file():
            found = path / CONFIG
        is_file = found.is_file()
    except (OSError, ValueError):  # a name that is too long, or has a null character
        found, is_file = path, False
    if not is_file:
        raise LoadError(f"checkpoint: there is no file {str(found)!r}")
    return found


def _check_shapes(
    recipe: ModelRecipe, registry: Mapping[str, Any] | None, weights: dict[str, torch.Tensor]
) -> None:
    """Raises ValueError if the model has other weights, before it takes any memory."""
    try:
        with torch.device("meta"):  # tensors without memory
            model = recipe.build(registry)
    except NotImplementedError:  # a model that computes while it is made
        return
    _compare_shapes(model, weights)


def _compare_shapes(model: torch.nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Raises ValueError if a model has other weights; one whose sizes the first call decides takes any."""
    if any(torch.nn.parameter.is_lazy(parameter) for parameter in model.parameters()):
        return
    own = model.state_dict()
    for name in (*own, *weights):
        if name not in own or name not in weights:
            bad_value(name, f"is a weight of the {'model' if name in own else 'file'} alone")
        if own[name].shape != weights[name].shape:
            bad_value(name, f"is {tuple(weights[name].shape)}; accepted: {tuple(own[name].shape)}")
