"""Putting patterns into the attention layers of a model, taking them out, and saying what was done.

Alone: pickles of models find the class of their layers here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch

from gnnsparse.errors import bad_type, bad_value
from gnnsparse.interop.models import Model, ReportRow, Table, check_model, log
from gnnsparse.interop.transformers import huggingface
from gnnsparse.nn.attention_edges import LayerPatterns
from gnnsparse.nn.sparse_attention import SparseAttention
from gnnsparse.patterns.operands import Patterns
from gnnsparse.patterns.read import read_pattern
from gnnsparse.precision import Precision
from gnnsparse.sparse.operand import SparseOperand


def _problem_of(layer: torch.nn.MultiheadAttention) -> str:
    """Return why a layer can't attend by a pattern, or an empty string."""
    if type(layer) not in (torch.nn.MultiheadAttention, SparsifiedMultiheadAttention):
        return "it is a subclass of torch.nn.MultiheadAttention, which may compute something else"
    if layer.bias_k is not None or layer.bias_v is not None:
        return "bias_k and bias_v are a key and a value that no pattern has (add_bias_kv=True)"
    if layer.add_zero_attn:
        return "add_zero_attn=True adds a key that no pattern has"
    return ""


class SparsifiedMultiheadAttention(SparseAttention, torch.nn.MultiheadAttention):  # type: ignore[misc]
    """A torch.nn.MultiheadAttention that attends by a pattern: `sparsify` exchanges its class alone."""

    fused = None
    extra_repr = torch.nn.MultiheadAttention.extra_repr

    @property
    def num_kv_heads(self) -> int:  # type: ignore[override]
        """Number of heads of keys and values."""
        return self.num_heads

    def forward(  # type: ignore[override]
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute the layer's output; arguments and results are those of torch.nn.MultiheadAttention.

        A query attends to the keys that the pattern names and no mask blocks. `is_causal` blocks later keys;
        as in torch it then stands for `attn_mask`, which is not read. A query without keys gets zeros from
        the attention, where torch gives NaN.

        Raises:
            TypeError: a tensor is of a dtype that no kernel has.
            ValueError: a shape or a device does not go with the layer, the pattern or another argument.
        """
        mask = None if is_causal else attn_mask
        return super().forward(
            query, key, value, key_padding_mask, need_weights, mask, average_attn_weights, is_causal
        )


class Report(Table):
    """The attention layers of a model, as a table when it is printed.

    Attributes:
        rows: one for each layer, in the order of the model.
        replaced: those that attend by a pattern.
    """

    title = "attends by"

    def _last_cell(self, row: ReportRow) -> str:
        return row.uses or f"all keys: {row.reason}"


@dataclass(frozen=True, eq=False)
class _Layer:
    """An attention layer of a model."""

    name: str
    module: Any
    problem: str  # why it can't attend by a pattern, or an empty string
    model: Any = None  # the model of transformers that it belongs to; None: it is one of torch's layers

    def row(self) -> ReportRow:
        kind = type(self.module)
        if kind is SparsifiedMultiheadAttention:
            kind = torch.nn.MultiheadAttention
        patterns: Patterns | None = self.module.__dict__.get("gnnsparse_patterns")
        if patterns is None:
            return ReportRow(self.name, kind.__name__, None, self.problem or "no pattern was given for it")
        reason = "" if self.model is None else huggingface.overruled(self.module)
        return ReportRow(self.name, kind.__name__, None if reason else str(patterns), reason)


def _layers(model: torch.nn.Module) -> list[_Layer]:
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.MultiheadAttention):
            found[name] = _Layer(name, module, _problem_of(module))
    for name, module, owner in huggingface.attention_layers(model):
        found[name] = _Layer(name, module, huggingface.problem_of(module, owner), owner)
    return [found[name] for name, _ in model.named_modules() if name in found]


def sparsify(model: Model, pattern: Any, precision: Precision | str | None = None) -> Model:
    """Make the attention layers of a model attend by a pattern, with the parameters that they have.

    These are torch.nn.MultiheadAttention, alone or in torch.nn.Transformer and its encoders and decoders, and
    the self-attention of models of Hugging Face's transformers that look their attention up in its registry,
    such as BERT, ViT and Llama. Results are those of the dense model with the pattern as a boolean mask in
    addition to all of its own masks. A query left without a key gets zeros from the attention. `report` says
    which layers attend by what; it is also logged, as "gnnsparse.interop" at level INFO. A model that has
    patterns gets new ones in their place.

    An operand is made of the pattern when a length, device or dtype is first met, and kept, at most 16 for
    each pattern. Inside torch.compile each length is compiled by itself.

    Args:
        model: the model, which is changed.
        pattern: one of the following, or a mapping of names of layers to them. A name may contain *, ? and
            [...]; the first one that fits counts, and its pattern may be None. Layers without a pattern stay
            dense. A pattern is:
            a function that makes a SparseGraph or SparseOperand of the length; for layers with more keys
            than queries, or fewer, it needs a second argument `keys`;
            a SparseGraph or a SparseOperand, for one length;
            a mapping with the "name" of one of gnnsparse.masks.PATTERNS and its options but the length, as in
            {"name": "window", "radius": 64};
            a list of these, of which the union is taken.
        precision: precision of the products; None: that of the dtype of the queries, which torch.autocast
            decides where it is active. A SparseOperand has its own.

    Returns:
        The model.

    Raises:
        TypeError: an argument is of another type.
        ValueError: a pattern has no such option, a name fits no layer, or no layer can be given a pattern.
    """
    check_model(model)
    if precision is not None:
        precision = Precision.parse(precision)
    layers = _layers(model)
    chosen = _chosen(layers, _read(pattern, precision), precision)
    if not chosen:
        why = "\n".join(["", str(report(model))]) if layers else " there is none"
        bad_value("model", f"has no attention layer that can be given the pattern:{why}")
    restore(model)
    try:
        for layer, patterns in chosen:
            # Into the dictionary of the layer: it is no parameter, buffer or module.
            layer.module.__dict__["gnnsparse_patterns"] = patterns
            if layer.model is None:
                layer.module.__dict__["patterns"] = of_layer = LayerPatterns(None, None, None)
                of_layer.own = patterns
                layer.module.__class__ = SparsifiedMultiheadAttention
        _keep_padded(model)
        of_transformers = [layer for layer, _ in chosen if layer.model is not None]
        for owner in {id(layer.model): layer.model for layer in of_transformers}.values():
            huggingface.look_up(owner)
        for layer in of_transformers:
            if huggingface.overruled(layer.module):
                bad_value("model", f"{type(layer.model).__name__} does not let its attention be chosen")
    except Exception:
        restore(model)
        raise
    log.info("%s", report(model))
    return model


def _read(pattern: Any, precision: Precision | None) -> dict[str, Any]:
    """Return the patterns by the names of the layers that they are for, checked; None: dense."""
    if not isinstance(pattern, Mapping) or isinstance(pattern.get("name"), str):
        return {"*": _read_one("pattern", pattern, precision)}
    read = {}
    for name, given in pattern.items():
        if not isinstance(name, str):
            bad_type("pattern", name, "names of layers as the keys, which may contain *")
        read[name] = None if given is None else _read_one(f"pattern[{name!r}]", given, precision)
    return read


def _read_one(argument: str, given: Any, precision: Precision | None) -> Any:
    if isinstance(given, SparseOperand) and precision not in (None, given.precision):
        accepted = f"{given.precision.value!r}, that of the operand in {argument}, or None"
        bad_value("precision", f"got {precision.value!r}; accepted: {accepted}")
    return read_pattern(argument, given)


def _chosen(
    layers: list[_Layer], by_name: dict[str, Any], precision: Precision | None
) -> list[tuple[_Layer, Patterns]]:
    """Return the layers that get a pattern. Those of one kind with one pattern share its operands."""
    for name in by_name:
        if layers and not any(fnmatchcase(layer.name, name) for layer in layers):
            known = ", ".join(layer.name or "''" for layer in layers)
            bad_value("pattern", f"got {name!r}, which fits no attention layer; accepted: {known}")
    shared: dict[Any, Patterns] = {}
    chosen = []
    for layer in layers:
        fitting = [given for name, given in by_name.items() if fnmatchcase(layer.name, name)]
        if not fitting or fitting[0] is None or layer.problem:
            continue
        kind = Patterns if layer.model is None else huggingface.RegisteredPatterns
        key = id(fitting[0]), kind
        if key not in shared:
            shared[key] = kind(fitting[0], precision)
        chosen.append((layer, shared[key]))
    return chosen


def _keep_padded(model: torch.nn.Module) -> None:
    """Keep torch's encoders from handing nested tensors to sparse layers in evaluation."""
    for module in model.modules():
        nests = isinstance(module, torch.nn.TransformerEncoder) and getattr(
            module, "use_nested_tensor", False
        )
        if nests and any(isinstance(m, SparsifiedMultiheadAttention) for m in module.modules()):
            module.use_nested_tensor = False  # type: ignore[assignment]
            module.__dict__["gnnsparse_was_nested"] = True


def restore(model: Model) -> Model:
    """Make all attention layers of a model dense again, as they were before `sparsify`.

    Returns:
        The model, which is changed.

    Raises:
        TypeError: it is no module.
    """
    check_model(model)
    for module in model.modules():
        if module.__dict__.pop("gnnsparse_was_nested", False):
            module.use_nested_tensor = True  # type: ignore[assignment]
        if isinstance(module, SparsifiedMultiheadAttention):
            module.__class__ = torch.nn.MultiheadAttention  # type: ignore[assignment]
            del module.__dict__["patterns"]
        module.__dict__.pop("gnnsparse_patterns", None)
    for inner in huggingface.models_of(model):  # outer ones first: each sets those inside of it too
        before = inner.__dict__.pop("gnnsparse_attention_before", None)
        if before is not None:
            inner.set_attn_implementation(before)
    return model


def report(model: torch.nn.Module) -> Report:
    """Say for each attention layer of a model which pattern it attends by, or why it attends to all keys.

    Raises:
        TypeError: it is no module.
    """
    check_model(model)
    return Report(tuple(layer.row() for layer in _layers(model)))
