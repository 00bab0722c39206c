"""Operations on prepared operands: SpMM, SDDMM, softmax over edges, attention, and functions over edges.

An operation of several files has a folder, which is found by itself: the functions in the `__all__` of its
`api` can be imported from this package.
"""

import importlib
import pkgutil

from gnnsparse.errors import bad_value
from gnnsparse.ops import tuning as _tuning  # noqa: F401  (binds SparseOperand.tune)
from gnnsparse.ops.attention.api import attention, graph_attention
from gnnsparse.ops.edges.api import aggregate_edges
from gnnsparse.ops.products import sddmm, spmm
from gnnsparse.ops.softmax import edge_softmax
from gnnsparse.ops.spmm_quantized import StoredFeatures, store_features

# Type checkers know the names that are imported above; operations of other folders are found at run time.
__all__ = [
    "StoredFeatures", "aggregate_edges", "attention", "edge_softmax", "graph_attention", "sddmm", "spmm",
    "store_features",
]  # fmt: skip


def find_operations() -> None:
    """Make the operations of every folder importable from here; ValueError if two folders define one name."""
    for folder in pkgutil.iter_modules(__path__):
        if not folder.ispkg:  # a module that operations share
            continue
        api = importlib.import_module(f"{__name__}.{folder.name}.api")
        for name in api.__all__:
            operation = getattr(api, name)
            if name not in __all__:
                # Under the name of a folder there is its package, as importing it has left it.
                globals()[name] = operation
                __all__.append(name)
            elif globals()[name] is not operation:
                bad_value("operation", f"got {name!r} in {api.__name__}; accepted: a name that is not taken")


find_operations()
