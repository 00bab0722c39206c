"""`accelerate` puts the layers of a DGL model on our kernels, and `restore` puts them back."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from gnnsparse.interop.dgl import accelerated
from gnnsparse.interop.dgl.layers import LAYERS, OPTIONS, Held, problem_of
from gnnsparse.interop.models import check_model, give_class_back
from gnnsparse.interop.table import aligned
from gnnsparse.precision import Precision

__all__ = ["Report", "ReportRow", "accelerate", "report", "restore"]

_Model = TypeVar("_Model", bound=torch.nn.Module)

_log = logging.getLogger("gnnsparse.interop")
#: The package of DGL's layers.
_CONVS = "dgl.nn.pytorch.conv."


@dataclass(frozen=True)
class ReportRow:
    """What one layer of a model runs on.

    Attributes:
        name: the layer's name in the model, "" for the model itself.
        kind: the layer's class.
        runs_on: the operation of gnnsparse; None: DGL's kernels.
        reason: why it runs on DGL's kernels, or did so in its last call; empty if there is no reason.
    """

    name: str
    kind: str
    runs_on: str | None
    reason: str


@dataclass(frozen=True)
class Report:
    """The layers of a model that are DGL's or made of them, as a table when it is printed.

    Attributes:
        rows: one for each layer, in the order of the model.
    """

    rows: tuple[ReportRow, ...]

    @property
    def accelerated(self) -> tuple[ReportRow, ...]:
        """The layers that run on our kernels."""
        return tuple(row for row in self.rows if row.runs_on is not None)

    def __str__(self) -> str:
        lines = [("layer", "class", "runs on")]
        for row in self.rows:
            where = f"gnnsparse.{row.runs_on}" if row.runs_on else "DGL"
            if row.reason:
                where += f", DGL in the last call: {row.reason}" if row.runs_on else f": {row.reason}"
            lines.append((row.name or "(the model)", row.kind, where))
        return aligned(lines)


def accelerate(model: _Model, *, precision: Precision | str | None = None) -> _Model:
    """Puts the layers of a DGL model on our kernels. Inputs, parameters, `state_dict` and repr stay.

    The layers are GraphConv, SAGEConv (mean, gcn and pool), GINConv, AGNNConv, GATConv and GATv2Conv of
    `dgl.nn.pytorch`. Each module gets another class, a subclass of its own, whose forward takes what DGL's
    takes: graphs with one relation, blocks, features of nodes or a pair of them, weights of edges,
    `get_attention`. What a graph is converted to is kept with the graph and shared by all layers; a layer
    keeps that of its last call. A graph's edges are taken as DGL holds them: to change them, use DGL's
    functions.

    What our kernels do not take is left to DGL's own forward: features with more than two dimensions, of
    float64, or on another device; edge weights that are more than a number for each edge, and edge weights of
    GATConv; and graphs with nodes without incoming edges where the layer refuses them, so that the error is
    DGL's. Subclasses of DGL's layers and other layers of DGL stay as they are. `report` says which, and why;
    it is also logged, as "gnnsparse.interop" at level INFO.

    Dropout of attention weights draws other random numbers than DGL, and drops repeats of an edge together.

    Args:
        model: the model, which is changed; a layer that is accelerated already gets the precision.
        precision: precision of the products, see gnnsparse.Precision; None: that of the dtype of the
            features, or where torch.autocast is active of its dtype.

    Returns:
        The model.

    Raises:
        TypeError: `model` is no module, or `precision` is of another type.
        ValueError: the precision is unknown.
    """
    check_model(model)
    chosen = None if precision is None else Precision.parse(precision)
    for module in model.modules():
        if OPTIONS in module.__dict__:
            module.__dict__[OPTIONS] = Held(chosen)
        elif _is_known(type(module)) and problem_of(module) is None:
            module.__class__ = accelerated.accelerated_class(type(module).__name__)
            module.__dict__[OPTIONS] = Held(chosen)
    _log.info("%s", report(model))
    return model


def restore(model: _Model) -> _Model:
    """Gives the layers of a model their own class back, and drops what they hold.

    Args:
        model: the model, which is changed.

    Returns:
        The model.

    Raises:
        TypeError: it is no module.
    """
    check_model(model)
    for module in model.modules():
        if module.__dict__.pop(OPTIONS, None) is not None:
            give_class_back(module, lambda kind: kind.__module__ == accelerated.__name__)
    return model


def report(model: torch.nn.Module) -> Report:
    """Says for each of DGL's layers in a model what it runs on, and why it runs on DGL's kernels.

    Args:
        model: a model, accelerated or not.

    Raises:
        TypeError: it is no module.
    """
    check_model(model)
    rows = (_row(name, module) for name, module in model.named_modules())
    return Report(tuple(row for row in rows if row is not None))


def _is_known(kind: type) -> bool:
    return kind.__module__.startswith(_CONVS) and kind.__name__ in LAYERS


def _row(name: str, module: Any) -> ReportRow | None:
    kind = type(module)
    if OPTIONS in module.__dict__:
        known = next(LAYERS[owner.__name__] for owner in kind.__mro__ if owner.__name__ in LAYERS)
        return ReportRow(name, kind.__name__, known.runs_on, module.__dict__[OPTIONS].reason or "")
    base = next((base for base in kind.__mro__ if base.__module__.startswith(_CONVS)), None)
    if base is None:
        return None
    if base is not kind:
        reason = f"a subclass of DGL's {base.__name__}, whose forward may compute something else"
    elif not _is_known(kind):
        reason = "gnnsparse has no counterpart of this class"
    else:
        reason = problem_of(module) or "the model has not been accelerated"
    return ReportRow(name, kind.__name__, None, reason)
