"""Links of a user's own graph: the parts of its edges, and pairs without an edge, for the task of links."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gnnsparse.data.custom.build import PARTS, BuildOptions, Content, FileOptions, split_items
from gnnsparse.data.custom.build import features_of_nodes as features_of
from gnnsparse.data.custom.build import graph_of as graph_with
from gnnsparse.data.custom.tables import ENDINGS, columns_of_edges, ends_of_relation, read_table
from gnnsparse.data.datasets import LinkDataset, draw_negatives, normalize_rows
from gnnsparse.data.splits import split_generator
from gnnsparse.data.typed import TypedLinkDataset
from gnnsparse.errors import bad_value
from gnnsparse.formats.csr import check_range

#: The least edges that are split, and the largest K of hits@K unless a user says it, one in ten negatives.
LEAST_LINKS, _HITS = 10, 20


def build_links(name: str, content: Content, options: BuildOptions) -> LinkDataset:
    """Make a data set of links of a graph: messages pass over the edges of the training part alone.

    Copies of an edge, of an undirected one also (v, u), are in one part; self-loops are in none.
    """
    refuse_label_options(options)
    edges, nodes = torch.from_numpy(content.edges).contiguous(), content.nodes
    for ends in edges:
        check_range("edge_index", ends, nodes, "num_nodes")
    directed = bool(content.directed if options.directed is None else options.directed)
    if options.directed is None and directed:  # PyG and others store both directions of undirected edges
        both = [(ends[0] * nodes + ends[1]).unique() for ends in (edges, edges.flip(0))]
        directed = not torch.equal(*both)
    sides = _sides(edges, nodes) if content.bipartite or options.bipartite else None
    pairs = edges.T if directed or sides is not None else edges.T.sort(dim=1).values
    keys, group = (pairs[:, 0] * nodes + pairs[:, 1]).unique(return_inverse=True)
    pairs = torch.stack([keys // nodes, keys % nodes], dim=1)
    own = pairs[:, 0] != pairs[:, 1]
    if int(own.sum()) < LEAST_LINKS:
        there = f"{int(own.sum())} different edges between two nodes"
        bad_value("edges", f"{content.edges.shape[1]} rows have {there}; accepted: {LEAST_LINKS} or more")
    masks = _parts(content, group, own, options)
    train = masks[0][group].numpy()
    weights = None if content.weights is None else content.weights[train]
    graph = graph_with(replace(content, edges=content.edges[:, train], weights=weights), directed)
    known = keys if directed or sides is not None else torch.cat([keys, pairs[:, 1] * nodes + pairs[:, 0]])
    known = known.unique()
    found: dict[str, Any] = {"train_edges": pairs[masks[0]]}
    for number, part in enumerate(PARTS[1:], 1):
        found[f"{part}_edges"] = edges_of = pairs[masks[number]]
        draw = split_generator(number, options.seed)
        found[f"{part}_negatives"] = draw_negatives(known, nodes, edges_of, draw, sides, directed)
    least = min(len(found["val_negatives"]), len(found["test_negatives"]))
    x, transform = None, None
    if options.features != "file" or content.x is not None or content.features:
        everyone = torch.ones(nodes, dtype=torch.bool, device="cpu")
        x, transform = features_of(content, graph, options, everyone)
        if options.normalize_features:
            normalize_rows(x)
    return LinkDataset(
        name, graph, **found, hits_at=options.hits_at or max(1, min(_HITS, least // 10)), metric="auc",
        x=x, node_ids=content.ids, directed=directed, sides=sides, known=known,
        feature_names=None if transform is None or content.features is None else transform.names,
        feature_transform={} if transform is None else transform.to_dict(),
    )  # fmt: skip


def refuse_label_options(options: BuildOptions) -> None:
    """Raise ValueError if options of labels are given for links, which have none."""
    if options.label_kind != "auto" or options.metric is not None:
        what = "metric" if options.metric is not None else "label_kind"
        problem = f"got {getattr(options, what)!r} for links, which are scored by auc, hits@K and mrr"
        bad_value(what, f"{problem}; accepted: null, or another task" if what == "metric" else
                  f"{problem}; accepted: auto")  # fmt: skip


def _sides(edges: torch.Tensor, nodes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the nodes that are sources and those that are targets, of which none may be both."""
    sources, targets = (ends.unique() for ends in edges)
    if (both := sources[torch.isin(sources, targets)]).numel():
        got = f"node {int(both[0])} is a source and a target"
        bad_value("bipartite", f"{got}; accepted: different numbers for nodes of two kinds, or false")
    return sources, targets


def _parts(content: Content, group: torch.Tensor, own: torch.Tensor, options: BuildOptions) -> Any:
    """Return the edges of each part, bool [groups] each; `group` int64 [rows] says whose copy a row is."""
    items, first = content.of_edges, np.full(own.numel(), group.numel())
    np.minimum.at(first, group.numpy(), np.arange(group.numel()))
    masks, columns = {}, {}
    if items is not None:
        columns = {name: values[first] for name, values in items.columns.items()}
        for name, mask in items.masks.items():
            masks[name] = np.zeros(own.numel(), bool)
            masks[name][group.numpy()[mask]] = True
    of_links = Content(own.numel(), np.empty((2, 0), np.int64), masks=masks, columns=columns, item="edge")
    return split_items(of_links, own, options)


def read_pairs(path: Path, options: FileOptions, dataset: LinkDataset | TypedLinkDataset) -> torch.Tensor:
    """Read pairs of nodes of a data set, int64 [k, 2], of a table or of the table `edges` in a folder."""
    relation = getattr(dataset, "relation", None)  # which `edges` names in a graph with types
    edges = "edges" if relation is not None or options.edges is None else options.edges
    files = [path / f"{edges}{ending}" for ending in ("", *ENDINGS)]
    file = next((file for file in files if file.is_file()), path) if path.is_dir() else path
    if not file.is_file() or not file.name.endswith(ENDINGS):
        bad_value("pairs", f"there is no table {str(path)!r}; accepted: a file {', '.join(ENDINGS)}, or a "
                  "folder with such a file named edges")  # fmt: skip
    read = read_table(file, options.separator)
    own = options if relation is None else ends_of_relation(read, relation, options)
    table, ends, _ = columns_of_edges(read, own)
    found = []
    for at, (option, number) in enumerate(zip(("source", "target"), _numbers_of_ends(dataset), strict=True)):
        texts = table.full_texts(option, str(ends[at])).tolist()
        if (row := next((row for row, text in enumerate(texts) if text not in number), None)) is not None:
            accepted = f"nodes of {dataset.name}, whose graph scores the pairs"
            table.refuse("pairs", str(ends[at]), row, accepted)
        found.append(torch.tensor([number[text] for text in texts], dtype=torch.int64, device="cpu"))
    return torch.stack(found, dim=1)


def _numbers_of_ends(dataset: LinkDataset | TypedLinkDataset) -> list[dict[str, int]]:
    """Return the numbers by id of the nodes that can be sources, and of those that can be targets."""
    found = []
    for at in (0, 1):
        if isinstance(dataset, TypedLinkDataset):
            ids = (dataset.node_ids or {}).get(dataset.relation[2 * at])
            nodes = list(range(dataset.sizes[at]))
        else:
            ids = dataset.node_ids
            nodes = list(range(dataset.num_nodes)) if dataset.sides is None else dataset.sides[at].tolist()
        found.append({(str(node) if ids is None else ids[node]): node for node in nodes})
    return found
