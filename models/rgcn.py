"""The relational graph convolutional network of Schlichtkrull et al. (2018), for typed graphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.nn import RGCNConv
from gnnsparse.sparse.typed import TypedGraph
from models.registry import register_around, register_model
from models.typed import LinkedTyped, TypedModel

__all__ = ["RGCN"]


# Layers prepare the mean of each relation by themselves.
@register_model("rgcn", task="typed_node", values="mean")
class RGCN(TypedModel):
    """Layers of dropout, RGCNConv, normalisation and ReLU, all relations of a layer in a single product.

    The other arguments are those of TypedModel.

    Args:
        num_bases: number of matrices whose combinations those of the relations are; None: each has its own.
    """

    typed_graph = "edges"
    activation = staticmethod(F.relu)

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int = 2,
        num_bases: int | None = None,
        dropout: float = 0.5,
        norm: str = "none",
        types: Mapping[str, Any] | None = None,
    ) -> None:
        self._num_bases = num_bases
        super().__init__(in_channels, hidden_channels, out_channels, num_layers, dropout, norm, types)

    def make_conv(self, width: int) -> torch.nn.Module:
        """Make a layer of so many features."""
        return RGCNConv(width, width, len(self.relations), num_bases=self._num_bases)

    def convolve(self, conv: Any, x: dict[str, torch.Tensor], graph: TypedGraph) -> dict[str, torch.Tensor]:
        """Call a layer on the nodes of all types, one after another."""
        rows = conv(torch.cat(list(x.values())), graph.spanning(self.relations))
        return dict(zip(x, rows.split([of.shape[0] for of in x.values()]), strict=True))


register_around(LinkedTyped, "typed_link", ("rgcn",), predictor_layers=2)
