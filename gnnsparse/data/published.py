"""The published data sets: their sources, and their conversion to a NodeDataset."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import torch

from gnnsparse.csr import coo_to_csr
from gnnsparse.data.dataset import NodeDataset, normalize_rows
from gnnsparse.data.registry import register_dataset
from gnnsparse.data.sources import SOURCES, Source
from gnnsparse.data.splits import Masks, split_by_class
from gnnsparse.data.storage import DatasetUnavailableError, read_source
from gnnsparse.graph import SparseGraph

__all__ = ["load_published", "register_published"]

#: Nodes of each class in the usual split of data sets that have no published one.
_TRAIN_PER_CLASS, _VAL_PER_CLASS = 20, 30


def register_published(source: Source) -> None:
    """Registers a published data set.

    Raises:
        ValueError: its name is taken.
    """
    register_dataset(source.name, task="node", splits=source.splits)(partial(load_published, source.name))
    SOURCES[source.name] = source


def load_published(
    name: str,
    root: str | os.PathLike[str] | None = None,
    split: int = 0,
    normalize_features: bool | None = None,
    download: bool = True,
) -> NodeDataset:
    """Loads a published data set; `load_dataset` documents the arguments and errors."""
    source = SOURCES[name]
    data, node_ids = read_source(source, root, download)
    x = data.x.to(torch.float32).contiguous()
    if source.normalize if normalize_features is None else normalize_features:
        normalize_rows(x)
    several = data.y.dim() == 2 and data.y.shape[1] > 1
    if several != (source.metric == "micro_f1"):  # the files of flickr have the names of yelp's
        raise DatasetUnavailableError(f"root: the files in {root} are not those of {source.name}")
    y = data.y.to(torch.float32) if several else data.y.reshape(-1).to(torch.int64)
    train, val, test = _masks(data, y, split, node_ids)
    return NodeDataset(
        name=source.name,
        graph=_graph(data.edge_index, x.shape[0], source.directed),
        x=x,
        y=y,
        train_mask=train,
        val_mask=val,
        test_mask=test,
        num_classes=y.shape[1] if several else int(y.max()) + 1,
        metric=source.metric,
    )


def _masks(data: Any, y: torch.Tensor, split: int, node_ids: dict[str, torch.Tensor] | None) -> Masks:
    if node_ids is not None:
        train, val, test = (torch.zeros(y.shape[0], dtype=torch.bool) for _ in range(3))
        for mask, part in ((train, "train"), (val, "valid"), (test, "test")):
            mask[node_ids[part]] = True
        return train, val, test
    if "train_mask" not in data:
        return split_by_class(y, split, _TRAIN_PER_CLASS, _VAL_PER_CLASS)
    masks = (data.train_mask, data.val_mask, data.test_mask)
    if data.train_mask.dim() == 2:  # a column for each split
        masks = tuple(mask[:, split].contiguous() for mask in masks)
    return masks[0].bool(), masks[1].bool(), masks[2].bool()


def _graph(edge_index: torch.Tensor, nodes: int, directed: bool) -> SparseGraph:
    """Makes a graph of PyG's edges, in which repeated edges count as one. Directed edges get reverse ones."""
    source, target = edge_index
    if directed:
        source, target = torch.cat([source, target]), torch.cat([target, source])
    csr, _ = coo_to_csr(target.contiguous(), source.contiguous(), nodes, nodes)
    return SparseGraph(csr)


def _planetoid(name: str, title: str) -> Source:
    parts = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
    files = tuple(f"ind.{name}.{part}" for part in parts)
    return Source(name, "Planetoid", (title,), f"{title}/raw", files, "https://github.com", normalize=True)


def _heterophilous(name: str) -> Source:
    file = (f"{name}.npz",)
    reader, site = "HeterophilousGraphDataset", "https://github.com"
    return Source(name, reader, (name,), f"{name}/raw", file, site, splits=10, metric="roc_auc")


def _unsplit(name: str, reader: str, title: str, file: str) -> Source:
    return Source(name, reader, (title,), f"{title}/raw", (file,), "https://github.com", splits=None)


def _saint(name: str, reader: str, metric: str) -> Source:
    files = ("adj_full.npz", "feats.npy", "class_map.json", "role.json")
    return Source(name, reader, (), "raw", files, "https://drive.usercontent.google.com", metric=metric)


def _ogb(name: str, split: str, more: tuple[str, ...] = (), directed: bool = False) -> Source:
    tables = ("edge", "node-feat", "node-label", "num-node-list", "num-edge-list", *more)
    files = [f"raw/{table}.csv.gz" for table in tables]
    files += [f"split/{split}/{part}.csv.gz" for part in ("train", "valid", "test")]
    title, site = name.replace("_", "-"), "http://snap.stanford.edu"
    return Source(name, "ogb", (title,), name, tuple(files), site, directed=directed)


for _source in (
    _planetoid("cora", "Cora"),
    _planetoid("citeseer", "CiteSeer"),
    _planetoid("pubmed", "PubMed"),
    _heterophilous("minesweeper"),
    _heterophilous("tolokers"),
    _unsplit("amazon_photo", "Amazon", "Photo", "amazon_electronics_photo.npz"),
    _unsplit("amazon_computers", "Amazon", "Computers", "amazon_electronics_computers.npz"),
    _unsplit("coauthor_cs", "Coauthor", "CS", "ms_academic_cs.npz"),
    _unsplit("coauthor_physics", "Coauthor", "Physics", "ms_academic_phy.npz"),
    Source("reddit", "Reddit", (), "raw", ("reddit_data.npz", "reddit_graph.npz"), "https://data.dgl.ai"),
    _saint("flickr", "Flickr", "accuracy"),
    _saint("yelp", "Yelp", "micro_f1"),
    _ogb("ogbn_arxiv", "time", more=("node_year",), directed=True),
    _ogb("ogbn_products", "sales_ranking"),
):
    register_published(_source)
