"""Arrays, sparse matrices and dictionaries of lists from pickles, which are read without running their code.

A pickle is a program: it may name any function of any package and call it. Here the few names that the files
of Planetoid hold stand for passive records, and every other name is an error. Arrays are made of the recorded
bytes after checks, as those of npz files are. Protocols 2 to 4 are read; published are files of protocol 2.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np

from gnnsparse.errors import bad_value
from gnnsparse.runtime.safe_io import read_small, reading

__all__ = [
    "Record",
    "check_instructions",
    "read_pickle",
    "recorded_array",
    "recorded_csr",
    "recorded_lists",
]

#: Bytes of a file that are read; the largest of Planetoid's has 6 MB.
_MAX_BYTES = 2**30
#: Types of array elements: a letter for the kind and the bytes of an element.
_TYPES = {
    f"{kind}{size}" for kind, sizes in (("i", "1248"), ("u", "1248"), ("f", "248")) for size in sizes
} | {"b1"}
#: Instructions that the files hold: constants, containers, names, and calls of what a name stands for.
_INSTRUCTIONS = frozenset({
    "PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT",
    "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
    "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES",
    "BINBYTES8", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "LIST", "APPEND",
    "APPENDS", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE",
    "GET", "BINGET", "LONG_BINGET", "GLOBAL", "STACK_GLOBAL", "REDUCE", "NEWOBJ", "BUILD",
})  # fmt: skip


class Record:
    """What a pickle says of one object: the arguments of its constructor, its state, and its items.

    Attributes:
        arguments: the positional arguments.
        state: the state that is set afterwards; None: there is none.
        items: the entries of a dictionary.
    """

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None
        self.items: dict[Any, Any] = {}

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items[key] = value


class _Array(Record):
    """A numpy.ndarray."""


class _Type(Record):
    """A numpy.dtype."""


class _Csr(Record):
    """A scipy.sparse.csr_matrix."""


class _Lists(Record):
    """A collections.defaultdict of lists."""


class _Class(Record):
    """The class of an object, as an argument."""


class _Encode(Record):
    """Calls of _codecs.encode, by which Python 3 writes bytes for Python 2."""

    def __new__(cls, text: Any, encoding: Any) -> Any:
        if not isinstance(text, str) or encoding != "latin1":
            raise ValueError("calls _codecs.encode on something else than text in latin1")
        return text.encode("latin1")


class _Bytes(Record):
    """Calls of bytes, by which Python 3 writes empty ones for Python 2."""

    def __new__(cls) -> Any:
        return b""


#: What the names in the files stand for. Python 3 and later releases of the packages name some otherwise. All
#: are subclasses of Record, so that an instruction that sets the state of a class itself is an error.
_NAMES: dict[tuple[str, str], type[Record]] = {
    ("_codecs", "encode"): _Encode,
    ("collections", "defaultdict"): _Lists,
    ("__builtin__", "bytes"): _Bytes,
    ("__builtin__", "list"): _Class,
    ("builtins", "list"): _Class,
    ("numpy", "ndarray"): _Class,
    ("numpy", "dtype"): _Type,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("scipy.sparse.csr", "csr_matrix"): _Csr,
    ("scipy.sparse._csr", "csr_matrix"): _Csr,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NAMES:
            known = ", ".join(f"{package}.{known}" for package, known in _NAMES)
            raise ValueError(f"names {module}.{name}; accepted in a pickle: {known}")
        return _NAMES[module, name]


def read_pickle(path: Path) -> Any:
    """Reads a pickle of an array, a sparse matrix or a dictionary of lists, without running code of it.

    Returns:
        A Record, for `recorded_array`, `recorded_csr` or `recorded_lists`; or another plain value.

    Raises:
        ValueError: the file is damaged, or holds other objects than these.
        OSError: it can't be read.
    """
    content = read_small(path, _MAX_BYTES)
    with reading(path):
        check_instructions(content)
        try:
            return _Unpickler(io.BytesIO(content), encoding="latin1").load()
        except Exception as error:  # an unpickler raises errors of many types
            raise ValueError(
                f"is no pickle of arrays ({type(error).__name__}: {str(error)[:400]})"
            ) from error


def check_instructions(content: bytes, more: frozenset[str] = frozenset()) -> None:
    """Raises ValueError for instructions that the files do not need, or that would take memory.

    Args:
        content: the pickle.
        more: names of instructions that are accepted beside those of Planetoid's files.
    """
    stored = 0
    try:
        for instruction, argument, _ in pickletools.genops(content):
            name = instruction.name
            if name not in _INSTRUCTIONS and name not in more:
                raise ValueError(f"has the instruction {name}")
            if name in ("PUT", "BINPUT", "LONG_BINPUT"):
                stored += 1
                # The unpickler keeps a table as long as the largest number that an object is stored under.
                if not 0 <= int(argument or 0) <= 2 * stored + 256:
                    raise ValueError(f"stores an object under the number {argument}")
    except Exception as error:  # damaged arguments raise errors of many types
        raise ValueError(f"is no pickle of arrays ({type(error).__name__}: {str(error)[:400]})") from error


def recorded_array(name: str, record: Any) -> np.ndarray:
    """Makes the array that a pickle has recorded.

    Raises:
        ValueError: the record is none of an array of numbers, or its shape does not fit its bytes.
    """
    accepted = "an array of numbers, with as many bytes as its shape needs"
    state = record.state if isinstance(record, _Array) else None
    if not isinstance(state, tuple) or len(state) != 5:
        bad_value(name, f"is no array; accepted: {accepted}")
    _, shape, kind, fortran, content = state
    dtype = _recorded_type(name, kind)
    if isinstance(content, str):
        content = content.encode("latin1")  # bytes of Python 2
    plain = isinstance(shape, tuple) and len(shape) in (1, 2)
    plain = plain and all(type(size) is int and size >= 0 for size in shape)
    if not plain or not isinstance(content, bytes) or math.prod(shape) * dtype.itemsize != len(content):
        bad_value(name, f"has the shape {str(shape)[:80]}; accepted: {accepted}")
    flat = np.frombuffer(content, dtype).astype(dtype.newbyteorder("="))
    if dtype.kind == "b":
        flat = flat.view(np.uint8) != 0
    return np.ascontiguousarray(flat.reshape(shape[::-1]).T) if fortran else flat.reshape(shape)


def _recorded_type(name: str, record: Any) -> np.dtype[Any]:
    code = record.arguments[0] if isinstance(record, _Type) and record.arguments else None
    order = record.state[1] if code and isinstance(record.state, tuple) and len(record.state) > 1 else "<"
    if not isinstance(code, str) or code not in _TYPES or order not in ("<", ">", "|", "="):
        bad_value(name, f"has elements of type {str(code)[:40]}; accepted: integers and real numbers")
    return np.dtype(code).newbyteorder(">" if order == ">" else "<")


def recorded_csr(name: str, record: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[int, int]]:
    """Returns offsets, columns, values and shape of the sparse matrix that a pickle has recorded, unchecked.

    Raises:
        ValueError: the record is none of a sparse matrix.
    """
    state = record.state if isinstance(record, _Csr) else None
    shape = state.get("_shape") if isinstance(state, dict) else None
    if (
        not isinstance(state, dict)
        or not isinstance(shape, tuple)
        or len(shape) != 2
        or any(type(size) is not int for size in shape)
    ):
        bad_value(name, "is no sparse matrix; accepted: a scipy.sparse.csr_matrix")
    arrays = (recorded_array(f"{name}.{part}", state.get(part)) for part in ("indptr", "indices", "data"))
    indptr, indices, data = arrays
    return indptr, indices, data, shape


def recorded_lists(name: str, record: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns the pairs of a recorded dictionary of lists of integers: keys and elements, int64 [pairs].

    Raises:
        ValueError: the record is none of such a dictionary, or a number does not fit into int64.
    """
    lists = record.items if isinstance(record, _Lists) else record
    accepted = "a dictionary of lists of integers"
    if not isinstance(lists, dict) or not all(type(part) is list for part in lists.values()):
        bad_value(name, f"is something else; accepted: {accepted}")
    elements = [element for part in lists.values() for element in part]
    if not all(type(number) is int and -(2**62) < number < 2**62 for number in (*lists, *elements)):
        bad_value(name, f"holds something else than integers; accepted: {accepted}")
    lengths = [len(part) for part in lists.values()]
    return np.repeat(np.array(list(lists), np.int64), lengths), np.array(elements, np.int64)
