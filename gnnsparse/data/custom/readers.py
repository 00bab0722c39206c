"""Readers of a graph: npz archives, files of torch.save, Matrix Market, GraphML, and folders of OGB and DGL.

It stands alone because it makes a Content of files; options and data sets are not its matter.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gnnsparse.data.array_files import Arrays, open_npz, read_csv
from gnnsparse.data.custom.build import PARTS, Content, FileOptions, mask_of_ids
from gnnsparse.data.matrix_files import csr_of_archive, dense, read_mtx
from gnnsparse.data.optional import import_optional
from gnnsparse.errors import bad_type, bad_value, check_memory
from gnnsparse.runtime.safe_io import open_regular, open_text, read_small, reading
from gnnsparse.sparse.graph import SparseGraph

#: The names that arrays may have; the first is that of the documentation.
_FEATURES = ("x", "features", "node_features", "feat")
_LABELS = ("y", "labels", "node_labels", "label")
_MASKS = {"train": ("train_mask", "train_masks"), "val": ("val_mask", "val_masks", "valid_mask"),
          "test": ("test_mask", "test_masks")}  # fmt: skip
_INDICES = {"train": ("train_idx",), "val": ("val_idx", "valid_idx"), "test": ("test_idx",)}
_EDGES = (
    "edge_index [2, edges]; edges [edges, 2]; indptr and indices; row and col; or adj_indptr, adj_indices "
    "and adj_shape"
)
#: The names of arrays that are no columns of the nodes.
_NO_COLUMNS = {
    "num_nodes", "edge_index", "edges", "edge_weight", "indptr", "indices", "row", "col", "data", "ids",
    *_FEATURES, *_LABELS, *(name for names in (*_MASKS.values(), *_INDICES.values()) for name in names),
}  # fmt: skip


def read_archive(path: Path, _: FileOptions | None = None) -> Content:
    """Read a graph of an npz archive.

    The edges are edge_index [2, edges], sources over targets; or edges [edges, 2]; or the matrix A[target,
    source] as indptr and indices, as row and col, or as gnn-benchmark has it. Masks are bool [N] or [N,
    splits], or train_idx and so on.
    """
    with open_npz(path) as arrays:
        edges, weights, nodes = _edges(arrays)
        if {"attr_indptr", "attr_indices", "attr_shape"} <= arrays.names:
            x: np.ndarray | None = dense("attr_shape", csr_of_archive(arrays, "attr_"))
        else:
            x = _first(arrays, _FEATURES, "biuf", least=2)
        y = _first(arrays, _LABELS, "biufSU", least=1)
        given = None if nodes is None else np.array(nodes)
        given = arrays.read("num_nodes", "iu", ()) if "num_nodes" in arrays.names else given
        nodes = _count(given, [array for array in (x, y) if array is not None], edges)
        columns: dict[str, np.ndarray] = {}
        for name in sorted(arrays.names - _NO_COLUMNS):
            if not name.startswith(("adj_", "attr_")):
                with contextlib.suppress(ValueError):  # it is no number or text of each node
                    columns[name] = arrays.read(name, "biufSU", (nodes,))
        masks, ids = _masks(arrays, nodes), None
        if "ids" in arrays.names:
            ids = tuple(map(str, arrays.read("ids", "iuSU", (nodes,)).tolist()))
            if len(set(ids)) != nodes:
                bad_value("ids", "has an id twice; accepted: a different one for each node")
        named = y is not None and y.dtype.kind == "U"
        return Content(nodes, edges, weights, x, y, masks, columns, ids, named=named)


def _edges(arrays: Arrays) -> tuple[np.ndarray, np.ndarray | None, int | None]:
    """Return edges, weights, and the number of nodes if the form of the edges says it."""
    names = arrays.names
    weight = "edge_weight" if "edge_weight" in names else "data"
    if "edge_index" in names:
        edges = _signed(arrays, "edge_index", (2, None))
    elif "edges" in names:
        edges = np.ascontiguousarray(_signed(arrays, "edges", (None, 2)).T)
    elif {"row", "col"} <= names:
        row = _signed(arrays, "row", (None,))
        edges = np.stack([_signed(arrays, "col", row.shape), row])
    elif {"adj_indptr", "adj_indices", "adj_shape"} <= names:
        return _of_matrix(csr_of_archive(arrays, "adj_"))
    elif {"indptr", "indices"} <= names:
        values = arrays.read(weight, "biuf", (None,)).astype(np.float32) if weight in names else None
        indptr, indices = (_signed(arrays, name, (None,)) for name in ("indptr", "indices"))
        return _of_matrix(SparseGraph.from_csr(indptr, indices, values))
    else:
        there = ", ".join(sorted(names)[:12])
        bad_value("edge_index", f"is missing; the archive has {there}; accepted: {_EDGES}")
    return edges, arrays.read(weight, "biuf", (edges.shape[1],)) if weight in names else None, None


def _signed(arrays: Arrays, name: str, shape: tuple[int | None, ...]) -> np.ndarray:
    """Read integers as int64; those that do not fit become negative, which no node is."""
    return arrays.read(name, "iu", shape).astype(np.int64)


def _of_matrix(graph: SparseGraph) -> tuple[np.ndarray, np.ndarray | None, int]:
    if graph.num_rows != graph.num_cols:
        bad_value("adj_shape", f"is ({graph.num_rows}, {graph.num_cols}); accepted: a square one")
    edges = np.stack([graph.csr.indices.numpy().astype(np.int64), graph.csr.row_index().numpy()])
    return edges, None if graph.values is None else graph.values.numpy(), graph.num_rows


def _first(arrays: Arrays, names: tuple[str, ...], kinds: str, least: int) -> np.ndarray | None:
    """Read the first of some arrays that is there, of `least` to two dimensions; None: none is."""
    for name in names:
        if name in arrays.names:
            found = arrays.read(name, kinds)
            if not least <= found.ndim <= 2:
                accepted = "two dimensions" if least == 2 else "one or two dimensions"
                bad_value(name, f"has shape {str(found.shape)[:80]}; accepted: {accepted}")
            return found
    return None


def _masks(arrays: Arrays, nodes: int) -> dict[str, np.ndarray]:
    masks = {}
    for part in PARTS:
        for name in _MASKS[part]:
            if name not in arrays.names:
                continue
            mask = arrays.read(name, "biu")
            if mask.dtype.kind != "b" and not np.isin(mask, (0, 1)).all():
                bad_value(name, "holds other numbers than 0 and 1; accepted: a mask, or ids as train_idx")
            mask = mask != 0
            rows_last = mask.ndim == 2 and mask.shape[0] != nodes and mask.shape[1] == nodes
            masks[part] = mask.T if rows_last else mask
        for name in _INDICES[part]:
            if part not in masks and name in arrays.names:
                masks[part] = mask_of_ids(name, _signed(arrays, name, (None,)), nodes)
    return masks


_GRAPH = "a torch_geometric.data.Data or HeteroData, a list of Data, or a dict with edge_index"
#: Where a folder of PyG has its processed file.
SAVED = ("processed/data.pt", "data.pt")


def saved_graphs(path: Path) -> list[dict[Any, Any]]:
    """Return the attributes of the graphs that torch.save has written, by torch.load with weights_only.

    No code of the file is run. It has a Data, a list or tuple of graphs, what an InMemoryDataset saves as its
    processed file, a HeteroData, or a dict of tensors; `path` may also be the folder of the processed file.
    """
    if path.is_dir():
        path = next((path / name for name in SAVED if (path / name).is_file()), path / SAVED[0])
    with open_regular(path) as file, reading(path):
        if not zipfile.is_zipfile(file):
            raise ValueError("is no archive of torch.save (of torch 1.6 or later)")
        nbytes = os.fstat(file.fileno()).st_size
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                if member.compress_type != zipfile.ZIP_STORED or member.file_size > nbytes:
                    name = member.filename[:100]
                    raise ValueError(f"has a compressed part {name!r}; accepted: stored ones")
            if (wrong := archive.testzip()) is not None:
                raise ValueError(f"is damaged: its part {wrong[:100]!r} does not match its checksum")
        check_memory("path", nbytes, f"a file of {nbytes} bytes")
        found = _load(path)
        graphs = list(_graphs(found, 0))
        if not graphs:
            raise ValueError(f"holds a {type(found).__name__}, and no graph; accepted: {_GRAPH}")
        stores = [of for graph in graphs for of in (graph, *graph.values()) if isinstance(of, dict)]
        for name, value in (item for store in stores for item in store.items()):
            if isinstance(value, torch.Tensor) and value.untyped_storage().nbytes() > nbytes:
                bad_value(name, f"is a tensor of more bytes than the file has, {nbytes}")
        return graphs


def _load(path: Path) -> Any:
    """Load a file whose pickle names nothing but what torch and PyG hold to be safe."""
    safe: list[Any] = []
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception as error:  # a damaged pickle raises errors of many types
        raise ValueError(f"has a damaged pickle ({type(error).__name__}: {str(error)[:300]})") from error
    if any(name.startswith("torch_geometric.") for name in names):
        pyg = import_optional("torch_geometric.data", path.name)
        safe = [pyg.Data, pyg.HeteroData, pyg.data.DataEdgeAttr, pyg.data.DataTensorAttr]
        safe += [getattr(pyg.storage, f"{kind}Storage") for kind in ("Base", "Global", "Node", "Edge")]
    known = {f"{kind.__module__}.{kind.__name__}" for kind in safe}
    if others := sorted(set(names) - known):
        raise ValueError(
            f"names {', '.join(others)[:200]}, whose code is not run; accepted: {_GRAPH}, saved by "
            "torch.save(data.to_dict(), FILE)"
        )
    try:
        with torch.serialization.safe_globals(safe):
            return torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:
        raise ValueError(f"is damaged ({type(error).__name__}: {str(error)[:300]})") from error


def _graphs(found: Any, depth: int) -> Iterator[dict[Any, Any]]:
    """Yield the attributes of each graph of an object that was read."""
    if isinstance(found, (list, tuple)) and depth < 5:
        # InMemoryDataset.save writes (attributes, slices, class), and before PyG 2.3 it was (Data, slices).
        is_saved = len(found) == 3 and isinstance(found[2], type)
        if is_saved or (len(found) == 2 and isinstance(found[1], dict) and not isinstance(found[0], dict)):
            whole = next(_graphs(found[0], depth + 1), None)
            yield from [] if whole is None else _divided(whole, found[1] or {})
            return
        for element in found:
            yield from _graphs(element, depth + 1)
        return
    if type(found).__module__.startswith("torch_geometric."):
        found = found.to_dict()
    if isinstance(found, dict) and ("edge_index" in found or is_typed(found)):
        yield found


def is_typed(attributes: Mapping[Any, Any]) -> bool:
    """Return whether attributes are those of a HeteroData, as its `to_dict` returns them."""
    relations = [key for key in attributes if isinstance(key, tuple)]
    names = all(len(key) == 3 and all(isinstance(part, str) for part in key) for key in relations)
    return bool(relations) and names and all(isinstance(of, dict) for of in attributes.values())


def _divided(whole: dict[str, Any], slices: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the graphs of an InMemoryDataset, by where the part of each begins in every attribute."""
    bounds = {
        name: array_of(name, found).astype(np.int64).tolist()
        for name, found in slices.items()
        if isinstance(found, torch.Tensor) and found.dim() == 1 and name in whole
    }
    counts = {len(found) - 1 for found in bounds.values()}
    if max(counts, default=0) <= 1:
        yield whole
        return
    if len(counts) > 1:
        raise ValueError(
            f"has attributes of {min(counts)} and of {max(counts)} graphs; accepted: as many of each"
        )
    for at in range(counts.pop()):
        graph: dict[str, Any] = {}
        for name, found in bounds.items():
            value, first, end = whole[name], found[at], found[at + 1]
            if isinstance(value, torch.Tensor):
                across = value.dim() > 1 and ("index" in name or name == "face")  # as PyG puts them together
                size = value.shape[-1 if across else 0] if value.dim() else 0
                if not 0 <= first <= end <= size:
                    bad_value(name, f"has a part from {first} to {end} of {size}; accepted: parts in order")
                graph[name] = value[..., first:end] if across else value[first:end]
            elif isinstance(value, list) and 0 <= first < len(value):
                graph[name] = value[first] if end - first == 1 else value[first:end]
        yield graph


#: The attributes of a PyG graph that are read, with the kinds of numpy's types that they may have, and what
#: an error says of them; others may hold anything.
_ATTRIBUTES = {
    "edge_index": ("iu", "integers"),
    **dict.fromkeys(("edge_weight", "x", "y", "num_nodes"), ("biuf", "numbers")),
    **{f"{part}_mask": ("b", "bools") for part in PARTS},
}


def content_of_attributes(attributes: Mapping[str, Any]) -> Content:
    """Make a content of the attributes of a PyG graph; those that nobody knows are left out."""
    arrays = {}
    for name, (kinds, accepted) in _ATTRIBUTES.items():
        if attributes.get(name) is not None:
            arrays[name] = array = array_of(name, attributes[name])
            if array.dtype.kind not in kinds:
                bad_value(name, f"is of type {array.dtype}; accepted: {accepted}")
    if "edge_index" not in arrays:
        bad_value("edge_index", "is missing; accepted: a graph with edge_index")
    edges, x, y, weights = (arrays.get(name) for name in ("edge_index", "x", "y", "edge_weight"))
    assert edges is not None
    if edges.ndim != 2 or edges.shape[0] != 2:
        bad_value("edge_index", f"has shape {edges.shape}; accepted: (2, edges)")
    x = x[:, None] if x is not None and x.ndim == 1 else x
    weights = weights[:, 0] if weights is not None and weights.shape[1:] == (1,) else weights
    masks = {part: arrays[f"{part}_mask"] for part in PARTS if f"{part}_mask" in arrays}
    nodes = _count(arrays.get("num_nodes"), [a for a in (x, y, *masks.values()) if a is not None], edges)
    columns = {
        name: array_of(name, value).reshape(-1)
        for name, value in attributes.items()
        if isinstance(name, str) and name not in _ATTRIBUTES and isinstance(value, torch.Tensor)
        and value.shape in ((nodes,), (nodes, 1))
    }  # fmt: skip
    return Content(nodes, edges.astype(np.int64), weights, x, y, masks, columns)


def array_of(name: str, value: Any) -> np.ndarray:
    """Make an array of a tensor, or of a number."""
    if isinstance(value, (int, float)):
        return np.array(value)
    accepted = "a dense tensor of real numbers"
    if not isinstance(value, torch.Tensor):
        bad_value(name, f"is a {type(value).__name__}; accepted: {accepted}")
    if value.layout != torch.strided or value.is_complex():
        bad_value(name, f"is a {value.layout} tensor of {value.dtype}; accepted: {accepted}")
    if not value.is_contiguous():
        check_memory(name, value.numel() * value.itemsize, f"a tensor of shape {tuple(value.shape)}"[:100])
    value = value.detach().cpu()
    return (value.float() if value.dtype == torch.bfloat16 else value).contiguous().numpy()


def _count(given: np.ndarray | None, of_nodes: list[np.ndarray], edges: np.ndarray) -> int:
    """Return the number of nodes: num_nodes, the rows of the first array, or what the edges need."""
    if given is not None:
        if given.size != 1 or given.dtype.kind not in "iu" or not 0 <= int(given.item()) < 2**31:
            bad_value("num_nodes", f"is {str(given)[:40]}; accepted: 0 to 2^31 - 1")
        return int(given.item())
    for array in of_nodes:
        if array.ndim:
            return len(array)
    return int(edges.max()) + 1 if edges.size and 0 <= edges.max() < 2**31 - 1 else 0


#: Endings of the file of labels beside a matrix, which has the matrix's name otherwise.
_LABEL_FILES = (".labels", ".labels.txt", "_labels.txt", ".y.txt")
#: Bytes of a line of labels.
_LINE = 2**16


def read_matrix(path: Path, options: FileOptions) -> Content:
    """Read the matrix A[target, source] of a Matrix Market file, and labels, one in a line of a text."""
    found = read_mtx(path)
    rows, cols = found.shape
    if rows != cols:
        raise ValueError(
            f"{path}: has shape ({rows}, {cols}); accepted: a square one, of edges between nodes"
        )
    edges = np.stack([found.col, found.row]).astype(np.int64)
    stem = path.name.removesuffix(".gz").removesuffix(".mtx")
    names = [stem + ending for ending in _LABEL_FILES] if options.labels is None else [options.labels]
    file = next((path.parent / name for name in names if (path.parent / name).is_file()), None)
    if file is None and options.labels is not None:
        problem = f"there is no file {options.labels!r} in {path.parent}"
        bad_value("labels", f"{problem}; accepted: the name of a file there")
    y = None if file is None else _labels(file, rows)
    return Content(rows, edges, found.values, y=y, named=True)


def _labels(path: Path, nodes: int) -> np.ndarray:
    lines: list[str] = []
    with open_text(path) as (file, _), reading(path):
        while line := file.readline(_LINE):
            lines.append(line.decode("utf-8").strip())
            if len(lines) > nodes and lines[-1]:
                break
        while len(lines) > nodes and not lines[-1]:
            lines.pop()
        if len(lines) != nodes:
            got = "more" if len(lines) > nodes else str(len(lines))
            raise ValueError(f"has {got} labels; accepted: {nodes}, one in a line for each node")
    return np.array(lines, dtype=object)


#: Bytes of a GraphML file, and bytes of memory for each of them.
_MAX_XML, _XML_FACTOR = 2**31, 30


def read_graphml(path: Path, options: FileOptions) -> Content:
    """Read a GraphML file by NetworkX; attributes of nodes that are numbers are features, but the label."""
    if options.label is not None and not isinstance(options.label, str):
        bad_type("label", options.label, "the name of one attribute of a GraphML file")
    networkx = import_optional("networkx", path.name)
    content = read_small(path, _MAX_XML)
    with reading(path):
        check_memory("path", _XML_FACTOR * len(content), f"a graph of {len(content)} bytes of XML")
        if b"<!DOCTYPE" in content or b"<!ENTITY" in content:
            raise ValueError("declares a document type or entities; accepted: GraphML without them")
        try:
            graph = networkx.parse_graphml(content.decode("utf-8"))
        except MemoryError:
            raise
        except Exception as error:  # the parser raises errors of many types
            raise ValueError(f"is no GraphML ({type(error).__name__}: {str(error)[:200]})") from error
        return _of_networkx(graph, options)


def _of_networkx(graph: Any, options: FileOptions) -> Content:
    of_nodes, label, features = dict(graph.nodes.items()), options.label, options.feature_columns
    if options.of_model is not None:
        features = options.of_model.columns
    number = {node: at for at, node in enumerate(of_nodes)}
    ends = [(number[edge[0]], number[edge[1]]) for edge in graph.edges()]
    names = list(dict.fromkeys(name for of in of_nodes.values() for name in of))
    if label is None:
        label = next((name for name in ("label", "y") if name in names), None)
    elif label not in names:
        there = ", ".join(names)[:200] or "none"
        bad_value("label", f"no node has the attribute {label!r}; they have {there}")

    if features is None:
        rest = [name for name in names if name not in (label, "split")]
        features = [
            name
            for name in rest
            if all(_is_number(of[name]) for of in of_nodes.values() if of.get(name) is not None)
        ]
    for name in features:
        accepted = f"a number at every node, or feature_columns without {name!r}"
        _check_numbers("feature_columns", name, "node", of_nodes, accepted)
    weights, of_edges, weight = None, dict(graph.edges.items()), options.weight or "weight"
    has_weights = options.weight is not None or any(of.get(weight) is not None for of in of_edges.values())
    if of_edges and has_weights:
        _check_numbers("weight", weight, "edge", of_edges, "a number at every edge, or at none")
        weights = np.array([of[weight] for of in of_edges.values()], dtype=np.float64)
    table = {n: np.array([of[n] for of in of_nodes.values()], dtype=np.float64) for n in features}
    columns = {}
    for name in names:
        found = (of.get(name) for of in of_nodes.values())
        columns[name] = np.array(["" if value is None else str(value) for value in found], dtype=object)
    return Content(
        len(of_nodes),
        np.array(ends, dtype=np.int64).reshape(-1, 2).T,
        weights,
        features=table if of_nodes and table else None,
        y=None if label is None else columns[str(label)],
        masks={part: columns["split"] == part for part in PARTS if "split" in columns},
        columns=columns,
        ids=tuple(str(node) for node in of_nodes),
        directed=bool(graph.is_directed()),
        named=True,
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _check_numbers(option: str, name: str, what: str, attributes: dict[Any, Any], accepted: str) -> None:
    """Raise a ValueError that counts and names nodes or edges whose attribute is missing, or no number."""
    wrong = [(key, of.get(name)) for key, of in attributes.items() if not _is_number(of.get(name))]
    if wrong:
        key, value = wrong[0]
        problem = "is missing" if value is None else f"is {str(value)[:80]!r}"
        many = "" if len(wrong) == 1 else f", as at {len(wrong)} of {len(attributes)}"
        bad_value(option, f"{name!r} {problem} at {what} {str(key)[:80]!r}{many}; accepted: {accepted}")


#: A file that every folder of OGB has, of a graph without types and of one with types.
OGB_MARK, OGB_TYPED_MARK = "raw/num-node-list.csv.gz", "raw/num-node-dict.csv.gz"


def read_ogb_folder(folder: Path, _: FileOptions | None = None) -> Content:
    """Read a folder of OGB as it lies after its download, with the masks if it has one split."""

    def table(name: str, dtype: Any, rows: int, columns: int | None = None) -> np.ndarray:
        if not (folder / name).is_file():
            raise ValueError(f"{folder} lacks {name}; accepted: a whole folder of OGB's node data sets")
        return read_csv(folder / name, dtype, rows, columns)

    def optional(name: str, dtype: Any, columns: int | None = None) -> np.ndarray | None:
        return table(name, dtype, nodes, columns) if (folder / name).is_file() else None

    nodes = int(table(OGB_MARK, np.int64, 1, 1)[0, 0])
    count = int(table("raw/num-edge-list.csv.gz", np.int64, 1, 1)[0, 0])
    if not (0 <= nodes < 2**31 and count >= 0):
        raise ValueError(f"{folder} promises {nodes} nodes and {count} edges; accepted: below 2^31 nodes")
    edges = np.ascontiguousarray(table("raw/edge.csv.gz", np.int64, count, 2).T)
    x = optional("raw/node-feat.csv.gz", np.float32)
    y = optional("raw/node-label.csv.gz", np.float64)
    years = optional("raw/node_year.csv.gz", np.int64, 1)
    masks = {}
    splits = sorted(path.parent for path in (folder / "split").glob("*/train.csv.gz"))
    if len(splits) == 1:
        for part, file in zip(PARTS, ("train", "valid", "test"), strict=True):
            ids = read_csv(splits[0] / f"{file}.csv.gz", np.int64, nodes, 1, exact=False)[:, 0]
            masks[part] = mask_of_ids(f"split/{splits[0].name}/{file}", ids, nodes)
    with reading(folder):
        columns = {} if years is None else {"year": years[:, 0]}
        return Content(nodes, edges, None, x, y, masks, columns, directed=False)


#: Seconds after which a process that reads a file of DGL is ended.
_DGL_SECONDS = 600
_DGL_PROGRAM = """
import sys, warnings
warnings.simplefilter("ignore")
import numpy
from gnnsparse.interop.dgl import import_dgl
dgl = import_dgl()
graphs, labels = dgl.load_graphs(sys.argv[1])
if len(graphs) != 1:
    sys.exit(f"holds {len(graphs)} graphs; accepted: one graph")
graph = graphs[0]
if len(graph.ntypes) != 1 or len(graph.etypes) != 1:
    sys.exit("has nodes or edges of several kinds; accepted: one kind of each")
names = {"feat": "x", "feature": "x", "label": "y", "labels": "y"}
arrays = {names.get(name, name): value.numpy() for name, value in graph.ndata.items()}
for name in ("w", "weight", "edge_weight"):
    if name in graph.edata:
        arrays["edge_weight"] = graph.edata[name].numpy().reshape(-1)
source, target = graph.edges()
arrays["edge_index"] = numpy.stack([source.numpy(), target.numpy()])
arrays["num_nodes"] = numpy.array(graph.num_nodes())
numpy.savez(sys.argv[2], **arrays)
"""


def read_dgl(path: Path, _: FileOptions | None = None) -> Content:
    """Read a graph of a file that dgl.save_graphs has written, in a process of its own.

    DGL reads such files in native code that does not check them: a damaged one can end a process.
    """
    if importlib.util.find_spec("dgl") is None:
        raise ImportError(f"{path.name} needs dgl, which is not installed: docs/howto/dgl-model.md says how")
    open_regular(path).close()
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "graph.npz"
        try:
            done = subprocess.run(
                [sys.executable, "-c", _DGL_PROGRAM, str(path.absolute()), str(target)],
                capture_output=True, text=True, errors="replace", timeout=_DGL_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ValueError(f"{path}: DGL reads it for more than {_DGL_SECONDS} s") from None
        if done.returncode or not target.is_file():
            lines = done.stderr.strip().splitlines() or [f"its process ended with status {done.returncode}"]
            raise ValueError(f"{path}: DGL can't read it: {lines[-1][:300]}")
        return read_archive(target)
