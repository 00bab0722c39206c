"""The network of principal neighbourhood aggregation of Corso et al."""

from __future__ import annotations

import torch

from gnnsparse.nn import PNAConv
from models.edge_stack import EdgeStack
from models.registry import register_model

__all__ = ["PNA"]

_AGGREGATORS = ["mean", "max", "min", "std"]
_SCALERS = ["identity", "amplification", "attenuation"]


@register_model("pna", task="node", edge_weights=False, edge_features="optional")
class PNA(EdgeStack):
    """An EdgeStack of PNAConv layers: four aggregations, each scaled by three functions of the degree.

    They are those of Corso et al. (2020, section 2.3). The mean degrees, which scalers divide by, are those
    of the nodes to train on, which training tells the model by `measure_degrees`; weights that are loaded
    bring them. The arguments are those of EdgeStack.
    """

    def make_conv(self, width: int, norm: str) -> torch.nn.Module:
        """Make a PNAConv for nodes that all have one edge, until `measure_degrees` knows better."""
        deg = torch.tensor([0, 1], dtype=torch.int64, device="cpu")
        return PNAConv(width, width, _AGGREGATORS, _SCALERS, deg, edge_dim=self.edge_channels or None)

    def measure_degrees(self, degrees: torch.Tensor) -> None:
        """Set the mean degrees to those of nodes, int64 [nodes], one or more of which has an edge."""
        means = {"avg_deg_lin": degrees.double().mean(), "avg_deg_log": degrees.double().log1p().mean()}
        for conv in self.convs:
            for name, mean in means.items():
                getattr(conv.aggr_module, name).fill_(float(mean) or 1.0)
