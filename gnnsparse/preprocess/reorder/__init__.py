"""Reorderings: row orders that place rows with common columns next to each other."""

from gnnsparse.formats.csr import Locality
from gnnsparse.preprocess.reorder.registry import (
    METHODS,
    REORDERINGS,
    Found,
    Method,
    Reordering,
    register_reordering,
    reorder,
)
from gnnsparse.registry import Option, discover

# isort: off
# Imported in the order in which messages list them. `discover` imports the files that are not named here.
from gnnsparse.preprocess.reorder import general, published, auto  # noqa: F401
# isort: on

__all__ = [
    "METHODS",
    "REORDERINGS",
    "Found",
    "Locality",
    "Method",
    "Option",
    "Reordering",
    "register_reordering",
    "reorder",
]

discover(__name__)
