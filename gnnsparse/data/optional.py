"""Imports of packages that only some data sets need."""

from __future__ import annotations

import importlib
import warnings
from types import ModuleType

__all__ = ["import_optional"]

_PACKAGES = {"sklearn": "scikit-learn", "torch_geometric": "torch-geometric", "ogb": "ogb"}


def import_optional(module: str, needed_by: str) -> ModuleType:
    """Imports a module, or says which package `needed_by` lacks.

    Raises:
        ImportError: the module can't be imported.
    """
    package = _PACKAGES[module.partition(".")[0]]
    with warnings.catch_warnings():
        # PyG scripts a few of its classes at import, which torch >= 2.10 calls deprecated.
        warnings.filterwarnings("ignore", r".*torch\.jit\.", DeprecationWarning)
        try:
            return importlib.import_module(module)
        except ImportError as error:
            raise ImportError(
                f"{needed_by} needs {package} ({error}): pip install {package}, or gnnsparse[train]"
            ) from error
