"""Fuzzing of the cache: files that are damaged, and processes that are killed while they prepare a graph.

Whatever happens to a cache folder, `prepare` gives the right operand with no more than CacheWarnings, a
damaged file is replaced, and files that the cache did not make stay as they are. A case damages one file, or
kills up to three processes that work on one folder. It counts as one call.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import multiprocessing
import os
import signal
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import gnnsparse
from gnnsparse.cli.main import main
from gnnsparse.runtime.cache import CacheWarning, GraphCache
from gnnsparse.sparse.saved import check_file
from gnnsparse.testing import random_graph
from tests.fuzz import worker
from tests.fuzz.cache_damage import Damaged, damage_file
from tests.fuzz.common import FailedCallError, Trial
from tests.helpers import results, same

_FORK = multiprocessing.get_context("fork")
_SIZES = ((0, 3), (1, 1), (40, 40), (60, 35), (33, 70), (90, 90))


class _Config:
    """A graph with options to prepare it with, the right results, and an intact file of the cache."""

    def __init__(self, graph: gnnsparse.SparseGraph, options: dict[str, Any]) -> None:
        self._graph, self._options = graph, options
        with tempfile.TemporaryDirectory() as folder:
            self.prepare(Path(folder))
            (file,) = Path(folder).glob("*.safetensors")
            self.content, self.file_name = file.read_bytes(), file.name
        self.expected = results(self.prepare(False))

    def prepare(self, folder: Path | bool) -> gnnsparse.SparseOperand:
        return gnnsparse.prepare(self._graph, cache=folder, **self._options)


@functools.cache
def _configs() -> list[_Config]:
    found = []
    formats: list[dict[str, Any]] = [
        {"format": "csr"}, {"format": "window"}, {"format": "me-bcrs", "precision": "fp16"},
        {"format": "cvse", "precision": "bf16"}, {"format": "tiled-csr", "precision": "fp16"},
        {"format": "hrpb", "precision": "tf32"}, {"format": "hrpb", "precision": "tf32", "panel": 32},
        {"format": "rs-tile", "precision": "tf32"}, {"format": "sr-bcrs", "precision": "tf32"},
    ]  # fmt: skip
    for (at, (rows, cols)), (number, form) in itertools.product(enumerate(_SIZES), enumerate(formats)):
        weighted, some = (at + number) % 2 == 0, min(rows, cols)
        graph = random_graph(
            rows, cols, 0.1 if some else 0.0, weighted=weighted, seed=rows, hubs=1 if some > 30 else 0
        )
        reorder = ("none", "degree", "rcm")[(at + number) % (3 if rows == cols else 2)]
        values = None if weighted else ("mean", "gcn")[rows == cols]
        found.append(_Config(graph, {**form, "reorder": reorder, "values": values}))
    return found


class Folder:
    """A cache folder with files in it that are somebody else's."""

    def __init__(self, path: Path) -> None:
        self.path = path / "cache"
        self.path.mkdir(mode=0o700)
        self._outside = path / "outside.safetensors"
        self._outside.write_bytes(b"not the cache's")
        hexadecimal = "0123456789abcdef" * 2
        for name in (
            "model.safetensors", "x.part", "y.lock", f"{hexadecimal}.lock", f"{hexadecimal}.safetensors",
            f"{hexadecimal}-{hexadecimal}.part", f"{hexadecimal}-{hexadecimal}.damaged", "x.damaged",
        ):  # fmt: skip
            (self.path / name).write_bytes(b"precious " + name.encode())
            os.utime(self.path / name, (0, 0))  # what is used least
        (self.path / "folder.safetensors").mkdir()
        full = self.path / ("a" * 32 + ".safetensors")
        full.mkdir()
        (full / "inside").write_text("inside")
        os.mkfifo(self.path / ("b" * 32 + ".safetensors"))
        (self.path / ("c" * 32 + ".safetensors")).symlink_to(self._outside)
        (self.path / ("d" * 32 + ".lock")).symlink_to(self._outside)
        (self.path / f"{'d' * 32}-{hexadecimal}.part").symlink_to("nowhere")
        self.others = [*self.path.iterdir(), full / "inside", self._outside]
        self._before = self._state()

    def keep(self, path: Path) -> None:
        """Adds something that has to stay as it is."""
        self.others.append(path)
        self._before = self._state()

    def _state(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for path in self.others:
            with contextlib.suppress(FileNotFoundError):
                status = os.lstat(path)
                regular = os.path.isfile(path) and not path.is_symlink()
                found[str(path)] = status.st_mode, status.st_ino, path.read_bytes() if regular else b""
        return found

    def changed(self) -> list[str]:
        """Names of the others' files that were changed or removed."""
        now = self._state()
        return [name for name, before in self._before.items() if now.get(name) != before]


@contextlib.contextmanager
def _only_cache_warnings() -> Iterator[list[str]]:
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield texts
    for item in caught:
        if not issubclass(item.category, CacheWarning):
            raise FailedCallError("error", f"warned of something else: {item.message}")
        texts.append(str(item.message))


@contextlib.contextmanager
def _folder() -> Iterator[Folder]:
    with tempfile.TemporaryDirectory(prefix="fuzz-cache-", ignore_cleanup_errors=True) as path:
        yield Folder(Path(path))


def _look(folder: Path, action: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        main(["cache", action, "--dir", str(folder)])


def _after_damage(trial: Trial, config: _Config, folder: Folder, path: Path, done: Damaged) -> None:
    """Prepares a graph whose cache file was damaged, and checks everything that can be seen afterwards."""
    for action in ("ls", "verify"):
        if trial.draw.chance(0.1):
            _look(folder.path, action)
    with _only_cache_warnings() as texts:
        operand = trial.call(f"prepare after {done.what}", lambda: config.prepare(folder.path))
    right = same(results(operand), config.expected)
    trial.check(right or (done.unseen and not texts), f"wrong results after {done.what}: {texts}")
    trial.check(
        done.gone or bool(texts) != operand.cache_hit,
        f"after {done.what}: hit and warned, or neither: {texts}",
    )
    trial.check(all(str(folder.path) in text for text in texts), f"a warning names no file: {texts}")
    if texts and not done.blocks:
        with _only_cache_warnings() as more:
            again = config.prepare(folder.path)
        trial.check(again.cache_hit and not more, f"not rebuilt after {done.what}: {more}")
        trial.check(same(results(again), config.expected), f"wrong results when rebuilt after {done.what}")
        cache = GraphCache(folder.path)
        problem = {entry.path: cache.problem_of(entry, check_file) for entry in cache.entries()}[path]
        trial.check(problem is None, f"`verify` finds fault with the new file: {problem}")


def damage(trial: Trial) -> None:
    config = trial.draw.choice(_configs())
    with _folder() as folder:
        path = folder.path / config.file_name
        path.write_bytes(config.content)
        other = trial.draw.choice(_configs()).content
        done = damage_file(path, other, trial.draw)
        if done.blocks:
            folder.keep(path)
        _after_damage(trial, config, folder, path, done)
        if trial.draw.chance(0.2):
            with _only_cache_warnings():
                _look(folder.path, "clear")
        trial.check(not folder.changed(), f"after {done.what}, files of others changed: {folder.changed()}")


def _work_on(folder: Path, configs: list[_Config], clears: bool) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", CacheWarning)
    while True:
        for config in configs:
            config.prepare(folder)
        if clears:
            GraphCache(folder).clear()
        else:
            for path in folder.glob("*.safetensors"):
                if path.stem in {config.file_name[:32] for config in configs}:
                    path.unlink(missing_ok=True)


def kill(trial: Trial) -> None:
    configs = [trial.draw.choice(_configs()) for _ in range(trial.draw.integer(1, 3))]
    with _folder() as folder:
        workers = trial.draw.integer(1, 3)
        clears = [trial.draw.chance(0.3) for _ in range(workers)]
        processes = [_FORK.Process(target=_work_on, args=(folder.path, configs, each)) for each in clears]
        try:
            for process in processes:
                process.start()
            for process in processes:
                time.sleep(trial.draw.below(20_000) / 1e6)
                process.kill()
        finally:
            for process in processes:
                process.join()
        ended = [process.exitcode for process in processes if process.exitcode != -signal.SIGKILL]
        trial.check(not ended, f"a process ended by itself, with an error: {ended}")
        with _only_cache_warnings() as texts:
            operands = trial.call(
                f"prepare after a kill of {workers} processes",
                lambda: [config.prepare(folder.path) for config in configs],
            )
        trial.check(not texts, f"warned after a kill: {texts}")
        for config, operand in zip(configs, operands, strict=True):
            trial.check(same(results(operand), config.expected), "wrong results after a kill")
            trial.check(config.prepare(folder.path).cache_hit, "not in the cache after a kill")
        GraphCache(folder.path).clear()
        left = set(folder.path.iterdir()) - set(folder.others)
        trial.check(not left, f"`clear` left files of killed processes: {sorted(p.name for p in left)}")
        trial.check(not folder.changed(), f"after a kill, files of others changed: {folder.changed()}")


def _case(trial: Trial) -> None:
    """One case in 11 kills processes, and the others damage a file."""
    kind, run = ("kills", kill) if trial.draw.below(11) == 10 else ("damaged files", damage)
    run(trial)
    trial.counts.kinds[kind] += 1


@contextlib.contextmanager
def _warm() -> Iterator[None]:
    torch.set_num_threads(1)
    _configs()
    yield


GENERATOR = worker.Generator("cache", _case, _warm, batch_seconds=20.0)
