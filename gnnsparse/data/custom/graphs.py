"""Graphs in the files of other tools: Matrix Market with labels, GraphML, OGB's folders, DGL's files."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from gnnsparse.data.custom.archives import read_archive
from gnnsparse.data.custom.content import PARTS, Content, column_of_ids
from gnnsparse.data.mtx import read_mtx
from gnnsparse.data.optional import import_optional
from gnnsparse.data.tables import read_csv
from gnnsparse.errors import bad_value, check_memory
from gnnsparse.runtime.safe_io import open_regular, open_text, read_small, reading

__all__ = ["OGB_MARK", "read_dgl", "read_graphml", "read_matrix", "read_ogb_folder"]

#: A file that every folder of OGB has.
OGB_MARK = "raw/num-node-list.csv.gz"
#: Bytes of a GraphML file, and bytes of memory for each of them.
_MAX_XML, _XML_FACTOR = 2**31, 30
#: Endings of the file of labels beside a matrix, which has the matrix's name otherwise.
_LABEL_FILES = (".labels", ".labels.txt", "_labels.txt", ".y.txt")
#: Bytes of a line of labels.
_LINE = 2**16
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


def read_matrix(path: Path, labels: str | None) -> Content:
    """Reads the matrix A[target, source] of a Matrix Market file, and labels of a text beside it.

    Args:
        path: the file, `.mtx` or `.mtx.gz`.
        labels: name of the file of labels in the same folder, a label in each line, an empty one where there
            is none; None: the name of the matrix with the ending .labels, .labels.txt, _labels.txt or
            .y.txt, if there is such a file.

    Raises:
        ValueError: a file is damaged, the matrix is not square, or there are more or fewer labels than nodes.
        MemoryError: the matrix does not fit into memory.
        OSError: a file can't be read.
    """
    found = read_mtx(path)
    rows, cols = found.shape
    with reading(path):
        if rows != cols:
            raise ValueError(f"has shape ({rows}, {cols}); accepted: a square matrix, of edges between nodes")
    edges = np.stack([found.col, found.row]).astype(np.int64)
    stem = path.name.removesuffix(".gz").removesuffix(".mtx")
    names = [labels] if labels is not None else [stem + ending for ending in _LABEL_FILES]
    file = next((path.parent / name for name in names if (path.parent / name).is_file()), None)
    if file is None and labels is not None:
        bad_value(
            "labels", f"there is no file {labels!r} in {path.parent}; accepted: the name of a file there"
        )
    y = None if file is None else _labels(file, rows)
    return Content(rows, edges, found.values, y=y, named=True)


def _labels(path: Path, nodes: int) -> np.ndarray:
    """Reads the label in each line of a text."""
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


def read_graphml(path: Path, label: str | None, weight: str | None, features: list[str] | None) -> Content:
    """Reads a GraphML file by NetworkX, with the attributes of its nodes and edges.

    Args:
        path: the file.
        label: attribute of a node that is its label; None: label or y, if there is one.
        weight: attribute of an edge that is its weight; None: weight, if edges have it.
        features: attributes of the nodes that are features; None: all numbers but the label.

    Raises:
        ValueError: the file is damaged, there is no such attribute, or it is no number, or is missing at a
            node or an edge, where it has to be a number everywhere.
        MemoryError: the graph does not fit into memory.
        ImportError: NetworkX is not installed.
        OSError: the file can't be read.
    """
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
        return _of_networkx(graph, label, weight, features)


def _of_networkx(graph: Any, label: str | None, weight: str | None, features: list[str] | None) -> Content:
    nodes = list(graph.nodes)
    number = {node: at for at, node in enumerate(nodes)}
    ends = [(number[edge[0]], number[edge[1]]) for edge in graph.edges()]
    edges = np.array(ends, dtype=np.int64).reshape(-1, 2).T
    attributes = [graph.nodes[node] for node in nodes]
    names = list(dict.fromkeys(name for of in attributes for name in of))
    if label is None:
        label = next((name for name in ("label", "y") if name in names), None)
    elif label not in names:
        bad_value(
            "label", f"no node has the attribute {label!r}; they have {', '.join(names)[:200] or 'none'}"
        )
    y = None
    if label is not None:
        y = np.array(["" if of.get(label) is None else str(of[label]) for of in attributes], dtype=object)
    if features is None:
        features = [
            name for name in names if name not in (label, "split") and _holds_numbers(attributes, name)
        ]
    columns = {name: np.array([str(of.get(name, "")) for of in attributes], dtype=object) for name in names}
    of_nodes = dict(zip(nodes, attributes, strict=True))
    for name in features:
        accepted = f"a number at every node, or feature_columns without {name!r}"
        _check_numbers("feature_columns", name, "node", of_nodes, accepted)
    table = [[of[name] for name in features] for of in attributes]
    return Content(
        len(nodes),
        edges,
        _weights(graph, weight),
        x=np.array(table, dtype=np.float64) if features and table else None,
        y=y,
        masks=_parts(columns.get("split")),
        columns=columns,
        ids=tuple(str(node) for node in nodes),
        feature_names=tuple(features) if features and table else None,
        directed=bool(graph.is_directed()),
        named=True,
    )


def _parts(split: np.ndarray | None) -> dict[str, np.ndarray]:
    return {} if split is None else {part: split == part for part in PARTS}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _holds_numbers(attributes: list[Any], name: str) -> bool:
    """Return whether an attribute is a number wherever it is given."""
    return all(_is_number(of[name]) for of in attributes if of.get(name) is not None)


def _check_numbers(option: str, name: str, what: str, attributes: dict[Any, Any], accepted: str) -> None:
    """Raise a ValueError that counts and names nodes or edges whose attribute is missing, or no number."""
    wrong = [(key, of.get(name)) for key, of in attributes.items() if not _is_number(of.get(name))]
    if wrong:
        key, value = wrong[0]
        problem = "is missing" if value is None else f"is {str(value)[:80]!r}"
        many = "" if len(wrong) == 1 else f", as at {len(wrong)} of {len(attributes)}"
        bad_value(option, f"{name!r} {problem} at {what} {str(key)[:80]!r}{many}; accepted: {accepted}")


def _weights(graph: Any, weight: str | None) -> np.ndarray | None:
    name = weight or "weight"
    attributes = dict(graph.edges.items())
    if weight is None and all(of.get(name) is None for of in attributes.values()):
        return None
    _check_numbers("weight", name, "edge", attributes, "a number at every edge, or at none")
    values = [of[name] for of in attributes.values()]
    return np.array(values, dtype=np.float64) if values else None


def read_ogb_folder(folder: Path) -> Content:
    """Reads a folder of OGB's node data sets as it lies after its download: compressed tables.

    Args:
        folder: the folder with raw/ and split/.

    Raises:
        ValueError: a file is missing, damaged, or has other sizes than the others.
        MemoryError: the tables do not fit into memory.
        OSError: a file can't be read.
    """

    def table(name: str, kind: Any, rows: int, columns: int | None = None, exact: bool = True) -> Any:
        if not (folder / name).is_file():
            bad_value("path", f"{folder} lacks {name}; accepted: a whole folder of OGB's node data sets")
        return read_csv(folder / name, kind, rows, columns, exact)

    nodes = int(table(OGB_MARK, np.int64, 1, 1)[0, 0])
    count = int(table("raw/num-edge-list.csv.gz", np.int64, 1, 1)[0, 0])
    if not (0 <= nodes < 2**31 and count >= 0):
        bad_value("path", f"{folder} promises {nodes} nodes and {count} edges; accepted: below 2^31 nodes")
    edges = table("raw/edge.csv.gz", np.int64, count, 2)
    x = y = None
    if (folder / "raw/node-feat.csv.gz").is_file():
        x = table("raw/node-feat.csv.gz", np.float32, nodes)
    if (folder / "raw/node-label.csv.gz").is_file():
        y = table("raw/node-label.csv.gz", np.float64, nodes)
    columns = {}
    if (folder / "raw/node_year.csv.gz").is_file():
        columns["year"] = table("raw/node_year.csv.gz", np.int64, nodes, 1)[:, 0]
    with reading(folder):
        return Content(
            nodes,
            np.ascontiguousarray(edges.T),
            None,
            x,
            y,
            _ogb_split(folder, nodes),
            columns,
            directed=False,
        )


def _ogb_split(folder: Path, nodes: int) -> dict[str, np.ndarray]:
    """Reads the split of a folder of OGB, which must have one at most."""
    found = sorted(path for path in (folder / "split").glob("*") if (path / "train.csv.gz").is_file())
    if len(found) != 1:
        return {}
    masks = {}
    for part, file in zip(PARTS, ("train", "valid", "test"), strict=True):
        path = found[0] / f"{file}.csv.gz"
        ids = read_csv(path, np.int64, nodes, 1, exact=False)[:, 0]
        masks[part] = column_of_ids(f"split/{found[0].name}/{file}", ids, nodes)
    return masks


def read_dgl(path: Path) -> Content:
    """Reads a graph of a file that dgl.save_graphs has written, in a process of its own.

    DGL reads such files in native code that does not check them: a damaged one can end a process.

    Args:
        path: the file, with one graph of one kind of nodes; features are "feat", labels "label", weights "w".

    Raises:
        ValueError: the file can't be read, or holds several graphs or kinds of nodes.
        ImportError: DGL is not installed.
        OSError: the file can't be opened.
    """
    import_spec(path.name)
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


def import_spec(needed_by: str) -> None:
    """Raises ImportError if DGL is not installed."""
    import importlib.util

    if importlib.util.find_spec("dgl") is None:
        raise ImportError(f"{needed_by} needs dgl, which is not installed: docs/howto/dgl-model.md says how")
