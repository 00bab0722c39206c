"""Reorderings: row orders that place rows with common columns next to each other, one file each."""

from gnnsparse.preprocess.reorder.api import Reordering, reorder
from gnnsparse.preprocess.reorder.locality import Locality
from gnnsparse.preprocess.reorder.registry import (
    METHODS,
    REORDERINGS,
    Found,
    Method,
    Option,
    check_known,
    register_reordering,
)
from gnnsparse.registry import discover

# isort: off
# Imported in the order in which messages list them. `discover` imports the files that are not named here.
from gnnsparse.preprocess.reorder import degree, rcm, metis, community, row_shuffle, jaccard, tca, auto  # noqa: F401
# isort: on

__all__ = [
    "METHODS",
    "REORDERINGS",
    "Found",
    "Locality",
    "Method",
    "Option",
    "Reordering",
    "check_known",
    "register_reordering",
    "reorder",
]

discover(__name__)
