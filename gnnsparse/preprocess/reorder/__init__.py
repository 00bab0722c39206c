"""Row orders that bring rows with common columns together, each method in a file of its own."""

from gnnsparse.preprocess.reorder.api import Reordering, reorder
from gnnsparse.preprocess.reorder.locality import Locality
from gnnsparse.preprocess.reorder.registry import (
    METHODS,
    REORDERINGS,
    Method,
    Option,
    register_reordering,
)
from gnnsparse.registry import discover

# isort: off
# In the order in which messages name them; the files of methods that are not named here are found.
from gnnsparse.preprocess.reorder import degree, rcm, metis, community  # noqa: F401
# isort: on

__all__ = [
    "METHODS",
    "REORDERINGS",
    "Locality",
    "Method",
    "Option",
    "Reordering",
    "register_reordering",
    "reorder",
]

discover(__name__)
