"""What a `message` is read to be by edge_reader.py: code over edges, and how its tensors are made."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch_geometric.nn.conv.ppf_conv import point_pair_features

from gnnsparse.interop.pyg.message import NotShown
from gnnsparse.ops.dispatch import is_plain
from gnnsparse.ops.edges.program import Code, Input
from gnnsparse.ops.edges.trace import Message, renumbered

#: How a term is computed in a call, see `tensor_of`.
Source = tuple[Any, ...]
#: What is computed once in a call, as it is much work, or as what is computed twice changes twice.
_ONCE = ("linear", "applied", "module", "pairs", "split")


class Staged(NamedTuple):
    """What is computed of tensors: a part of a message.

    `names`: of the tensors. `key`: of rows of edges that later stages use the source that stands for them,
    of an attribute that the code sets its name, else None. `sizes`: those of a result of one edge.
    """

    names: tuple[str, ...]
    message: Message
    key: Any
    sizes: tuple[Any, ...]


class EdgeMessage(Message):
    """A message as code over edges.

    Its sources, and the map's, are names for what `tensor_of` makes of `made_of`. `sizes` are those of a
    result of one edge; `is_stacked`: the results are stacked before the last of them. `exponent`: they are
    weighted by its softmax over the edges of a target. `last`: the weight and the bias, or None, of a linear
    layer that follows when they are added up; `summed`: the message that is so, or None. `pieces` and
    `products`: see `multiply`.
    """

    def __init__(
        self, code: Code, inputs: list[Input], made_of: list[Source], map_: Source | None, values: list[int],
        stored: list[tuple[Any, tuple[Any, ...], int]], sizes: tuple[Any, ...], is_stacked: bool = False,
        is_weighted: bool = False,
    ) -> None:  # fmt: skip
        """Make the message of code whose inputs are `made_of` sources, and of its map, if it has one.

        `values` are its results, and if it `is_weighted` their exponent. `stored` is what is computed
        before: the key, sizes and value of each, see `Staged`.
        """
        self.inputs, self.made_of = list(inputs), {str(i): of for i, of in enumerate(made_of)}
        self.sources, self.map = list(self.made_of), None if map_ is None else "map"
        if map_ is not None:
            self.made_of["map"] = map_
        ends = [*values, *(v for _, _, v in stored)]
        self.steps, ends = renumbered(code, len(self.inputs), ends)
        self.is_stacked, self.sizes = is_stacked, sizes
        self.last: tuple[Source, Source | None] | None = None
        self.summed: EdgeMessage | None = None
        whole = self._part(ends[: len(values)])
        whole.is_tuple = True
        if is_weighted:
            whole.exponent = whole.results.pop()
        # From the last one to the first: rows that no later stage uses are left out.
        stages = [Staged(_names(whole), whole, None, self.sizes)]
        for (key, of_one, _), value in reversed(list(zip(stored, ends[len(values) :], strict=True))):
            part = self._part([value])
            if type(key) is str or any(uses(self.made_of[n], key) for of in stages for n in of.names):
                stages.insert(0, Staged(_names(part), part, key, of_one))
        self.stages, self.exponent = tuple(stages), whole.exponent
        self.pieces, self.products = _shared_products(self.made_of.values())
        if all(x.side == "shared" for x in self.inputs):
            raise NotShown

    @property
    def dim(self) -> int:
        """The number of dimensions of the messages."""
        return 1 + len(self.sizes) + self.is_stacked

    def _part(self, results: list[int]) -> Message:
        """Return a message whose results are values of this one, with those inputs alone that they need."""
        needed, count = set(results), len(self.inputs)
        for i in reversed(range(len(self.steps))):
            if count + i in needed:
                needed.update(self.steps[i].values)
        number = {old: new for new, old in enumerate(sorted(needed))}
        found = Message()
        found.inputs, found.sources = ([x[i] for i in range(count) if i in needed] for x in (
            self.inputs, self.sources
        ))  # fmt: skip
        found.steps = tuple(
            step._replace(values=tuple(number[v] for v in step.values))
            for i, step in enumerate(self.steps)
            if count + i in needed
        )
        found.map = self.map if any(x.form == "mapped" for x in found.inputs) else None
        found.results, found.is_tuple = [number[value] for value in results], False
        return found


def _names(of: Message) -> tuple[str, ...]:
    return (*of.sources, *([] if of.map is None else [of.map]))


def uses(source: Source, of: Source) -> bool:
    """Return whether a source is, or is made of, another."""
    return source == of or any(type(part) is tuple and uses(part, of) for part in source)


def tensor_of(source: Source, layer: Any, given: dict[Any, Any]) -> torch.Tensor:
    """Return the tensor [rows, features], or of shared numbers, that a source stands for.

    `given` has the arguments of `propagate`, "edge_index", rows that were computed by their sources, and gets
    what is computed once.
    """
    how, *of = source
    if how == "rows" or how in _ONCE:
        if (known := given.get(source)) is None:
            known = given[source] = _computed_once(how, of, layer, given)
        return known
    if how == "argument":
        name, side = of
        value = given[name]
        if side != "edge" and isinstance(value, (tuple, list)):
            value = value[int(side == "target")]
        return value if value.dim() == 2 else value.unsqueeze(-1).flatten(1)
    if how == "columns":
        parts: Any = tensor_of(of[0], layer, given)
        return parts[of[1]]
    if how == "parameter":
        tensor = attribute(layer, of[0])
        return tensor.reshape(-1)
    if how == "bias":
        return attribute(layer, of[0]).bias
    if how == "weight":
        if (piece := given.get(source)) is not None:
            return piece
        path, start, stop = of
        weight = attribute(layer, path).weight
        return weight if (start, stop) == (0, weight.shape[1]) else weight[:, start:stop]
    found = None
    for is_negative, part in of:
        term = tensor_of(part, layer, given)
        found = (-term if is_negative else term) if found is None else (
            found - term if is_negative else found + term
        )  # fmt: skip
    assert found is not None
    return found


def _computed_once(how: str, of: list[Any], layer: Any, given: dict[Any, Any]) -> Any:
    if how == "linear":
        return F.linear(*(tensor_of(part, layer, given) for part in of))
    if how == "applied":
        name, options, source = of
        return getattr(F, name)(tensor_of(source, layer, given), **dict(options))
    if how == "split":
        source, width = of
        return tensor_of(source, layer, given).split(width, dim=1)
    if how == "module":
        path, source = of
        return attribute(layer, path)(tensor_of(source, layer, given))
    rows = given["edge_index"]
    sides = [(tensor_of(source, layer, given), rows[int(source[2] == "target")]) for source in of]
    return point_pair_features(*(tensor.index_select(0, at) for tensor, at in sides))


def _found_in(source: Source, how: str) -> Iterator[Source]:
    """Yield the sources of a kind that a source is made of, and itself."""
    if source[:1] == (how,) and type(source[-1]) is not str:  # no path
        yield source
    for part in source:
        if type(part) is tuple:
            yield from _found_in(part, how)


class _Product(NamedTuple):
    """A linear product of an argument: its source, that of the argument, of the weight and of the bias."""

    source: Source
    of: Source
    weight: Source
    bias: Source | None


def _shared_products(sources: Iterable[Source]) -> tuple[list[tuple[Any, ...]], list[_Product]]:
    """Return what `multiply` does for sources: their pieces of weights, and their products of arguments."""
    pieces: dict[Any, dict[Source, None]] = {}
    products: dict[_Product, None] = {}
    for source in sources:
        for weight in _found_in(source, "weight"):
            pieces.setdefault(weight[1], {})[weight] = None
        for found in _found_in(source, "linear"):
            if found[1][0] == "argument":
                products[_Product(found, found[1], found[2], found[3] if len(found) > 3 else None)] = None
    whole = []
    for path, weights in pieces.items():
        ordered = sorted(weights, key=lambda weight: weight[2])
        ends = [0, *(weight[3] for weight in ordered)]
        if len(ordered) > 1 and [weight[2] for weight in ordered] == ends[:-1]:
            whole.append((path, ends[-1], [weight[3] - weight[2] for weight in ordered], ordered))
    # Those with a bias come first.
    return whole, sorted(products, key=lambda of: of.bias is None) if len(products) > 1 else []


def multiply(message: EdgeMessage, layer: Any, given: dict[Any, Any]) -> None:
    """Compute the linear products of each tensor in one, and cut weights into all of their pieces at once.

    `given`: see `tensor_of`, for which the results are added. Each operation of torch that is saved, and
    those of its gradient, take as long on a small graph as the kernels of a message.
    """
    for path, width, widths, sources in message.pieces:
        weight = attribute(layer, path).weight
        if weight.shape[1] == width:
            given.update(zip(sources, weight.split_with_sizes(widths, dim=1), strict=True))
    of_tensor: dict[int, tuple[torch.Tensor, list[_Product]]] = {}
    for product in message.products:
        x = tensor_of(product.of, layer, given)
        of_tensor.setdefault(id(x), (x, []))[1].append(product)
    for x, products in of_tensor.values():
        if len(products) < 2:
            continue
        weights = [tensor_of(product.weight, layer, given) for product in products]
        if not is_plain(*weights):  # a subclass, as of quantized weights, may have no products but its own
            continue
        sizes = [weight.shape[0] for weight in weights]
        biases = [tensor_of(product.bias, layer, given) for product in products if product.bias is not None]
        if biases and len(biases) < len(products):
            biases.append(biases[0].new_zeros(sum(sizes[len(biases) :])))
        whole = F.linear(x, torch.cat(weights), torch.cat(biases) if biases else None)
        for product, part in zip(products, whole.split_with_sizes(sizes, dim=1), strict=True):
            given[product.source] = part


def attribute(layer: Any, path: tuple[str, ...]) -> Any:
    """Return the part of a layer at a path."""
    return functools.reduce(getattr, path, layer)
