"""How train.py imports large packages: without garbage collections, and torchmetrics without its metrics."""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import logging
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

__all__ = ["import_task", "importing", "light_torchmetrics", "what_to_install"]

#: What Lightning takes of torchmetrics, with the modules that define it.
_TAKEN = {
    "Metric": "torchmetrics.metric",
    "MetricCollection": "torchmetrics.collections",
    "__version__": "torchmetrics.__about__",
}


#: The packages without which train.py can't train, whose names an import error may have.
_NEEDED = ("gnnsparse", "gnnsparse_cli", "hydra", "lightning", "omegaconf", "rich", "torch", "torchmetrics")


def what_to_install(error: ImportError) -> str | None:
    """Return what a user has to install after an import error; None if it is not about a missing package."""
    missing = (error.name or "").partition(".")[0]
    if missing not in _NEEDED:
        return None
    return f"needs {missing}, which is not installed here: pip install 'gnnsparse[train]', or make train"


@contextlib.contextmanager
def importing(*, last: bool = False) -> Iterator[None]:
    """Keep Python from collecting garbage in a `with` block that imports large packages.

    They make millions of objects and hardly any garbage, so that each look at all of them is in vain: without
    the looks, imports take two thirds of the time.

    Args:
        last: whether all large packages are there after the block. Their objects are then left out of all
            later collections too, of which the one at the end of the process takes a second.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if last:
            gc.freeze()
        if enabled:
            gc.enable()


class _Light(ModuleType):
    """The package torchmetrics before its `__init__` has run, which it does when more is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name in _TAKEN:
            found = getattr(importlib.import_module(_TAKEN[name]), name)
        elif name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        else:
            self.__class__ = ModuleType  # type: ignore[assignment]
            assert self.__spec__ is not None
            assert self.__spec__.loader is not None
            self.__spec__.loader.exec_module(self)
            found = getattr(self, name)
        setattr(self, name, found)
        return found


def light_torchmetrics() -> None:
    """Put torchmetrics into `sys.modules` without its metrics, for the import of Lightning.

    Lightning needs two classes of it. Its `__init__` imports all metrics, and with them SciPy's signal
    processing and, where they are installed, matplotlib and transformers, which takes as long as torch. It
    runs when somebody asks for more. If the two classes can't be imported in this way, nothing is changed.
    """
    if "torchmetrics" in sys.modules:
        return
    try:
        spec = importlib.util.find_spec("torchmetrics")
        if spec is None or spec.loader is None:
            return
        package = _Light("torchmetrics")
        package.__spec__, package.__path__ = spec, list(spec.submodule_search_locations or ())
        package.__file__, package.__package__, package.__loader__ = spec.origin, "torchmetrics", spec.loader
        vars(package)["_logger"] = logging.getLogger("torchmetrics")
        sys.modules["torchmetrics"] = package
        importlib.import_module("torchmetrics.utilities.prints")
        for name in _TAKEN:
            getattr(package, name)
    except Exception:  # another release, which is made otherwise
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchmetrics"]:
            del sys.modules[name]


def import_task(tasks: Mapping[str, Any], name: str) -> Any:
    """Return a task, whose import is that of Lightning and of everything else that training needs.

    Args:
        tasks: gnnsparse.train.tasks.TASKS.
        name: name of the task.

    Raises:
        ImportError: a package is missing; the text says what to install.
    """
    try:
        with importing(last="lightning" not in sys.modules):
            light_torchmetrics()
            task = tasks[name]
            importlib.import_module("gnnsparse.train.fitting")
    except ImportError as error:
        raise ImportError(what_to_install(error) or str(error), name=error.name) from error
    return task
