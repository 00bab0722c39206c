"""Networks that predict links: embeddings of the nodes, a stack of convolutions, and a score of pairs."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse import SparseOperand
from gnnsparse.errors import bad_value, check_integer
from models.conv_stack import UniformStack
from models.registry import register_around

__all__ = ["Linked", "PairScore", "Scorer"]


class PairScore(torch.nn.Module):
    """The score of a pair of nodes: a network of linear layers on the product of their features, by element.

    Of directed pairs the first layer gets the features of both nodes too, so that their order counts.

    Args:
        channels: features of a node, and of the hidden layers.
        num_layers: number of linear layers.
        dropout: probability with which training drops hidden features.
        directed: whether (u, v) is another pair than (v, u).
    """

    def __init__(self, channels: int, num_layers: int, dropout: float, directed: bool = False) -> None:
        super().__init__()
        self.directed = directed
        widths = [3 * channels if directed else channels] + [channels] * (num_layers - 1) + [1]
        self.lins = torch.nn.ModuleList(torch.nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.dropout = dropout

    def forward(
        self, features: torch.Tensor, pairs: torch.Tensor, targets: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the logits [k] of pairs, int64 [k, 2], of nodes with features [N, channels].

        `targets` are the features of the second nodes, if those are of another type.
        """
        source = features.index_select(0, pairs[:, 0])
        target = (features if targets is None else targets).index_select(0, pairs[:, 1])
        x = torch.cat([source, target, source * target], 1) if self.directed else source * target
        for lin in self.lins[:-1]:
            x = F.dropout(F.relu(lin(x)), self.dropout, self.training)
        last = self.lins[-1]
        return last(x)[:, 0]


class Scorer(torch.nn.Module):
    """A model of nodes, `encoder`, and the score of pairs of them, `predictor`.

    Args:
        out_channels: 1, the score of a pair.
        predictor_layers: number of linear layers of PairScore.
    """

    encoder: Any
    predictor: PairScore

    def __init__(self, out_channels: int, predictor_layers: int) -> None:
        super().__init__()
        if out_channels != 1:
            bad_value("out_channels", f"got {out_channels}; accepted: 1, the score of a pair")
        check_integer("predictor_layers", predictor_layers)

    @property
    def first_layer(self) -> torch.nn.Module:
        """The layer whose parameters have weight decay with `optimizer.decay="first"`."""
        layer: torch.nn.Module = self.encoder.first_layer
        return layer

    @property
    def num_convolutions(self) -> int:
        """The number of convolutions, for each of which a sampler draws neighbours."""
        return int(self.encoder.num_convolutions)


class Linked(Scorer):
    """Learnt embeddings of the nodes, a model of nodes on them, and PairScore.

    It is the network of the Open Graph Benchmark's example for ogbl-ddi (Hu et al. 2020).

    Attributes:
        encoder_class: the class of the model of nodes.

    Args:
        in_channels: number of nodes, or of features of a node.
        hidden_channels: features of an embedding and of all layers.
        out_channels: 1, the score of a pair.
        num_layers: number of convolutions.
        predictor_layers: number of linear layers of PairScore.
        features: whether nodes have features, which take the place of the embeddings.
        directed: whether edges have a direction, which the scores depend on then.
        options: the other options of the model of nodes, of which `dropout` is that of PairScore as well.

    The errors are those of GraphModel.
    """

    encoder_class: type[UniformStack]

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int = 2,
        predictor_layers: int = 2,
        features: bool = False,
        directed: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(out_channels, predictor_layers)
        width = check_integer("hidden_channels", hidden_channels)
        if not features:
            self.embedding = torch.nn.Embedding(in_channels, width)
            torch.nn.init.xavier_uniform_(self.embedding.weight)
        inputs = in_channels if features else width
        make: Any = self.encoder_class
        self.encoder = make(inputs, width, width, num_layers=num_layers, **options)
        self.predictor = PairScore(width, predictor_layers, self.encoder.dropout, directed)

    def forward(
        self,
        adj: SparseOperand | list[SparseOperand],
        nodes: torch.Tensor | None = None,
        x: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return features of the nodes, [nodes, hidden_channels], or of the targets of the last block.

        Args:
            adj: an operand with the weights that the model of nodes needs, or the operands of sampled blocks,
                one for each convolution.
            nodes: with blocks: int64 [sources of the first one], its nodes.
            x: [nodes, in_channels], features of the nodes, if they have some.
        """
        if x is not None:
            return self.encoder(x, adj)
        return self.encoder(self.embedding.weight if nodes is None else self.embedding(nodes), adj)

    def score(self, features: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
        """Return the logits of pairs.

        Args:
            features: what `forward` returned.
            pairs: int64 [k, 2], nodes.

        Returns:
            [k].
        """
        return self.predictor(features, pairs)


register_around(Linked, "link", ("gcn", "graphsage"), predictor_layers=2, features=False, directed=False)
