"""Operations on prepared operands.

Each has a folder: its api, its schema (operator, fake, gradient), and its cpu, cuda and reference versions.
A function in the `__all__` of a folder's api is importable from this package.
"""

import importlib
import pkgutil

from gnnsparse.errors import bad_value
from gnnsparse.operand import SparseOperand
from gnnsparse.ops import tuning as _tuning  # noqa: F401  (binds SparseOperand.tune)
from gnnsparse.ops.attention.api import attention
from gnnsparse.ops.library import Products, bind_eager
from gnnsparse.ops.result_memory import release_memory
from gnnsparse.ops.sddmm.api import sddmm
from gnnsparse.ops.softmax.api import edge_softmax
from gnnsparse.ops.spmm.api import spmm

# Type checkers know the names that are imported above; operations of other folders are found when this is run.
__all__ = ["attention", "edge_softmax", "release_memory", "sddmm", "spmm"]

bind_eager(Products(spmm, sddmm, SparseOperand.transpose_values))


def find_operations() -> None:
    """Makes the operations of every folder importable from the package, and registers their operators.

    Raises:
        ValueError: two folders define an operation of one name.
    """
    for folder in pkgutil.iter_modules(__path__):
        if not folder.ispkg:
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
