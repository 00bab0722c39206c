"""The import of DGL beside a torch for which it was not built."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from gnnsparse.data.sources import no_update_check

__all__ = ["import_dgl"]

_INSTALL = "pip install --no-deps dgl==2.1.0 (Python 3.8 to 3.12), after pip install 'gnnsparse[dgl]'"
#: The modules of graphbolt that the rest of DGL imports.
_GRAPHBOLT = ("", ".base", ".impl", ".internal", ".utils")


class _Absent(ModuleType):
    """A module that stands for one of graphbolt, and says so when something is looked up in it."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{self.__name__}.{name}: DGL's graphbolt has no library for torch {torch.__version__}; the rest "
            "of DGL works without it (gnnsparse.interop.dgl.import_dgl)"
        )


def import_dgl() -> ModuleType:
    """Imports DGL, beside a torch for which it was not built too, and returns it.

    DGL 2.1.0, the last release on PyPI, is built for torch 2.2 and older. Installed without its dependencies
    beside a newer torch, `import dgl` fails, because graphbolt, a part of it, looks for a library of exactly
    that torch. If there is none, this function puts empty modules in the place of graphbolt's and imports
    DGL. Call it once, before anything else imports DGL; `import dgl` then finds what it imported.

    What works without graphbolt and was tested with DGL 2.1.0: graphs, blocks and heterographs, message
    passing, the layers of `dgl.nn.pytorch`, `dgl.ops`, the samplers and the DataLoader of `dgl.dataloading`.
    What does not: `dgl.graphbolt`, `dgl.sparse`, and `graph.adj()`, which needs it;
    `graph.adj_tensors("csr")` takes its place.

    Unless it is set, the environment variable DGLBACKEND is set to "pytorch": DGL would write a file into the
    home directory otherwise.

    Returns:
        The module `dgl`.

    Raises:
        ImportError: DGL is not installed, or lacks a package or a library that it imports.
    """
    if (known := sys.modules.get("dgl")) is not None:
        return known
    found = importlib.util.find_spec("dgl")
    if found is None:
        raise ImportError(f"DGL is not installed: {_INSTALL}")
    os.environ.setdefault("DGLBACKEND", "pytorch")
    names = [] if _has_library(found) else [f"dgl.graphbolt{part}" for part in _GRAPHBOLT]
    stubs = {name: _Absent(name, "Stands for a module of DGL's graphbolt.") for name in names}
    sys.modules.update(stubs)
    try:
        with no_update_check():  # DGL imports ogb if it is installed
            return importlib.import_module("dgl")
    except (ImportError, OSError) as error:  # OSError: a library can't be loaded
        for name in stubs:
            sys.modules.pop(name, None)
        raise ImportError(f"DGL can't be imported ({error}); it is installed by {_INSTALL}") from error


def _has_library(found: ModuleSpec) -> bool:
    """Returns whether graphbolt of an installed DGL has a library for this torch."""
    version = torch.__version__.partition("+")[0]
    folders = found.submodule_search_locations or []
    return any(any(Path(folder, "graphbolt").glob(f"*graphbolt_pytorch_{version}.*")) for folder in folders)
