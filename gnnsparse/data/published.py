"""The published data sets: their sources, and their conversion to a NodeDataset."""

from __future__ import annotations

import os
from functools import partial

import torch

from gnnsparse.data.dataset import NodeDataset, normalize_rows
from gnnsparse.data.raw import RawNodes
from gnnsparse.data.raw_files import (
    read_benchmark,
    read_heterophilous,
    read_ogb,
    read_planetoid,
    read_reddit,
    read_saint,
)
from gnnsparse.data.registry import register_dataset
from gnnsparse.data.sources import SOURCES, Source
from gnnsparse.data.splits import Masks, split_by_class
from gnnsparse.data.storage import DatasetUnavailableError, read_source
from gnnsparse.formats.csr import coo_to_csr
from gnnsparse.sparse.graph import SparseGraph

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
    data = read_source(source, root, download)
    x = data.x
    if source.normalize if normalize_features is None else normalize_features:
        normalize_rows(x)
    several = data.y.dim() == 2
    if several != (source.metric == "micro_f1"):  # the files of flickr have the names of yelp's
        raise DatasetUnavailableError(f"root: the files in {root} are not those of {source.name}")
    train, val, test = _masks(data, split)
    return NodeDataset(
        name=source.name,
        graph=_graph(data.edges, x.shape[0], source.directed),
        x=x,
        y=data.y,
        train_mask=train,
        val_mask=val,
        test_mask=test,
        num_classes=data.y.shape[1] if several else int(data.y.max()) + 1,
        metric=source.metric,
    )


def _masks(data: RawNodes, split: int) -> Masks:
    masks = (data.train_masks, data.val_masks, data.test_masks)
    if masks[0] is None or masks[1] is None or masks[2] is None:
        return split_by_class(data.y, split, _TRAIN_PER_CLASS, _VAL_PER_CLASS)
    if split >= masks[0].shape[0]:
        raise DatasetUnavailableError(
            f"split: got {split}; accepted: below {masks[0].shape[0]}, as the files have"
        )
    return masks[0][split].clone(), masks[1][split].clone(), masks[2][split].clone()


def _graph(edges: torch.Tensor, nodes: int, directed: bool) -> SparseGraph:
    """Makes a graph of edges in range, in which repeated ones count once. Directed ones get reverse ones."""
    source, target = edges
    if directed:
        source, target = torch.cat([source, target]), torch.cat([target, source])
    csr, _ = coo_to_csr(target.contiguous(), source.contiguous(), nodes, nodes)
    return SparseGraph(csr)


def _planetoid(name: str, title: str) -> Source:
    parts = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
    files = tuple(f"ind.{name}.{part}" for part in parts)
    site = "https://github.com"
    return Source(name, "Planetoid", (title,), read_planetoid, f"{title}/raw", files, site, normalize=True)


def _heterophilous(name: str) -> Source:
    file, site = (f"{name}.npz",), "https://github.com"
    return Source(
        name, "HeterophilousGraphDataset", (name,), read_heterophilous, f"{name}/raw", file, site,
        splits=10, metric="roc_auc", directed=True,
    )  # fmt: skip


def _unsplit(name: str, downloader: str, title: str, file: str) -> Source:
    place, site = f"{title}/raw", "https://github.com"
    return Source(
        name, downloader, (title,), read_benchmark, place, (file,), site, splits=None, directed=True
    )


def _saint(name: str, downloader: str, metric: str) -> Source:
    files = ("adj_full.npz", "feats.npy", "class_map.json", "role.json")
    site = "https://drive.usercontent.google.com"
    return Source(name, downloader, (), read_saint, "raw", files, site, metric=metric)


def _ogb(name: str, split: str, more: tuple[str, ...] = ()) -> Source:
    tables = ("edge", "node-feat", "node-label", "num-node-list", "num-edge-list", *more)
    files = [f"raw/{table}.csv.gz" for table in tables]
    files += [f"split/{split}/{part}.csv.gz" for part in ("train", "valid", "test")]
    title, site = name.replace("_", "-"), "http://snap.stanford.edu"
    return Source(name, "ogb", (title,), read_ogb, name, tuple(files), site, directed=True)


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
    Source(
        "reddit",
        "Reddit",
        (),
        read_reddit,
        "raw",
        ("reddit_data.npz", "reddit_graph.npz"),
        "https://data.dgl.ai",
    ),
    _saint("flickr", "Flickr", "accuracy"),
    _saint("yelp", "Yelp", "micro_f1"),
    _ogb("ogbn_arxiv", "time", more=("node_year",)),
    _ogb("ogbn_products", "sales_ranking"),
):
    register_published(_source)
