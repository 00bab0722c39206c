"""Checkpoints that can't be resumed from: each is refused in one sentence, and none executes anything."""

from __future__ import annotations

import contextlib
import copy
import io
import os
import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnsparse import SparseGraph
from gnnsparse.train import CheckpointError, FitResult, NodeClassifier, TrainerConfig, check_checkpoint
from gnnsparse.train.checkpoint import SUM, check_fits, checkpoint_sum, contents_of
from models import GCN
from tests.tasks import classifier, toy_task, train_toy

TASK = toy_task(nodes=60)
CONFIG = TrainerConfig(max_epochs=7, progress=False)
IDENTITY = {"task": "toy"}


def module(hidden: int = 16, layers: int = 2, **options: Any) -> NodeClassifier:
    def model(inputs: int, _: int, outputs: int) -> GCN:
        return GCN(inputs, hidden, outputs, num_layers=layers)

    return classifier(TASK, 7, model=model, **{"schedule": "cosine", **options})


def resumed(
    path: Path | None, made: NodeClassifier | None = None, **options: Any
) -> tuple[FitResult, dict[str, Any]]:
    given = {"resume": path, "identity": IDENTITY, **options}
    result, made = train_toy(task=TASK, epochs=7, module=made or module(), given=given)
    return result, made.model.state_dict()


@pytest.fixture(scope="module")
def last(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    train_toy(folder, TASK, 6, module=module(), given={"identity": IDENTITY}, logger="none")
    return folder / "checkpoints" / "last.ckpt"


@pytest.fixture(scope="module")
def want() -> tuple[FitResult, dict[str, Any]]:
    return resumed(None)


def refusal(path: Path, made: NodeClassifier | None = None) -> str | None:
    """What resuming is refused with; None: it is not, without training."""
    try:
        check_fits(path, check_checkpoint(path, CONFIG, IDENTITY), made or module())
    except CheckpointError as error:
        text = str(error)
        assert text.startswith(f"resume: {path} ")
        assert "\n" not in text
        assert len(text) < 500
        return text
    return None


def places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each item of a checkpoint, at all depths."""
    items = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, (dict, list, tuple)):
            yield from places(value, (*path, key))


def save_changed(
    content: Any, where: tuple[Any, ...], change: Callable[[Any, Any], None], file: Path, sealed: bool = True
) -> bool:
    """Writes a checkpoint in which `change` was called with the container of an item and its key."""
    other = copy.deepcopy(content)
    place = other
    for key in where[:-1]:
        place = place[key]
    if isinstance(place, tuple):
        return False
    change(place, where[-1])
    if sealed and SUM in other:
        with contextlib.suppress(RuntimeError, NotImplementedError, KeyError):
            other[SUM] = checkpoint_sum(other)  # a sparse tensor has no bytes to sum
    torch.save(other, file)
    return True


@pytest.mark.parametrize("sealed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_key_that_is_missing(last: Path, tmp_path: Path, sealed: bool) -> None:
    """With a checksum that is right, too, what is needed is missed, by Lightning as well."""
    content, path, missed, outcomes = torch.load(last, weights_only=True), tmp_path / "bad.ckpt", [], []
    for where in places(content):
        written = save_changed(content, where, lambda place, key: place.pop(key), path, sealed)
        if written and refusal(path) is None:
            missed.append(where)
            if where[:2] == ("loops", "fit_loop"):
                outcomes.append(outcome(path))
    # Counters of Lightning, of which it uses few, and moments of a parameter, without which Adam starts anew.
    accepted = [
        where for where in missed
        if where[0] == "loops" or (where[:3] == ("optimizer_states", 0, "state") and len(where) == 4)
    ]  # fmt: skip
    assert missed == (accepted if sealed else [])
    assert not sealed or outcomes.count("refused") > 5


JUNK = [
    None, "x", -1, 1.5, True, [], {}, (1,), 10**30, b"x", float("nan"), torch.zeros(3, 3),
    torch.zeros((), dtype=torch.int64), torch.zeros(2, 2).to_sparse(),
]  # fmt: skip


def outcome(path: Path) -> str:
    """Resumes, and returns "done" or "refused"; raises other errors, and one that does not name the file."""
    try:
        resumed(path)
    except CheckpointError as error:
        if not str(error).startswith(f"resume: {path} ") or "\n" in str(error):
            raise
        return "refused"
    return "done"


@pytest.mark.slow
def test_every_value_of_another_type(last: Path, tmp_path: Path) -> None:
    """Where the checksum is right, too, a value is refused or does no harm."""
    content, path, refused, done = torch.load(last, weights_only=True), tmp_path / "bad.ckpt", 0, []
    for number, where in enumerate(places(content)):
        for place in (number, number + 5)[: 1 if where[0] == "loops" else 2]:  # which are Lightning's own
            junk = JUNK[place % len(JUNK)]
            change = partial(lambda junk, place, key: place.__setitem__(key, junk), junk)
            if where == (SUM,) or not save_changed(content, where, change, path):
                continue
            if refusal(path) is not None or outcome(path) == "refused":
                refused += 1
            else:
                done.append((where, junk))
    assert refused > 250
    assert not {where[0] for where, _ in done} & {"state_dict", "global_step", "gnnsparse"}


def test_truncated_files(last: Path, tmp_path: Path) -> None:
    whole, path = last.read_bytes(), tmp_path / "bad.ckpt"
    for size in (0, 1, 4, 100, len(whole) // 2, len(whole) - 2000, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert re.search(r"bad\.ckpt is no last\.ckpt of a run \(torch can't read it", refusal(path) or "")


def test_flipped_bits(last: Path, tmp_path: Path, want: tuple[FitResult, dict[str, Any]]) -> None:
    """Are noticed, or are where nothing is read: between the records of the file."""
    whole, path = last.read_bytes(), tmp_path / "bad.ckpt"
    generator = torch.Generator().manual_seed(0)
    unnoticed = 0
    for place in torch.randint(0, len(whole), (150,), generator=generator).tolist():
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        if refusal(path) is None:
            unnoticed += 1
            if unnoticed <= 3:
                result, weights = resumed(path)
                assert result.metrics == want[0].metrics
                assert all(torch.equal(weights[name], tensor) for name, tensor in want[1].items())
    assert 0 < unnoticed < 150


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("form", ["a value", "all of it", "legacy"])
def test_code_in_a_checkpoint_is_not_executed(last: Path, tmp_path: Path, form: str) -> None:
    target, path = tmp_path / "executed", tmp_path / "bad.ckpt"
    payload = Payload(target)
    content = {**torch.load(last, weights_only=True), "more": payload}
    legacy = form == "legacy"
    torch.save(payload if form == "all of it" else content, path, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(CheckpointError, match=r"torch can't read it"):
        resumed(path)
    assert not target.exists()
    buffer = io.BytesIO(pickle.dumps(payload))
    pickle.load(buffer)  # the payload works
    assert target.exists()


def test_files_that_are_none(last: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, Path("/dev/zero"), tmp_path / "nothing"):
        with pytest.raises(CheckpointError, match="resume: there is no file"):
            resumed(path)
    with pytest.raises(CheckpointError, match=r"best\.ckpt is no last\.ckpt of a run"):
        resumed(last.with_name("best.ckpt"))
    with pytest.raises(CheckpointError, match=r"last\.ckpt is of a run with task=toy, this one has other"):
        resumed(last, identity={"task": "other"})


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: module(hidden=64), r"model\.convs\.0\.bias is \(16,\) float32, here \(64,\) float32"),
        (lambda: module(layers=3), r"it lacks model\.convs\.2\.bias"),
        (lambda: module(layers=1), r"it has model\.convs\.1\.bias, which this run lacks"),
        (lambda: module().half(), r"model\.convs\.0\.bias is \(16,\) float32, here \(16,\) float16"),
        (lambda: module(lr=0.5), r"it was trained with initial_lr=0\.01, here 0\.5"),
        (lambda: module(weight_decay=0.1), r"it was trained with weight_decay=0\.0005, here 0\.1"),
        (lambda: module(decay="all"), r"it was trained with 2 param_groups, here 1"),
        (lambda: module(schedule="none"), r"it has initial_lr, which this run lacks"),
    ],
)  # fmt: skip
def test_a_checkpoint_of_another_model(last: Path, made: Callable[[], NodeClassifier], message: str) -> None:
    """Refused before training, with the sizes of both; nothing is written."""
    with pytest.raises(CheckpointError, match=rf"resume: .*last\.ckpt does not fit this run: {message}$"):
        resumed(last, made())


def test_nested_beyond_reason(last: Path, tmp_path: Path) -> None:
    content, nested = torch.load(last, weights_only=True), {}
    content["loops"]["more"] = nested
    for _ in range(400):
        nested["x"] = nested = {}
    torch.save(content, tmp_path / "bad.ckpt")
    loop = content["loops"]
    loop["itself"] = loop
    torch.save(content, tmp_path / "worse.ckpt")
    assert "do not match their checksum" in (refusal(tmp_path / "bad.ckpt") or "")
    assert "nested too deeply" in (refusal(tmp_path / "worse.ckpt") or "")


def test_contents_of_a_data_set() -> None:
    """Each part is told from the others, and a copy under another name from nothing."""
    task = toy_task()
    contents = contents_of(task)
    assert contents_of(replace(task, name="elsewhere", x=task.x.clone())) == contents
    csr = task.graph.csr
    changes: dict[str, Any] = {
        "x": {"x": task.x + 1}, "y": {"y": task.y.flip(0)}, "val_mask": {"val_mask": task.val_mask & False},
        "num_classes": {"num_classes": task.num_classes + 1}, "metric": {"metric": "roc_auc"},
        "class_names": {"class_names": tuple("abcdefgh"[: task.num_classes])},
        "weights of edges": {"graph": SparseGraph(csr, torch.full((csr.nnz,), 2.0))},
    }  # fmt: skip
    for name, change in changes.items():
        other = contents_of(replace(task, **change))
        assert {key for key in {*contents, *other} if contents.get(key) != other.get(key)} == {name}
    assert contents_of(object()) == {}
