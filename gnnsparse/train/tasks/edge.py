"""The task "edge": classification and regression of the edges of one graph, in steps on all of them.

Messages pass over all edges, and the labels of some are hidden.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from gnnsparse.data.datasets import EdgeDataset
from gnnsparse.errors import bad_value
from gnnsparse.nn.edge_head import EdgeScorer
from gnnsparse.sparse.operand import SparseOperand
from gnnsparse.train.device import numerics
from gnnsparse.train.metrics import make_scores
from gnnsparse.train.module import TaskModule
from gnnsparse.train.tasks import RunOptions, Task, options_found, register_task, texts_of
from gnnsparse.train.tasks.node import FullGraphData, GraphBatch, NodeClassifier, Part
from gnnsparse.train.trained import EdgeModel, LoadedModel, Prediction, arrays_of

__all__ = ["EdgeBatch", "EdgeClassifier", "EdgeData"]

#: Edges that are scored at a time.
_CHUNK = 2**18


@dataclass(frozen=True, eq=False)
class EdgeBatch(GraphBatch):
    """The whole graph on one device, and its edges; the `nodes` of a Part are numbers of edges.

    Attributes:
        edges: int64 [2, k], sources over targets, of which are also the features `edge_attr`, [k, D].
    """

    edges: torch.Tensor = field(kw_only=True)


class EdgeData(FullGraphData):
    """Lightning data module of a graph and its edges; the arguments are those of FullGraphData."""

    dataset: Any

    def __init__(self, dataset: EdgeDataset, **options: Any) -> None:
        graph: Any = dataset  # it has all that FullGraphData asks of a data set of nodes
        super().__init__(graph, **options)

    def _on_device(self, adj: SparseOperand) -> EdgeBatch:
        edges, attr = self.dataset.edge_index.to(self.device), self.dataset.edge_attr
        attr = None if attr is None else attr.to(self.device)
        return EdgeBatch(**{**vars(super()._on_device(adj)), "edge_attr": attr}, edges=edges)


def _scores_of(model: Any, features: torch.Tensor, batch: EdgeBatch, numbers: torch.Tensor) -> torch.Tensor:
    """Return what a model says of some edges of a batch, [n, classes], a chunk at a time."""
    attr, found = batch.edge_attr, []
    for chunk in numbers.split(_CHUNK):
        own = None if attr is None else attr.index_select(0, chunk)
        found.append(model.head(features, batch.edges.index_select(1, chunk), own))
    return found[0] if len(found) == 1 else torch.cat(found)


class EdgeClassifier(NodeClassifier):
    """Trains a model on the training edges of a graph, by the loss of `gnnsparse.train.metrics.make_loss`.

    Args:
        model: a gnnsparse.nn.edge_head.EdgeScorer: its `encoder` maps features [nodes, F] and an operand to
            embeddings of the nodes, of which its `head` makes scores [k, classes] of edges [2, k].
        dataset: an EdgeDataset, whose labels and metric decide loss and scores.
        optimizer: learning rate, weight decay, schedule.
        max_steps: the step at which a schedule ends, see TaskModule.
    """

    def embeddings(self, batch: GraphBatch) -> torch.Tensor:
        """Return the embeddings of all nodes."""
        model: Any = self.model
        sparse = batch.sparse_x is not None and model.takes_sparse_features
        return self.call(model.encoder, batch.sparse_x if sparse else batch.x, batch.adj)

    def _logits(self, batch: Any, part: Part) -> torch.Tensor:
        return _scores_of(self.model, self.embeddings(batch), batch, part.nodes)

    def scored(self, batch: Any) -> Any:
        """Return the whole graph, and the embeddings of its nodes."""
        whole = batch if isinstance(batch, EdgeBatch) else next(iter(batch))
        return whole, self.embeddings(whole)

    def score(self, part: str, scored: Any) -> dict[str, torch.Tensor]:
        """Return "loss" and the scores of the edges of a part, scalars on the device."""
        whole, features = scored
        of = whole.parts[part]
        return self.score_outputs(part, _scores_of(self.model, features, whole, of.nodes), of.y)


class EdgeTask(Task[EdgeDataset, EdgeData]):
    """The task "edge": edges of one graph, with a class, several labels, or numbers to predict."""

    name = "edge"
    dataset = EdgeDataset
    module = EdgeClassifier
    steps_per_epoch = 1
    sparse_features = True
    weighs_classes = True

    def model_options(self, dataset: EdgeDataset) -> dict[str, Any]:
        """Return the number of features of an edge."""
        return {"edge_channels": 0 if dataset.edge_attr is None else dataset.edge_attr.shape[1]}

    def make_data(self, dataset: EdgeDataset, run: RunOptions) -> EdgeData:
        """Make the data module: the graph with the weights that the model needs, and its edges."""
        return EdgeData(dataset, sparse_features=run.trainer.sparse_features, **run.of_data)

    def make_module(self, model: torch.nn.Module, data: EdgeData, run: RunOptions) -> TaskModule:
        """Make the Lightning module; raise ValueError if nothing is known of the edges of a part."""
        for name, part in data.batch.parts.items():
            if part.nodes.numel() == 0:
                bad_value(f"{name}_mask", "has no edge of which a label is known; accepted: one or more")
        return super().make_module(model, data, run)

    def names(self, dataset: EdgeDataset) -> dict[str, np.ndarray]:
        """Return "source" and "target", the names of the ends of edges, and "class_names", if there are."""
        ids = dataset.node_ids
        ends = zip(("source", "target"), dataset.edge_index.tolist(), strict=True)
        named = {} if ids is None else {end: [ids[node] for node in nodes] for end, nodes in ends}
        return texts_of(**named, class_names=dataset.class_names)

    def found_options(self, dataset: EdgeDataset) -> dict[str, Any]:
        """Return the task, what the labels are, and what features of nodes and edges are made of."""
        made = dataset.edge_transform
        more = {} if made is None else {"edge_transform": dict(made)}
        return {**options_found(self.name, dataset), **more}

    def predict(self, model: LoadedModel, data: EdgeData) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return "source", "target", what `arrays_of` has of all edges, and the scores of labelled parts."""
        batch: Any = data.batch
        scorer: Any = model.module
        edges = batch.edges
        if isinstance(scorer, EdgeModel):  # a model of PyG, which takes an edge_index
            own: Any = scorer.model
            scorer = EdgeScorer(EdgeModel(own.encoder, scorer.inputs), own.head)
        with torch.no_grad(), numerics(data.precision, data.device):
            features = scorer.encoder(batch.x, batch.adj)
            everyone = torch.arange(edges.shape[1], device=edges.device)
            logits = _scores_of(scorer, features, batch, everyone).float()
        scores = {
            part: {
                name: float(score(logits.index_select(0, of.nodes), of.y))
                for name, score in make_scores(data.dataset).items()
            }
            for part, of in batch.parts.items()
            if of.nodes.numel()
        }
        source, target = edges.cpu()
        found = Prediction(logits, model.recipe.several_labels, model.recipe.regression)
        return {"source": source, "target": target, **arrays_of(found)}, scores

    def describe(self, data: EdgeData, run: RunOptions) -> dict[str, Any]:
        """Return the numbers of nodes, of labelled edges to train on, and of the operand's nonzeros."""
        train = data.batch.train.nodes.numel()
        return {"nodes": data.dataset.num_nodes, "train_edges": train, "nonzeros": data.adj.nnz}


register_task(EdgeTask())
