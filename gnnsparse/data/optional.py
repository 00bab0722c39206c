"""Imports of packages that only some data sets need."""

from __future__ import annotations

import importlib
import warnings
from types import ModuleType

#: Packages on the index, and the extra of ours that has them, by the name that is imported.
_PACKAGES = {
    "sklearn": ("scikit-learn", "train"),
    "torch_geometric": ("torch-geometric", "train"),
    "ogb": ("ogb", "train"),
    "pandas": ("pandas", "data"),
    "pyarrow": ("pyarrow", "data"),
    "networkx": ("networkx", "data"),
}


def import_optional(module: str, needed_by: str) -> ModuleType:
    """Import a module of an optional package; an ImportError says what needs it, and what to install."""
    package, extra = _PACKAGES[module.partition(".")[0]]
    with warnings.catch_warnings():
        # PyG compiles classes by torch.jit when it is imported, which torch >= 2.10 warns is deprecated.
        warnings.filterwarnings("ignore", r".*torch\.jit\.", DeprecationWarning)
        try:
            return importlib.import_module(module)
        except ImportError as error:
            raise ImportError(
                f"{needed_by} needs {package} ({error}): pip install {package}, or gnnsparse[{extra}]"
            ) from error
