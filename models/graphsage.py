"""GraphSAGE of Hamilton et al., on the whole graph."""

from __future__ import annotations

from gnnsparse.nn import SAGEConv
from models.conv_stack import UniformStack
from models.registry import register_model

__all__ = ["GraphSAGE"]


@register_model("graphsage", task="node", values="mean")
class GraphSAGE(UniformStack):
    """A UniformStack of SAGEConv layers, for operands prepared with values="mean" and edge indices.

    The layers take the mean over all neighbours, where Hamilton et al. (2017) sample some of them for each
    batch.
    """

    conv = SAGEConv
