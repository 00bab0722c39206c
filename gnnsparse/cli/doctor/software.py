"""Checks of the packages that are installed, and of the cache of prepared graphs."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import warnings
from importlib import metadata
from pathlib import Path

import torch

import gnnsparse
from gnnsparse.cli.doctor.findings import Section
from gnnsparse.data.generated import check_cached
from gnnsparse.runtime.cache import CacheEntry, GraphCache
from gnnsparse.runtime.environment import commit_of

__all__ = ["OPTIONAL_PACKAGES", "check_cache", "check_packages"]

#: Packages that some features need, what they are needed for, and how they are installed.
OPTIONAL_PACKAGES: dict[str, tuple[str, str]] = {
    "torch-geometric": ("PyG models and data sets", "pip install 'gnnsparse[train]'"),
    "lightning": ("gnnsparse.train and train.py", "pip install 'gnnsparse[train]'"),
    "hydra-core": ("train.py", "pip install 'gnnsparse[train]'"),
    "torchmetrics": ("gnnsparse.train and train.py", "pip install 'gnnsparse[train]'"),
    "tensorboard": ("trainer.logger=tensorboard", "pip install 'gnnsparse[train]'"),
    "ogb": ("the data sets of OGB", "pip install 'gnnsparse[train]'"),
    "scikit-learn": ("the data set digits", "pip install 'gnnsparse[train]'"),
    "pymetis": ("reorder='metis'", "pip install 'gnnsparse[metis]'"),
    "dgl": ("DGL models", "pip install --no-deps dgl (docs/howto/dgl-model.md)"),
    "transformers": ("gnnsparse.interop.transformers", "pip install 'gnnsparse[transformers]'"),
    "networkx": ("gnnsparse.interop.networkx and GraphML files", "pip install 'gnnsparse[data]'"),
    "pandas": ("tables of dataset=custom", "pip install 'gnnsparse[data]'"),
    "pyarrow": ("Parquet files of dataset=custom", "pip install 'gnnsparse[data]'"),
    "huggingface_hub": ("gnnsparse.inference.hub", "pip install 'gnnsparse[hub]'"),
    "matplotlib": ("plots of benchmarks", "pip install 'gnnsparse[bench]'"),
}
#: Packages without which nothing runs.
_REQUIRED = ("torch", "numpy", "scipy", "safetensors", "xxhash", "filelock", "platformdirs", "rich")
#: Bytes of cache files whose checksums are compared; `gnnsparse cache verify` compares all.
_VERIFIED = 2**29
#: Files that can't be used that are named; of all there may be hundreds after an update.
_SHOWN = 3
#: Free bytes below which the disk of the cache is called full.
_LITTLE = 2**30


def version_of(package: str) -> str | None:
    """Returns the version of an installed package; None: it is not installed, or its metadata are damaged."""
    try:
        return metadata.version(package)
    except (metadata.PackageNotFoundError, ValueError, TypeError, OSError):
        return None


def check_packages() -> Section:
    """Lists versions, and says what the optional packages that are missing are for."""
    section = Section("Packages")
    folder = Path(gnnsparse.__file__).parent
    commit = commit_of(folder.parent)
    required = {name: version_of(name) for name in _REQUIRED} | {"torch": torch.__version__}
    optional = {name: version_of(name) for name in OPTIONAL_PACKAGES}
    section.facts = {
        "gnnsparse": gnnsparse.__version__, "commit": commit, "folder": str(folder),
        "python": platform.python_version(), "required": required, "optional": optional,
    }  # fmt: skip
    where = f"gnnsparse {gnnsparse.__version__} in {folder}" + (f", commit {commit[:15]}" if commit else "")
    section.ok(f"{where}; Python {platform.python_version()}")
    section.ok(_listed(required))
    section.ok(_listed(optional) or "none of the optional packages is installed")
    for name, version in optional.items():
        if version is None:
            purpose, how = OPTIONAL_PACKAGES[name]
            section.note(f"{name} is not installed: {purpose} need it", how)
    return section


def _listed(versions: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version is not None)


def check_cache(folder: str | None = None) -> Section:
    """Checks the folder of the cache, its size, whether it can be written, and its files.

    Args:
        folder: the folder; None: $GNNSPARSE_CACHE_DIR or the user's cache folder.
    """
    section = Section("Cache")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        cache = GraphCache(folder)
        cache.check_folder()
    entries = cache.entries()
    used = sum(entry.nbytes for entry in entries)
    problem = _write_problem(cache.folder)
    damaged, unchecked = _damaged(cache, entries)
    section.facts = {
        "folder": str(cache.folder), "exists": cache.folder.is_dir(), "entries": len(entries), "bytes": used,
        "max_bytes": cache.max_bytes, "writable": problem is None, "damaged": damaged, "unchecked": unchecked,
    }  # fmt: skip
    size = f"{len(entries)} files of {used / 2**20:.1f} MiB, {cache.max_bytes / 2**30:.1f} GiB at most"
    section.ok(f"{cache.folder}: {size}")
    for warning in told:
        section.note(str(warning.message))
    if problem is not None:
        section.note(
            f"{cache.folder} can't be written ({problem}): each run prepares its graphs anew",
            "set GNNSPARSE_CACHE_DIR to a folder of your own",
        )
    elif (free := _free_bytes(cache.folder)) is not None and free < _LITTLE:
        section.note(
            f"{free / 2**20:.0f} MiB are free there", "gnnsparse cache clear, or set GNNSPARSE_CACHE_DIR"
        )
    if damaged:
        shown = [f"{name} ({reason})" for name, reason in list(damaged.items())[:_SHOWN]]
        more = f"; and {len(damaged) - _SHOWN} more" if len(damaged) > _SHOWN else ""
        section.note(
            f"{len(damaged)} of the files can't be used: {'; '.join(shown)}{more}",
            "nothing is lost: such graphs are prepared anew. gnnsparse cache clear removes the files, and "
            "gnnsparse cache verify names all",
        )
    if unchecked:
        section.note(
            f"the checksums of {unchecked} files were not compared", "gnnsparse cache verify compares all"
        )
    return section


def _existing(folder: Path) -> Path:
    """Returns the folder, or the nearest one above it that exists."""
    return next((path for path in (folder, *folder.absolute().parents) if path.exists()), Path("/"))


def _write_problem(folder: Path) -> str | None:
    """Returns why no file can be made in a folder, which need not exist; None: files can be made."""
    at = _existing(folder)
    try:
        if not at.is_dir():
            return f"{at} is no folder"
        if at != folder and not os.access(at, os.W_OK | os.X_OK):
            return f"there is no such folder, and {at} can't be written"
        if at == folder:
            with tempfile.TemporaryFile(dir=at):
                pass
    except OSError as error:
        return error.strerror or str(error)
    return None


def _free_bytes(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(_existing(folder)).free
    except OSError:
        return None


def _damaged(cache: GraphCache, entries: list[CacheEntry]) -> tuple[dict[str, str], int]:
    """Returns the damaged files with what is wrong, and how many files were too many to be read."""
    damaged, unchecked, read = dict[str, str](), 0, 0
    for entry in entries:
        if entry.metadata is None:
            damaged[entry.path.name] = "its header is damaged, or of an earlier version"
        elif read + entry.nbytes > _VERIFIED:
            unchecked += 1
        else:
            read += entry.nbytes
            if (problem := cache.problem_of(entry, check_cached)) is not None:
                damaged[entry.path.name] = problem
    return damaged, unchecked
