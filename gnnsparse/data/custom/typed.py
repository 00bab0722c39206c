"""Data sets of a user's own graph with types: of the nodes of one type, and of the links of one relation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gnnsparse.data.array_files import read_csv
from gnnsparse.data.custom.build import (
    PARTS,
    Content,
    FileOptions,
    TypedContent,
    build_dataset,
    features_of,
    mask_of_ids,
    split_items,
    times_of,
)
from gnnsparse.data.custom.features import FeatureTransform, TypedTransform
from gnnsparse.data.custom.links import LEAST_LINKS, refuse_label_options
from gnnsparse.data.custom.readers import OGB_TYPED_MARK, content_of_attributes, read_ogb_folder
from gnnsparse.data.custom.tables import read_table
from gnnsparse.data.datasets import NodeDataset, normalize_rows
from gnnsparse.data.typed import TypedLinkDataset, TypedNodeDataset
from gnnsparse.errors import bad_value
from gnnsparse.sparse.typed import Relation, TypedGraph

#: The options that typed data have no use for.
_UNUSED = ("graph", "edge_label", "edge_features", "weight", "transform", "edge_transform", "bipartite")
#: The time of what has none: before all others.
_ALWAYS = -(2**53)
#: The attributes of a relation that are no columns of its rows.
_NO_COLUMNS = ("edge_index", "edge_weight", "num_nodes", "x", "y")
#: The K of hits@K unless a user says it.
_HITS = 10


def build_typed(
    name: str, content: TypedContent, options: FileOptions
) -> TypedNodeDataset | TypedLinkDataset:
    """Make a data set of a graph with types: of links if the task is one, or nothing has labels."""
    for option in _UNUSED:
        given = getattr(options, option)
        if given is not None and not isinstance(given, TypedTransform):
            bad_value(option, f"got {str(given)[:80]!r} for a graph with types; accepted: null")
    if options.features != "file":
        accepted = "file, as models learn embeddings of nodes without features"
        bad_value("features", f"got {options.features!r} for a graph with types; accepted: {accepted}")
    if options.task in ("graph", "edge"):
        problem = f"got {options.task!r}, and {name} is a graph with types"
        bad_value("task", f"{problem}; accepted: auto, typed_node, typed_link")
    labelled = [kind for kind, own in content.nodes.items() if own.y is not None]
    given = options.nodes or options.label or options.classes
    if options.task.endswith("link") or (options.task == "auto" and not (labelled or given)):
        return _links(name, content, options)
    return _nodes(name, content, options, labelled)


def _nodes(name: str, content: TypedContent, options: FileOptions, labelled: list[str]) -> TypedNodeDataset:
    """Make a data set of the nodes of the type with labels, or of the one that the option `nodes` names."""
    if options.nodes is not None and options.nodes not in content.nodes:
        bad_value("nodes", f"there is no type {options.nodes!r}; accepted: {', '.join(content.nodes)}")
    if options.nodes is None and len(labelled) != 1:
        have = f"{' and '.join(labelled)} have" if labelled else "no type has"
        bad_value("nodes", f"{have} labels; accepted: the type whose nodes are learned, as nodes=TYPE")
    target = options.nodes or labelled[0]
    own = content.nodes[target]
    has_features = own.x is not None or bool(own.features)
    chosen = options.of_type(target)
    made: Any = build_dataset(target, own, chosen if has_features else replace(chosen, features="constant"))
    learned: NodeDataset = made
    x, transforms = _features({kind: of for kind, of in content.nodes.items() if kind != target}, options)
    if has_features:
        x[target], transforms[target] = learned.x, learned.feature_transform or {}
    found = {kind: _times(other, options.time) for kind, other in content.nodes.items()}
    times = {kind: moments for kind, moments in found.items() if moments is not None}
    edges = {relation: torch.from_numpy(of.edges) for relation, of in content.edges.items()}
    return TypedNodeDataset(
        name, _graph(content, edges, options), {kind: x[kind] for kind in content.nodes if kind in x}, target,
        learned.y, learned.train_mask, learned.val_mask, learned.test_mask, learned.num_classes,
        learned.metric, _ids(content), learned.class_names, times if target in times else None,
        _transform(content, x, transforms),
    )  # fmt: skip


def _features(
    nodes: Mapping[str, Content], options: FileOptions
) -> tuple[dict[str, torch.Tensor], dict[str, Mapping[str, Any]]]:
    """Return the features of the types that have some, and what made them of columns."""
    x: dict[str, torch.Tensor] = {}
    transforms: dict[str, Mapping[str, Any]] = {}
    for kind, content in nodes.items():
        if content.x is None and not content.features:
            continue
        everyone = torch.ones(content.nodes, dtype=torch.bool, device="cpu")
        x[kind], made = features_of(content.x, content.features, options.of_type(kind), everyone)
        transforms[kind] = {} if made is None else made.to_dict()
        if options.normalize_features:
            normalize_rows(x[kind])
    return x, transforms


def _transform(
    content: TypedContent, x: Mapping[str, torch.Tensor], transforms: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return what other tables are read by for a model of this graph, as plain values."""
    made = {kind: FeatureTransform.read(of) for kind, of in transforms.items() if of}
    names = {kind: ids for kind, ids in (_ids(content) or {}).items() if kind not in x}
    return TypedTransform(made, names).to_dict()


def _ids(content: TypedContent) -> dict[str, tuple[str, ...]] | None:
    return {kind: own.ids for kind, own in content.nodes.items() if own.ids is not None} or None


def _times(content: Content, column: str | None) -> torch.Tensor | None:
    """Return a column of times, int64 [N], if the content has it; what has none is there always."""
    if column is None or column not in content.columns:
        return None
    times = times_of(content, column)
    if (wrong := times.frac().nan_to_num() != 0).any():
        at = int(wrong.nonzero()[0])
        got = f"column {column!r} has {float(times[at])} for {content.item} {at}"
        bad_value("split", f"{got}; accepted: whole numbers, or dates as 2024-12-31")
    return times.nan_to_num(nan=_ALWAYS).long()


def _graph(content: TypedContent, edges: dict[Relation, torch.Tensor], options: FileOptions) -> TypedGraph:
    """Make the graph, with the reverses that relations lack."""
    counts = {kind: own.nodes for kind, own in content.nodes.items()}
    turned = {back: edges[relation].flip(0) for relation, back in _reverses(content, options).items()}
    return TypedGraph(counts, edges | turned)


def _reverses(content: TypedContent, options: FileOptions) -> dict[Relation, Relation]:
    """Return the reverse of each relation that lacks it; none, if edges are directed."""
    directed = content.directed if options.directed is None else options.directed
    backs = {} if directed else {r: (r[2], f"rev_{r[1]}", r[0]) for r in content.edges}
    return {relation: back for relation, back in backs.items() if back not in content.edges}


def _predicted(content: TypedContent, options: FileOptions) -> Relation:
    """Return the relation whose links are predicted, by the option `edges` if there are several."""
    names = {"__".join(relation): relation for relation in content.edges}
    alike = [r for name, r in names.items() if options.edges in (name, r[1])]
    if options.edges is None:
        alike = list(content.edges)
    if len(alike) != 1:
        got = "there are several relations" if options.edges is None else f"got {options.edges!r}"
        bad_value("edges", f"{got}; accepted: the one whose links are predicted, of {', '.join(names)}")
    return alike[0]


def _links(name: str, content: TypedContent, options: FileOptions) -> TypedLinkDataset:
    """Make a data set of links: messages pass over the edges of the training part and of other relations.

    Of copies of an edge the first one counts, by time if there are times. With a split by time no edge of
    another relation is younger than those to train on.
    """
    refuse_label_options(options)
    relation = _predicted(content, options)
    items, of = content.edges[relation], {kind: own.nodes for kind, own in content.nodes.items()}
    times = {r: _times_of_edges(content, r, options.time) for r in content.edges}
    rows, keys = _distinct(items.edges, of[relation[2]], times[relation])
    if len(rows) < LEAST_LINKS:
        problem = f"{items.nodes} rows have {len(rows)} different pairs"
        bad_value("edges", f"{problem}; accepted: {LEAST_LINKS} or more")
    moments = times[relation]
    columns = dict(items.columns)
    if options.time is not None and moments is not None:
        columns[options.time] = np.where(moments == _ALWAYS, np.nan, moments.double())
    pairs = Content(
        len(rows), np.empty((2, 0), np.int64), item="edge",
        masks={part: mask[rows] for part, mask in items.masks.items()},
        columns={column: values[rows] for column, values in columns.items()},
    )  # fmt: skip
    each = torch.ones(len(rows), dtype=torch.bool, device="cpu")
    parts = (each, each, each) if options.split == "all" else split_items(pairs, each, options)
    edges = torch.from_numpy(items.edges[:, rows])
    latest = None if moments is None else int(moments[rows][parts[0]].max())
    graph: dict[Relation, torch.Tensor] = {}
    edge_times: dict[Relation, torch.Tensor] = {}
    for other, own in content.edges.items():
        given, when = torch.from_numpy(own.edges), times[other]
        if other == relation:
            given, when = edges[:, parts[0]], None if moments is None else moments[rows][parts[0]]
        elif other[::2] == (relation[2], relation[0]) and _is_reverse(own.edges, of[relation[2]], keys):
            given = edges[:, parts[0]].flip(0)
            when = None if moments is None else moments[rows][parts[0]]
        elif when is not None and latest is not None:
            given, when = given[:, when <= latest], when[when <= latest]
        graph[other] = given.contiguous()
        if when is not None:
            edge_times[other] = when
    backs = _reverses(content, options).items()
    edge_times |= {back: edge_times[other] for other, back in backs if other in edge_times}
    x, transforms = _features(content.nodes, options)
    found: dict[str, Any] = {}
    for part, mask in zip(PARTS, parts, strict=True):
        found[f"{part}_edges"] = edges[:, mask].T.contiguous()
        if moments is not None:
            found[f"{part}_times"] = moments[rows][mask]
    return TypedLinkDataset(
        name, _graph(content, graph, options), x, relation, **found,
        edge_times=None if moments is None else edge_times, known=torch.from_numpy(keys),
        hits_at=options.hits_at or _HITS, node_ids=_ids(content),
        feature_transform=_transform(content, x, transforms),
    )  # fmt: skip


def _times_of_edges(content: TypedContent, relation: Relation, column: str | None) -> torch.Tensor | None:
    """Return the times of a relation's edges: their own, or else those of the younger of both ends."""
    items = content.edges[relation]
    if (own := _times(items, column)) is not None:
        return own
    of_ends = [
        moments[torch.from_numpy(ends)]
        for kind, ends in zip(relation[::2], items.edges, strict=True)
        if (moments := _times(content.nodes[kind], column)) is not None
    ]
    return torch.stack(of_ends).amax(dim=0) if of_ends else None


def _distinct(edges: np.ndarray, targets: int, times: torch.Tensor | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the first row of each pair, by time if there are times, and the pairs' keys, which ascend."""
    order = np.arange(edges.shape[1]) if times is None else times.argsort(stable=True).numpy()
    keys, first = np.unique((edges[0] * targets + edges[1])[order], return_index=True)
    return order[first], keys


def _is_reverse(edges: np.ndarray, targets: int, keys: np.ndarray) -> bool:
    """Return whether edges are those with certain keys, turned round."""
    return np.array_equal(np.unique(edges[1] * targets + edges[0]), keys)


def content_of_typed(attributes: Mapping[Any, Any]) -> TypedContent:
    """Make a content of the attributes of a PyG HeteroData, as its `to_dict` returns them."""
    edges: dict[Relation, Content] = {}
    none = torch.empty(2, 0, dtype=torch.int64, device="cpu")
    for relation, own in attributes.items():
        if isinstance(relation, tuple):
            ends = content_of_attributes({"num_nodes": 0, "edge_index": own.get("edge_index")}).edges
            rows = {key: value for key, value in own.items() if key not in _NO_COLUMNS}
            items = content_of_attributes({**rows, "num_nodes": ends.shape[1], "edge_index": none})
            edges[relation] = replace(items, edges=ends, item="edge")
    nodes: dict[str, Content] = {}
    kinds = [kind for kind in attributes if isinstance(kind, str) and kind != "_global_store"]
    for kind in dict.fromkeys([*kinds, *(kind for relation in edges for kind in relation[::2])]):
        seen = [of.edges[at] for r, of in edges.items() for at in (0, 1) if r[2 * at] == kind]
        joined = torch.from_numpy(np.concatenate(seen)) if seen else none[0]
        own = {**attributes.get(kind, {}), "edge_index": torch.stack([joined, joined])}
        nodes[kind] = replace(content_of_attributes(own), edges=none.numpy(), item=kind)
    return TypedContent(nodes, edges)


def read_ogb(folder: Path, options: FileOptions) -> Content | TypedContent:
    """Read a folder of OGB as it lies after its download; of one with types, as ogbn_mag, all that it has."""
    if not (folder / OGB_TYPED_MARK).is_file():
        return read_ogb_folder(folder, options)
    counts = read_table(folder / OGB_TYPED_MARK, "comma")
    sizes = {kind: int(counts.numbers("path", kind)[0]) for kind in counts.names}
    edges: dict[Relation, Content] = {}
    for place in sorted((folder / "raw" / "relations").iterdir()):
        source, name, target = place.name.split("___")
        rows = int(read_csv(place / "num-edge-list.csv.gz", np.int64, 1, 1)[0, 0])
        ends = np.ascontiguousarray(read_csv(place / "edge.csv.gz", np.int64, rows, 2).T)
        edges[source, name, target] = Content(rows, ends, item="edge")
    return TypedContent({kind: _ogb_nodes(folder, kind, n) for kind, n in sizes.items()}, edges, False)


def _ogb_nodes(folder: Path, kind: str, nodes: int) -> Content:
    """Return what a folder of OGB has of the nodes of a type: features, labels, years and its split."""

    def table(name: str, dtype: Any) -> np.ndarray | None:
        file = folder / "raw" / f"{name}.csv.gz"
        return read_csv(file, dtype, nodes) if file.is_file() else None

    masks = {}
    splits = sorted(path.parent for path in (folder / "split").glob(f"*/{kind}/train.csv.gz"))
    for part, file in zip(PARTS, ("train", "valid", "test"), strict=True) if len(splits) == 1 else ():
        ids = read_csv(splits[0] / f"{file}.csv.gz", np.int64, nodes, 1, exact=False)[:, 0]
        masks[part] = mask_of_ids(f"split/{splits[0].parent.name}/{kind}/{file}", ids, nodes)
    years = table(f"node-feat/{kind}/node_year", np.int64)
    return Content(
        nodes, np.empty((2, 0), np.int64), x=table(f"node-feat/{kind}/node-feat", np.float32),
        y=table(f"node-label/{kind}/node-label", np.float64), masks=masks,
        columns={} if years is None else {"year": years[:, 0]}, item=kind,
    )  # fmt: skip
