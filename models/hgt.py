"""The heterogeneous graph Transformer of Hu et al. (2020), for typed graphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gnnsparse.nn import HGTConv
from gnnsparse.sparse.typed import TypedGraph
from models.parts import check_heads
from models.registry import register_around, register_model
from models.typed import LinkedTyped, TypedModel

__all__ = ["HGT"]


@register_model("hgt", task="typed_node")
class HGT(TypedModel):
    """Layers of dropout, HGTConv and normalisation.

    The other arguments are those of TypedModel.

    Args:
        heads: number of heads, a divisor of hidden_channels.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int = 2,
        heads: int = 4,
        dropout: float = 0.2,
        norm: str = "none",
        types: Mapping[str, Any] | None = None,
    ) -> None:
        self._heads = check_heads(heads, hidden_channels)
        super().__init__(in_channels, hidden_channels, out_channels, num_layers, dropout, norm, types)

    def make_conv(self, width: int) -> torch.nn.Module:
        """Make a layer of so many features."""
        return HGTConv(width, width, (self.mapped + self.embedded, self.relations), self._heads)

    def convolve(self, conv: Any, x: dict[str, torch.Tensor], graph: TypedGraph) -> dict[str, torch.Tensor]:
        """Call a layer, whose attention to all relations is one."""
        return conv(x, graph)


register_around(LinkedTyped, "typed_link", ("hgt",), predictor_layers=2)
