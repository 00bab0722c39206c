"""What models of typed graphs share: maps or embeddings by type, layers over all relations, and heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.errors import bad_type, bad_value
from gnnsparse.nn import dropout
from gnnsparse.sparse.typed import Relation, TypedGraph
from models.linked import PairScore, Scorer
from models.parts import GraphModel, check_layers, make_norm

__all__ = ["LinkedTyped", "TypedModel"]


class TypedModel(GraphModel):
    """A linear map of each type's features, or embeddings of its nodes, layers, and a linear map of a type.

    Subclasses make a layer (`make_conv`) and call it (`convolve`).

    Attributes:
        typed_graph: "prepared" if layers take the operand of a prepared graph, else "edges".
        activation: what follows a layer and its normalisation.

    Args:
        in_channels: features of a node of the target type, which `types` has too.
        hidden_channels: features of all layers.
        out_channels: number of classes, labels or numbers to predict.
        num_layers: number of layers.
        dropout: probability with which training drops inputs of each layer, in [0, 1).
        norm: normalisation behind each layer, the same for all types: "none", "batch" or "layer".
        types: what the data set says of its graph: "features", by type the number of features of a node;
            "nodes", by type without features the number of nodes, which get embeddings; "relations", triples;
            and "target", the type whose nodes the outputs are of, None: all types, with hidden features.
            None: one type and one relation.

    The errors are those of GraphModel.
    """

    takes_sparse_features = False
    typed_graph: ClassVar[str] = "prepared"
    activation: ClassVar[Any] = torch.nn.Identity()

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        dropout: float,
        norm: str,
        types: Mapping[str, Any] | None,
    ) -> None:
        super().__init__(hidden_channels, dropout, residual=False)
        self.ignores_padding = norm != "batch"  # padding lies behind the nodes of each type
        alone = {"features": {"node": in_channels}, "relations": [("node", "to", "node")], "target": "node"}
        of: Mapping[str, Any] = alone if types is None else types
        features, nodes = dict(of["features"]), dict(of.get("nodes", {}))
        self.relations: list[Relation] = [(a, name, b) for a, name, b in of["relations"]]
        self.target: str | None = of["target"]
        # Lists, since a name of a type may be no name of a module.
        self.mapped, self.embedded = list(features), list(nodes)
        self.lins = torch.nn.ModuleList(torch.nn.Linear(n, hidden_channels) for n in features.values())
        self.embeddings = torch.nn.ModuleList(torch.nn.Embedding(n, hidden_channels) for n in nodes.values())
        for weight in self.embeddings.parameters():
            torch.nn.init.xavier_uniform_(weight)
        layers = range(check_layers(num_layers))
        self.convs = torch.nn.ModuleList(self.make_conv(hidden_channels) for _ in layers)
        self.norms = torch.nn.ModuleList(make_norm(norm, hidden_channels) for _ in layers)
        self.head = None if self.target is None else torch.nn.Linear(hidden_channels, out_channels)

    def make_conv(self, width: int) -> torch.nn.Module:
        """Make a layer of so many features."""
        raise NotImplementedError

    def convolve(self, conv: Any, x: dict[str, torch.Tensor], graph: TypedGraph) -> dict[str, torch.Tensor]:
        """Call a layer; types that are missing in what it returns keep their features."""
        raise NotImplementedError

    @property
    def num_convolutions(self) -> int:
        """The number of layers, for each of which a sampler draws a hop."""
        return len(self.convs)

    @property
    def first_layer(self) -> torch.nn.Module:
        """The layer whose parameters have weight decay with `optimizer.decay="first"`."""
        return self.lins

    def forward(self, x: Mapping[str, torch.Tensor], graph: TypedGraph | Mapping[Relation, Any]) -> Any:
        """Compute the outputs.

        Args:
            x: by type floating-point [nodes, features], or of a type without features int64 [nodes], which
                of the embedded nodes they are; all of them if the type is left out.
            graph: the graph, prepared or not, or edge_index [2, edges] by relation.

        Returns:
            [nodes of the target type, out_channels], or by type [nodes, hidden_channels].
        """
        hidden = self._inputs(x)
        if not isinstance(graph, TypedGraph):
            graph = TypedGraph({kind: of.shape[0] for kind, of in hidden.items()}, dict(graph))
        for relation in graph.relations:
            if relation not in self.relations:
                bad_value("graph", f"has {relation}; accepted: {', '.join(map(str, self.relations))}")
        hidden = {kind: self._of_graph(kind, hidden, count) for kind, count in graph.num_nodes.items()}
        for conv, norm in zip(self.convs, self.norms, strict=True):
            dropped = {kind: dropout(of, self.dropout, self.training) for kind, of in hidden.items()}
            found = self.convolve(conv, dropped, graph)
            rows = self.activation(norm(torch.cat(list(found.values()))))
            parts = rows.split([of.shape[0] for of in found.values()])
            hidden |= dict(zip(found, parts, strict=True))
        if self.head is None or self.target is None:
            return hidden
        return self.head(dropout(hidden[self.target], self.dropout, self.training))

    def _of_graph(self, kind: str, hidden: dict[str, torch.Tensor], count: int) -> torch.Tensor:
        if kind not in hidden:
            bad_value("graph", f"has nodes of type {kind!r}; accepted: {', '.join(map(repr, hidden))}")
        if (own := hidden[kind].shape[0]) != count:
            has = "embeddings" if kind in self.embedded else "features"
            problem = f"has {count} nodes of type {kind!r}, and there are {has} of {own}"
            bad_value("graph", f"{problem}; accepted: as many (new nodes need features)")
        return hidden[kind]

    def _inputs(self, x: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        if not isinstance(x, Mapping):
            bad_type("x", x, "a dict of features by the type of nodes")
        hidden: dict[str, torch.Tensor] = {}
        for kind, lin in zip(self.mapped, self.lins, strict=True):
            if kind not in x:
                bad_value("x", f"lacks {kind!r}; accepted: features of {', '.join(map(repr, self.mapped))}")
            hidden[kind] = lin(x[kind])
        for kind, embedding in zip(self.embedded, self.embeddings, strict=True):
            weight: Any = embedding.weight
            hidden[kind] = F.embedding(x[kind], weight) if kind in x else weight
        return hidden


class LinkedTyped(Scorer):
    """A TypedModel of all types, and PairScore of a source and a target.

    Attributes:
        encoder_class: the class of the TypedModel.

    Args:
        in_channels: features of a source.
        hidden_channels: features of all layers.
        out_channels: 1, the score of a pair.
        predictor_layers: number of linear layers of PairScore.
        types: those of a TypedModel without a target; and "link", the types of sources and of targets.
        options: the other options of the TypedModel, of which `dropout` is that of PairScore as well.

    The errors are those of GraphModel.
    """

    encoder_class: type[TypedModel]

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        predictor_layers: int = 2,
        types: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(out_channels, predictor_layers)
        kinds: tuple[str, str] = ("node", "node") if types is None else types["link"]
        self.source, self.target = kinds
        make: Any = self.encoder_class
        self.encoder = make(in_channels, hidden_channels, hidden_channels, types=types, **options)
        self.predictor = PairScore(hidden_channels, predictor_layers, self.encoder.dropout, directed=True)

    @property
    def typed_graph(self) -> str:
        """Whether layers take the operand of a prepared graph, see TypedModel."""
        return str(self.encoder.typed_graph)

    def forward(
        self, x: Mapping[str, torch.Tensor], graph: TypedGraph | Mapping[Relation, Any]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return hidden features of the sources and of the targets, see TypedModel."""
        hidden = self.encoder(x, graph)
        return hidden[self.source], hidden[self.target]

    def score(self, features: tuple[torch.Tensor, torch.Tensor], pairs: torch.Tensor) -> torch.Tensor:
        """Return the logits [k] of pairs, int64 [k, 2], by what `forward` returned."""
        return self.predictor(features[0], pairs, features[1])
