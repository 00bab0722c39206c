"""Published graphs with types: IMDB and DBLP as MAGNN has them (Fu et al. 2020), and ogbn-mag."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from gnnsparse.data.array_files import open_npz, read_npy
from gnnsparse.data.catalog import register_dataset
from gnnsparse.data.custom.build import PARTS, Content, FileOptions, TypedContent, mask_of_ids
from gnnsparse.data.custom.typed import build_typed, read_ogb
from gnnsparse.data.datasets import normalize_rows
from gnnsparse.data.matrix_files import csr_of_archive, dense
from gnnsparse.data.sources import Source, stored_source
from gnnsparse.data.typed import TypedNodeDataset
from gnnsparse.errors import bad_value
from gnnsparse.runtime.safe_io import reading
from gnnsparse.sparse.typed import Relation, TypedGraph

#: The types of nodes of each data set of MAGNN, in the order of their numbers; the first one has classes.
_MAGNN = {"imdb": ("movie", "director", "actor"), "dblp": ("author", "paper", "term", "conference")}


def read_magnn(name: str, folder: Path) -> TypedContent:
    """Read the files of MAGNN: one matrix of all nodes, features of types, classes and the split.

    As in PyG, a relation "to" leads from each type to each other with edges between them.
    """
    kinds, sizes, x = _MAGNN[name], [], []
    for at in range(len(kinds)):
        if (file := folder / f"features_{at}.npz").is_file():
            with open_npz(file) as arrays:
                x.append(dense("shape", csr_of_archive(arrays, "")))
        elif (file := folder / f"features_{at}.npy").is_file():
            x.append(read_npy(file, "iuf", (None, None)))
        if at < len(x):
            sizes.append(len(x[at]))
        else:
            sizes.append(int((read_npy(folder / "node_types.npy", "iu", (None,)) == at).sum()))
    starts = np.cumsum([0, *sizes])
    with open_npz(folder / "adjM.npz") as arrays:
        csr = csr_of_archive(arrays, "").csr
        if (csr.rows, csr.cols) != (starts[-1], starts[-1]):
            bad_value("shape", f"is ({csr.rows}, {csr.cols}); accepted: as many as all types, {starts[-1]}")
    row, col = csr.row_index().numpy(), csr.indices.numpy().astype(np.int64)
    types = [np.searchsorted(starts, ends, side="right") - 1 for ends in (row, col)]
    edges: dict[Relation, Content] = {}
    for pair in sorted(set(zip(*(found.tolist() for found in types), strict=True))):
        chosen = (types[0] == pair[0]) & (types[1] == pair[1])
        ends = np.stack([row[chosen] - starts[pair[0]], col[chosen] - starts[pair[1]]])
        edges[kinds[pair[0]], "to", kinds[pair[1]]] = Content(ends.shape[1], ends, item="edge")
    y = read_npy(folder / "labels.npy", "iuf", (sizes[0],))
    with open_npz(folder / "train_val_test_idx.npz") as arrays:
        ids = {part: arrays.read(f"{part}_idx", "iu", (None,)).astype(np.int64) for part in PARTS}
        masks = {part: mask_of_ids(f"{part}_idx", of, sizes[0]) for part, of in ids.items()}
    none = np.empty((2, 0), np.int64)
    with reading(folder):
        nodes = {
            kind: Content(
                sizes[at], none, x=x[at] if at < len(x) else None, y=None if at else y,
                masks={} if at else masks, item=kind,
            )
            for at, kind in enumerate(kinds)
        }  # fmt: skip
    return TypedContent(nodes, edges)


def _flat(dataset: TypedNodeDataset) -> dict[str, torch.Tensor]:
    """Return the arrays of a data set by names that `_typed` reads."""
    counts = {kind: torch.tensor([count], device="cpu") for kind, count in dataset.graph.num_nodes.items()}
    groups = {"nodes": counts, "x": dataset.x, "times": dataset.times or {}}
    flat = {f"{group} {kind}": array for group, of in groups.items() for kind, array in of.items()}
    flat |= {f"edges {' '.join(relation)}": ends for relation, ends in dataset.graph.edges.items()}
    masks = (dataset.train_mask, dataset.val_mask, dataset.test_mask)
    return {**flat, "y": dataset.y, "masks": torch.stack(masks)}


def _typed(name: str, target: str, back: bool, arrays: dict[str, torch.Tensor]) -> TypedNodeDataset:
    """Make the data set of the arrays of `_flat`, if `back` is set with the reverse of each relation."""

    def group(of: str) -> dict[str, torch.Tensor]:
        return {key.split(" ", 1)[1]: arrays[key] for key in sorted(arrays) if key.startswith(f"{of} ")}

    edges: dict[Relation, torch.Tensor] = {}
    for key, ends in group("edges").items():
        source, relation, sink = key.split(" ")
        edges[source, relation, sink] = ends
    if back:
        edges |= {(t, f"rev_{relation}", s): ends.flip(0) for (s, relation, t), ends in edges.items()}
    graph = TypedGraph({kind: int(count) for kind, count in group("nodes").items()}, edges)
    classes = int(arrays["y"].max()) + 1
    train, val, test = arrays["masks"]
    return TypedNodeDataset(
        name, graph, group("x"), target, arrays["y"], train, val, test, classes, times=group("times") or None
    )


def _load(
    source: Source,
    target: str,
    read: Callable[[Path], TypedContent],
    root: str | os.PathLike[str] | None,
    normalize_features: bool,
    download: bool,
    time: str | None = None,
) -> TypedNodeDataset:
    def make(raw: Path) -> dict[str, torch.Tensor]:
        content = read(raw)
        made = build_typed(source.name, content, FileOptions(split="given", directed=True))
        assert isinstance(made, TypedNodeDataset)
        times = {} if time is None else {f"times {target}": content.nodes[target].columns[time]}
        return {**_flat(made), **{key: torch.from_numpy(of) for key, of in times.items()}}

    use = partial(_typed, source.name, target, time is not None)
    dataset = stored_source(source, root, download, use, make)
    if normalize_features:
        for x in dataset.x.values():
            normalize_rows(x)
    return dataset


def load_magnn(
    name: str,
    root: str | os.PathLike[str] | None = None,
    normalize_features: bool = False,
    download: bool = True,
) -> TypedNodeDataset:
    """Load a data set of Fu et al. (2020, "MAGNN") with its published split, as PyG has it.

    Args:
        name: "imdb": genres of 4,278 movies, with directors and actors; or "dblp": fields of 4,057 authors,
            with papers, terms and conferences, the last without features.
        root: a folder with the raw files, in itself or in `raw`; None: they are downloaded.
        normalize_features: whether features are divided by the sum of the magnitudes in their row.
        download: whether missing files may be downloaded.

    Raises:
        DatasetUnavailableError: files are missing, can't be downloaded or are malformed.
    """
    of_types = {"imdb": ("features_2.npz",), "dblp": ("features_2.npy", "node_types.npy")}[name]
    files = (
        "adjM.npz",
        "features_0.npz",
        "features_1.npz",
        *of_types,
        "labels.npy",
        "train_val_test_idx.npz",
    )
    source = Source(name, name.upper(), (), None, "raw", files, "https://www.dropbox.com")
    read = partial(read_magnn, name)
    return _load(source, _MAGNN[name][0], read, root, normalize_features, download)


for _name in _MAGNN:
    register_dataset(_name, task="typed_node")(partial(load_magnn, _name))


@register_dataset("ogbn_mag", task="typed_node")
def load_mag(
    root: str | os.PathLike[str] | None = None, normalize_features: bool = False, download: bool = True
) -> TypedNodeDataset:
    """Load ogbn-mag (Hu et al. 2020): venues of 736,389 papers, split by their years, with each reverse.

    The arguments and errors are those of `load_magnn`; `root` is the folder `mag` of OGB's archive or the one
    above it.
    """
    relations = ("author___affiliated_with___institution", "author___writes___paper",
                 "paper___cites___paper", "paper___has_topic___field_of_study")  # fmt: skip
    files = ["num-node-dict", "node-feat/paper/node-feat", "node-feat/paper/node_year",
             "node-label/paper/node-label"]  # fmt: skip
    files += [f"relations/{relation}/{file}" for relation in relations for file in ("edge", "num-edge-list")]
    parts = [f"split/time/paper/{part}" for part in ("train", "valid", "test")]
    paths = tuple(f"{file}.csv.gz" for file in (*(f"raw/{file}" for file in files), *parts))
    source = Source("ogbn_mag", "ogb", ("ogbn-mag",), None, "ogbn_mag", paths, "http://snap.stanford.edu")

    def read(raw: Path) -> TypedContent:
        content = read_ogb(raw, FileOptions())
        assert isinstance(content, TypedContent)
        return content

    return _load(source, "paper", read, root, normalize_features, download, time="year")
