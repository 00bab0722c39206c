"""What a layer's `message` computes, found out by calling it with symbols in place of tensors."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Argument", "Message", "arguments_of", "read_message"]

#: Arguments that PyG makes of the edges. A message that uses one is none that is recognised.
_OF_EDGES = {
    "edge_index", "adj_t", "edge_index_i", "edge_index_j", "size", "size_i", "size_j", "ptr", "index",
    "dim_size",
}  # fmt: skip


class _Unknown(BaseException):
    """The message does something else. No Exception, so that a message does not catch it."""


@dataclass(frozen=True)
class Message:
    """A message that was recognised: the features of the source, times a weight of the edge or not.

    Attributes:
        features: name of the argument of `propagate` with the features.
        weight: name of the argument with the weights; None: there are none.
        by_head: whether there is a weight for each head, [edges, heads], and not one for each edge.
    """

    features: str
    weight: str | None = None
    by_head: bool = False


@dataclass(frozen=True)
class Argument:
    """An argument of `message`.

    Attributes:
        name: its name.
        source: name of the argument of `propagate` that it is made of.
        role: "source" (features of sources, one row for each edge), "edge" (passed as it is), "other".
    """

    name: str
    source: str
    role: str


def arguments_of(names: list[str]) -> tuple[Argument, ...]:
    """Returns the arguments of a `message` that has parameters of these names, PyG's rules applied."""
    found = []
    for name in names:
        if name in _OF_EDGES:
            found.append(Argument(name, name, "other"))
        elif name.endswith("_j"):
            found.append(Argument(name, name[:-2], "source"))
        else:
            role = "other" if name.endswith("_i") else "edge"
            found.append(Argument(name, name[:-2] if role == "other" else name, role))
    return tuple(found)


class _Opaque:
    """Stands for a tensor whose use is not recognised."""

    __slots__ = ()

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Recognises torch.mul(w, x), and what Tensor's methods do with a symbol."""
        if function in (torch.mul, torch.multiply) and len(args) == 2 and not kwargs:
            return _product(*args)
        if function is torch.unsqueeze and len(args) == 2 and not kwargs and isinstance(args[0], _Symbol):
            return args[0].unsqueeze(args[1])
        raise _Unknown

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise _Unknown

    __getattr__ = __bool__ = __iter__ = __len__ = __getitem__ = __call__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __truediv__ = __rtruediv__ = __matmul__ = __rmatmul__ = _refuse
    __pow__ = __rpow__ = __neg__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __mul__ = __rmul__ = _refuse
    __hash__ = None  # type: ignore[assignment]


_OPAQUE = _Opaque()


class _Symbol(_Opaque):
    """Stands for a tensor with one row for each edge.

    Attributes:
        name: the argument of `propagate` that it is made of.
        sizes: the sizes of the tensor, of one graph of a batch.
        is_features: whether it holds features of sources; False: it holds weights of edges.
        like: the argument itself.
        is_batch: whether the tensor has a size before that of the edges, so that its shape is not `sizes`.
    """

    __slots__ = ("is_batch", "is_features", "like", "name", "sizes")

    def __init__(
        self, name: str, sizes: tuple[int, ...], is_features: bool, like: Any, is_batch: bool = False
    ) -> None:
        self.name, self.sizes, self.is_features, self.like = name, sizes, is_features, like
        self.is_batch = is_batch

    @property
    def shape(self) -> tuple[int, ...]:
        if self.is_batch:
            raise _Unknown
        return self.sizes

    @property
    def dtype(self) -> torch.dtype:
        return self.like.dtype

    @property
    def device(self) -> torch.device:
        return self.like.device

    def dim(self) -> int:
        return len(self.shape)

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def is_floating_point(self) -> bool:
        return self.like.is_floating_point()

    def view(self, *sizes: Any) -> _Symbol:
        """Allows what appends sizes of 1 to weights, with all other sizes as they are."""
        if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
            sizes = tuple(sizes[0])
        if self.is_features or not all(type(size) is int for size in sizes):
            raise _Unknown
        shape, own = (self.sizes[0], *sizes[1:]), self.sizes
        while len(own) > 1 and own[-1] == 1:
            own = own[:-1]
        same = shape[: len(own)] == own and all(size == 1 for size in shape[len(own) :])
        if sizes[0] not in (-1, self.sizes[0]) or not same:
            raise _Unknown
        return _Symbol(self.name, shape, False, self.like)

    reshape = view

    def unsqueeze(self, dim: int) -> _Symbol:
        if self.is_features or dim not in (-1, len(self.sizes)):
            raise _Unknown
        return _Symbol(self.name, (*self.sizes, 1), False, self.like)

    def __getitem__(self, index: Any) -> _Symbol:
        """Allows w[:, None]."""
        axes = (slice(None),) * len(self.sizes)
        if not isinstance(index, tuple) or index not in ((*axes, None), (..., None)):
            raise _Unknown
        return self.unsqueeze(-1)

    def __mul__(self, other: Any) -> Message:
        return _product(self, other)

    __rmul__ = __mul__
    mul = __mul__


def _product(left: Any, right: Any) -> Message:
    """Returns the message that multiplies features by weights which do not depend on the feature."""
    if type(left) is not _Symbol or type(right) is not _Symbol or left.is_features == right.is_features:
        raise _Unknown
    x, w = (left, right) if left.is_features else (right, left)
    if len(w.sizes) != len(x.sizes) or w.sizes[-1] != 1 or len(x.sizes) not in (2, 3):
        raise _Unknown
    heads = w.sizes[1:-1]
    if all(size == 1 for size in heads):
        return Message(x.name, w.name)
    if heads != x.sizes[1:-1]:
        raise _Unknown
    return Message(x.name, w.name, by_head=True)


def read_message(
    layer: Any, arguments: tuple[Argument, ...], given: dict[str, Any], edges: int
) -> Message | None:
    """Calls a layer's `message` with symbols, and returns what it computes; None: it is not recognised.

    The layer is in the state in which PyG would call `message`, so that a message that depends on it is read
    as it is now.

    Args:
        layer: the layer.
        arguments: the arguments of its `message`.
        given: what `propagate` is called with.
        edges: number of edges.
    """
    symbols: dict[str, Any] = {}
    for argument in arguments:
        if argument.role == "edge" and argument.source not in given:
            continue  # the message's own default
        value = given.get(argument.source)
        if argument.role == "source" and isinstance(value, (tuple, list)):
            value = value[0] if len(value) == 2 else _OPAQUE
        if argument.role == "other":
            value = _OPAQUE
        elif isinstance(value, torch.Tensor):
            of_nodes = argument.role == "source"
            if of_nodes and value.dim() == 3 and layer.node_dim == -2:  # one graph for a batch of features
                value = _Symbol(argument.source, (edges, value.shape[2]), True, value, is_batch=True)
            elif of_nodes or (value.dim() > 0 and value.shape[0] == edges):
                value = _Symbol(argument.source, (edges, *value.shape[1:]), of_nodes, value)
            else:
                value = _OPAQUE
        symbols[argument.name] = value
    own = layer.__dict__
    before = dict(own)
    try:
        found = layer.message(**symbols)
    except (_Unknown, Exception):
        found = None
    if len(own) != len(before) or not all(map(operator.is_, own.values(), before.values())):
        own.clear()  # it keeps what it computes, which is to be tensors
        own.update(before)
        return None
    if type(found) is _Symbol and found.is_features:
        return Message(found.name)
    return found if type(found) is Message else None
