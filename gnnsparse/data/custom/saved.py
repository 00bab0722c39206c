"""Graphs of PyTorch Geometric that torch.save has written, read without PyG and without running their code.

The pickle in such a file names classes, of PyG, of torch and of the user. Here every name stands for a
passive record, which keeps what it is given, so that nothing is imported and nothing is called. Tensors are
made of the bytes in the archive, after checks of their sizes and strides.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gnnsparse.data.custom.content import PARTS, Content
from gnnsparse.data.pickles import Record, check_instructions
from gnnsparse.errors import bad_value, check_memory
from gnnsparse.runtime.safe_io import open_regular, reading

__all__ = ["content_of_arrays", "read_saved"]

#: Bytes of a pickle, which has the names and sizes of the tensors alone.
_MAX_PICKLE = 2**28
#: Instructions of torch's files, and of sets, which Planetoid's pickles do not have.
_MORE = frozenset({"BINPERSID", "EMPTY_SET", "ADDITEMS", "FROZENSET"})
#: Numpy's types of the elements of storages; bfloat16 has none and is made of its bits.
_STORAGES = {
    "torch.FloatStorage": "<f4", "torch.DoubleStorage": "<f8", "torch.HalfStorage": "<f2",
    "torch.BFloat16Storage": "<u2", "torch.LongStorage": "<i8", "torch.IntStorage": "<i4",
    "torch.ShortStorage": "<i2", "torch.CharStorage": "<i1", "torch.ByteStorage": "<u1",
    "torch.BoolStorage": "<u1",
}  # fmt: skip
_TENSORS = ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor")
_GRAPH = "a torch_geometric.data.Data, a Dataset or a list with one, or a dict with edge_index"
#: The attributes of a Data that are read; others may hold anything.
_MASKS = {part: f"{part}_mask" for part in PARTS}


class _Passive(Record):
    """What a pickle says of an object of any class; `name` of the subclass is the class's full name."""

    name = ""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.elements: list[Any] = []

    def append(self, element: Any) -> None:
        self.elements.append(element)

    def extend(self, elements: Any) -> None:
        self.elements.extend(elements)

    add = append


class _Storage:
    """The storage of a tensor: its type, the name of its file in the archive, and its number of elements."""

    def __init__(self, kind: str, key: str, count: int) -> None:
        self.kind, self.key, self.count = kind, key, count


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="utf-8")
        self._classes: dict[str, type[_Passive]] = {}

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full not in self._classes:
            self._classes[full] = type("Named", (_Passive,), {"name": full})
        return self._classes[full]

    def persistent_load(self, pid: Any) -> Any:
        if (
            not isinstance(pid, tuple)
            or len(pid) != 5
            or pid[0] != "storage"
            or not (isinstance(pid[1], type) and issubclass(pid[1], _Passive))
            or not isinstance(pid[2], str)
            or type(pid[4]) is not int
        ):
            raise ValueError("refers to something else than a storage")
        return _Storage(pid[1].name, pid[2], pid[4])


def read_saved(path: Path) -> Content:
    """Reads a graph that torch.save has written.

    Args:
        path: a file of a Data, of a Dataset, list or tuple with one graph, of what an InMemoryDataset saves
            as its processed file, or of a dict of tensors.

    Raises:
        ValueError: the file is damaged or of another kind, or holds no graph, or several.
        MemoryError: what it holds does not fit into memory.
        OSError: it can't be opened.
    """
    with open_regular(path) as file, reading(path):
        size = os.fstat(file.fileno()).st_size
        if not zipfile.is_zipfile(file):
            raise ValueError("is no archive of torch.save (of torch 1.6 or later)")
        with zipfile.ZipFile(file) as archive:
            saved = _Archive(archive, size)
            attributes = _attributes(saved.load())
            return content_of_arrays({name: saved.array(name, value) for name, value in attributes.items()})


class _Archive:
    """The archive that torch.save has written: a pickle, and a file for each storage."""

    def __init__(self, archive: zipfile.ZipFile, size: int) -> None:
        self._archive, self._size = archive, size
        names = [name for name in archive.namelist() if name.endswith("/data.pkl") or name == "data.pkl"]
        if len(names) != 1:
            raise ValueError("is no archive of torch.save: it has no data.pkl")
        self._root = names[0].removesuffix("data.pkl")

    def load(self) -> Any:
        """Returns the object of the pickle, made of records."""
        order = self._root + "byteorder"
        if order in self._archive.namelist() and self._bytes(order, 16) != b"little":
            raise ValueError("was written on a machine with another byte order; accepted: little-endian")
        content = self._bytes(self._root + "data.pkl", _MAX_PICKLE)
        check_instructions(content, _MORE)
        try:
            return _Unpickler(content).load()
        except Exception as error:  # an unpickler raises errors of many types
            raise ValueError(f"has a damaged pickle ({type(error).__name__}: {str(error)[:300]})") from error

    def _bytes(self, name: str, limit: int) -> bytes:
        try:
            member = self._archive.getinfo(name)
        except KeyError:
            raise ValueError(f"lacks its part {name[:100]!r}") from None
        if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
            raise ValueError(
                f"has a compressed part {name[:100]!r}; accepted: stored ones, as torch.save writes"
            )
        if member.file_size > min(limit, self._size) or member.file_size != member.compress_size:
            raise ValueError(f"promises {member.file_size} bytes of {name[:100]!r} in a file of {self._size}")
        check_memory(name[:100], member.file_size, f"an array of {member.file_size} bytes")
        return self._archive.read(member)

    def array(self, name: str, record: Any) -> np.ndarray:
        """Makes an array of a recorded tensor."""
        if isinstance(record, (int, float)):
            return np.array(record)
        if isinstance(record, _Passive) and record.name == "torch._utils._rebuild_parameter":
            record = record.arguments[0] if record.arguments else None
        accepted = "a dense tensor of numbers on the CPU or a GPU"
        if not isinstance(record, _Passive) or record.name not in _TENSORS or len(record.arguments) < 4:
            what = record.name if isinstance(record, _Passive) else type(record).__name__
            bad_value(name, f"is a {what[:100]}; accepted: {accepted}")
        storage, offset, shape, strides = record.arguments[:4]
        plain = isinstance(storage, _Storage) and type(offset) is int and offset >= 0
        for sizes in (shape, strides):
            plain = (
                plain and isinstance(sizes, tuple) and all(type(n) is int and 0 <= n < 2**62 for n in sizes)
            )
        if not plain or len(shape) != len(strides) or len(shape) > 4 or storage.kind not in _STORAGES:
            bad_value(name, f"is a tensor of another kind; accepted: {accepted}")
        flat = self._storage(name, storage)
        if 0 in shape:
            return np.empty(shape, flat.dtype)
        last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        if last >= flat.size:
            bad_value(
                name, f"reads element {last} of a storage of {flat.size}; accepted: elements that there are"
            )
        check_memory(name, math.prod(shape) * flat.itemsize, f"a tensor of shape {str(shape)[:80]}")
        steps = tuple(stride * flat.itemsize for stride in strides)
        view = np.lib.stride_tricks.as_strided(flat[offset:], shape, steps, writeable=False)
        return np.array(view, order="C")

    def _storage(self, name: str, storage: _Storage) -> np.ndarray:
        if not storage.key.isalnum():
            bad_value(name, f"names its storage {storage.key[:40]!r}; accepted: a number")
        content = self._bytes(f"{self._root}data/{storage.key}", self._size)
        kind = np.dtype(_STORAGES[storage.kind])
        if len(content) % kind.itemsize or len(content) // kind.itemsize < storage.count:
            bad_value(
                name, f"has {len(content)} bytes; accepted: those of {storage.count} elements of {kind}"
            )
        flat = np.frombuffer(content, kind)
        if storage.kind == "torch.BFloat16Storage":
            return (flat.astype(np.uint32) << 16).view(np.float32)
        return flat != 0 if storage.kind == "torch.BoolStorage" else flat


def _attributes(found: Any) -> dict[str, Any]:
    """Returns the attributes of the one graph of an object that was read, by name."""
    graphs = list(_graphs(found, 0))
    if len(graphs) != 1:
        what = f"holds {len(graphs)} graphs" if graphs else f"holds {_kind(found)}, and no graph"
        raise ValueError(f"{what}; accepted: {_GRAPH}")
    mapping = graphs[0]
    read = ("edge_index", "edge_weight", "x", "y", "num_nodes", *_MASKS.values())
    kept = {name: mapping[name] for name in read if mapping.get(name) is not None}
    for name, value in mapping.items():  # other columns of the nodes, such as their years
        if (
            isinstance(name, str)
            and name not in kept
            and isinstance(value, _Passive)
            and value.name in _TENSORS
        ):
            shape = value.arguments[2] if len(value.arguments) > 2 else ()
            if isinstance(shape, tuple) and (len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)):
                kept[name] = value
    return kept


def _kind(found: Any) -> str:
    return found.name[:100] if isinstance(found, _Passive) else f"a {type(found).__name__}"


def _graphs(found: Any, depth: int) -> Iterator[Mapping[str, Any]]:
    """Yields the attributes of each graph of an object that was read."""
    if depth > 4:
        return
    if isinstance(found, dict):
        if "edge_index" in found:
            yield found
        return
    if isinstance(found, (list, tuple)):
        if len(found) == 3 and isinstance(found[0], dict):  # what InMemoryDataset.save writes
            _check_slices(found[1])
            found = found[:1]
        elif len(found) == 2 and isinstance(found[1], dict) and not isinstance(found[0], dict):
            _check_slices(found[1])  # PyG's processed files before release 2.3
            found = found[:1]
        for element in found:
            yield from _graphs(element, depth + 1)
        return
    if not isinstance(found, _Passive) or not isinstance(state := found.state, dict):
        return
    if found.name.endswith(".HeteroData"):
        raise ValueError("holds a HeteroData, with nodes of several kinds; accepted: one kind of nodes")
    if isinstance(store := state.get("_store"), _Passive) and isinstance(store.state, dict):
        mapping = store.state.get("_mapping")
        if isinstance(mapping, dict) and "edge_index" in mapping:
            yield mapping
    elif "edge_index" in state:  # a Data before PyG 2
        yield state
    elif (data := state.get("_data", state.get("data"))) is not None:  # an InMemoryDataset
        _check_slices(state.get("slices"))
        yield from _graphs(data, depth + 1)


def _check_slices(slices: Any) -> None:
    """Raises ValueError if the slices of a Dataset, the first nodes of its graphs, are of several graphs."""
    if not isinstance(slices, dict):
        return
    for record in slices.values():
        if isinstance(record, _Passive) and record.name in _TENSORS and len(record.arguments) > 2:
            shape = record.arguments[2]
            if isinstance(shape, tuple) and len(shape) == 1 and type(shape[0]) is int and shape[0] > 2:
                raise ValueError(f"holds a data set of {shape[0] - 1} graphs; accepted: {_GRAPH}")


def content_of_arrays(arrays: Mapping[str, np.ndarray]) -> Content:
    """Makes a content of the attributes of a PyG graph.

    Args:
        arrays: edge_index, and x, y, edge_weight, num_nodes, train_mask, val_mask, test_mask and columns of
            the nodes, if there are such.

    Raises:
        ValueError: an array is missing, of another type or shape.
    """
    edges = _kinds("edge_index", arrays.get("edge_index"), "iu")
    if edges.ndim != 2 or edges.shape[0] != 2:
        bad_value("edge_index", f"has shape {edges.shape}; accepted: (2, edges)")
    x = _kinds("x", arrays["x"], "biuf") if "x" in arrays else None
    if x is not None and x.ndim == 1:
        x = x[:, None]
    y = _kinds("y", arrays["y"], "biuf") if "y" in arrays else None
    masks = {part: _kinds(name, arrays[name], "b") for part, name in _MASKS.items() if name in arrays}
    nodes = _count(arrays, x, y, masks, edges)
    weights = None
    if "edge_weight" in arrays:
        weights = _kinds("edge_weight", arrays["edge_weight"], "biuf")
        weights = weights[:, 0] if weights.ndim == 2 and weights.shape[1] == 1 else weights
    known = {"edge_index", "edge_weight", "x", "y", "num_nodes", *_MASKS.values()}
    columns = {name: a.reshape(-1) for name, a in arrays.items() if name not in known and a.size == nodes}
    return Content(nodes, edges.astype(np.int64), weights, x, y, masks, columns)


def _kinds(name: str, array: np.ndarray | None, kinds: str) -> np.ndarray:
    if array is None:
        bad_value(name, "is missing; accepted: a graph with edge_index")
    if array.dtype.kind not in kinds:
        accepted = {"iu": "integers", "b": "bools", "biuf": "numbers"}[kinds]
        bad_value(name, f"is of type {array.dtype}; accepted: {accepted}")
    return array


def _count(
    arrays: Mapping[str, np.ndarray],
    x: np.ndarray | None,
    y: np.ndarray | None,
    masks: Mapping[str, np.ndarray],
    edges: np.ndarray,
) -> int:
    """Returns the number of nodes: of num_nodes, of the rows of the first array, or of the edges."""
    if "num_nodes" in arrays:
        given = arrays["num_nodes"]
        if given.size != 1 or given.dtype.kind not in "iu" or not 0 <= int(given.item()) < 2**31:
            bad_value("num_nodes", "is no number of nodes; accepted: an integer from 0 to 2^31 - 1")
        return int(given.item())
    for array in (x, y, *masks.values()):
        if array is not None and array.ndim:
            return len(array)
    return int(edges.max()) + 1 if edges.size and 0 <= edges.max() < 2**31 - 1 else 0
