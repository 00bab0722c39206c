"""Keys of what a KernelCache keeps of an operand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gnnsparse.formats import BlockedMatrix
from gnnsparse.plan import PanelCounts, Plan
from gnnsparse.plan.work import WorkList
from gnnsparse.precision import Precision
from gnnsparse.runtime.memo import Key

__all__ = [
    "ArrayKey",
    "BoundCall",
    "CountsKey",
    "NearKey",
    "PanelWorkKey",
    "PanelsKey",
    "PlanKey",
    "Product",
    "RowGroupsKey",
    "RowWorkKey",
    "SlotScaleKey",
    "StoredCall",
    "ViewKey",
    "WindowWorkKey",
]


@dataclass(frozen=True)
class Product:
    """What an operation is asked to compute.

    Attributes:
        op: "spmm", "sddmm", "attention" or "attention_grad".
        width: columns of X, or the feature dimension of q and k in SDDMM and attention.
        edge_values: whether edge values are given in the call.
        value_width, heads, has_score_terms: fields of an AttentionProblem.
    """

    op: str
    width: int
    edge_values: bool = False
    value_width: int = 0
    heads: int = 1
    has_score_terms: bool = False


@dataclass(frozen=True)
class PlanKey(Key[Plan]):
    """The plan of an operation. An operand whose X has 8 bits (`quantization`) has another one for it."""

    product: Product
    quantization: Precision | None


@dataclass(frozen=True)
class ArrayKey(Key[Any]):
    """Weights, or another array that the operand has once."""

    name: str


@dataclass(frozen=True)
class RowWorkKey(Key[WorkList]):
    """The work list of rows with more than `limit` nonzeros."""

    limit: int
    residual: bool = False


@dataclass(frozen=True)
class RowGroupsKey(Key[torch.Tensor]):
    """Neighbouring rows in groups of about `size` nonzeros."""

    size: int
    limit: int


@dataclass(frozen=True)
class WindowWorkKey(Key[WorkList]):
    """The work list of windows."""

    limit: int
    for_scores: bool = False
    balance: str = "auto"
    concurrent: int = 0


@dataclass(frozen=True)
class PanelsKey(Key[BlockedMatrix]):
    """A format with panels of a height."""

    preset: str
    height: int


@dataclass(frozen=True)
class CountsKey(Key[PanelCounts]):
    """What panels of a height would hold."""

    height: int


@dataclass(frozen=True)
class NearKey(Key[int]):
    """The number of nonzeros near the diagonal."""


@dataclass(frozen=True)
class PanelWorkKey(Key[WorkList]):
    """The work list of panels."""

    height: int
    limit: int
    longest_first: bool
    concurrent_panels: int = 0
    for_scores: bool = False


@dataclass(frozen=True)
class SlotScaleKey(Key["torch.Tensor | None"]):
    """The column weight of each slot of a format."""

    preset: str
    height: int


@dataclass(frozen=True)
class ViewKey(Key[Any]):
    """The handle of a format for native functions."""

    preset: str
    height: int
    weighted: bool


@dataclass(frozen=True)
class BoundCall(Key[Any]):
    """Key of a product with all arguments but the dense operands bound.

    Attributes:
        product: the product.
        dtype: dtype of the dense operands.
        plan: the plan given by the caller, or None.
        mean: whether SpMM divides a row's sum by its number of nonzeros.
        quantization: the precision of 8 bits in which X is stored, or None.
    """

    product: Product
    dtype: torch.dtype
    plan: Plan | None
    mean: bool = False
    quantization: Precision | None = None


@dataclass(frozen=True)
class StoredCall(BoundCall):
    """Key of a product with an X that has 8 bits already, for results of a dtype."""
