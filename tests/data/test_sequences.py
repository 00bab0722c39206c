"""Data sets of sequences: ListOps and texts by their bytes."""

from __future__ import annotations

import random
import re
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnsparse.data import (
    LISTOPS_TOKENS,
    DatasetUnavailableError,
    SequenceDataset,
    SequencePart,
    load_sequences,
)
from gnnsparse.data import long_range_arena as module

SMALL: dict[str, Any] = {
    "min_length": 8, "max_length": 60, "train_size": 300, "val_size": 40, "test_size": 50,
}  # fmt: skip


pytestmark = pytest.mark.usefixtures("dataset_cache")


def text_of(tokens: torch.Tensor) -> str:
    return " ".join(LISTOPS_TOKENS[t] for t in tokens.tolist() if t)


def by_python(text: str) -> int:
    """The value by Python's own reading of the expression: another way than the library's."""
    names = {"[MIN": "min([", "[MAX": "max([", "[MED": "med([", "[SM": "sm([", "]": "]),"}
    source = " ".join(names.get(word, word + ",") for word in text.split()).rstrip(",")
    return eval(source, {"med": lambda v: int(statistics.median(v)), "sm": lambda v: sum(v) % 10})


def test_listops() -> None:
    dataset = load_sequences("listops", **SMALL)
    assert [len(part) for part in dataset.parts.values()] == [300, 40, 50]
    assert (dataset.vocabulary, dataset.num_classes, dataset.length) == (16, 10, 60)
    seen = set()
    for part in dataset.parts.values():
        for tokens, y in zip(part.tokens, part.y, strict=True):
            text, length = text_of(tokens), int((tokens > 0).sum())
            assert 8 <= length <= 60
            assert not tokens[length:].any(), "padding is at the end"
            assert by_python(text) == int(y)
            seen.add(text)
    assert len(seen) == 390, "all are different"
    assert len(dataset.train.y.unique()) == 10


def test_the_grammar() -> None:
    """A quarter of the arguments are lists, of 2 to 10 arguments each, with operators alike."""
    generator = random.Random(0)
    lists = arguments = deepest = 0
    counts = torch.zeros(4)
    for _ in range(3000):
        tokens: list[int] = []
        module._draw(generator, 1, tokens, 10**6)
        sizes: list[int] = []
        for token in tokens:
            if token == 15:
                assert 2 <= sizes.pop() <= 10
                continue
            if sizes:
                sizes[-1] += 1
                free = len(sizes) < 9  # the arguments of the ninth list in lists are digits
                arguments += free
                lists += free and token > 10
            if token >= 11:
                counts[token - 11] += 1
                sizes.append(0)
                deepest = max(deepest, len(sizes))
    assert abs(lists / arguments - 0.25) < 0.01
    assert float((counts / counts.sum() - 0.25).abs().max()) < 0.02
    assert deepest == 9


def test_the_same_on_every_machine() -> None:
    """The first expressions of seed 0: random() of Python is fixed, and nothing else is drawn."""
    found = module._generate(0, 8, 14, 2)
    assert [text_of(t) for t in found["tokens"]] == ["[MED 0 8 8 9 3 2 8 ]", "[MED 7 4 4 8 1 6 ]"]
    again = module._generate(0, 8, 14, 2)
    assert torch.equal(found["tokens"], again["tokens"])
    assert not torch.equal(found["tokens"], module._generate(1, 8, 14, 2)["tokens"])


def test_it_is_kept(dataset_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_sequences("listops", **SMALL)
    files = list((dataset_cache / "generated").glob("*.safetensors"))
    assert len(files) == 1
    with monkeypatch.context() as patch:
        patch.setattr(module, "_generate", lambda *_: pytest.fail("it was generated again"))
        second = load_sequences("listops", **SMALL)
    assert torch.equal(first.test.tokens, second.test.tokens)
    load_sequences("listops", **{**SMALL, "seed": 1})
    assert len(list((dataset_cache / "generated").glob("*.safetensors"))) == 2


def test_too_few_expressions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 500)
    with pytest.raises(ValueError, match=r"min_length: of 1 to 1 tokens there are few expressions: 10 of"):
        load_sequences("listops", min_length=1, max_length=1, train_size=9, val_size=1, test_size=1)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    base = tmp_path / "reviews"
    for part, count in (("train", 10), ("test", 4)):
        for label in ("neg", "pos"):
            (base / part / label).mkdir(parents=True)
            for number in range(count):
                (base / part / label / f"{number}.txt").write_bytes(f"{part} {label} {number} é".encode())
    (base / "train" / "unsup").mkdir()
    (base / "train" / "unsup" / "0.txt").write_text("no label")
    return base


def read_back(tokens: torch.Tensor) -> str:
    return bytes(t - 1 for t in tokens.tolist() if t).decode()


def test_texts(texts: Path) -> None:
    dataset = load_sequences("lra_text_bytes", root=texts, max_length=40)
    assert [len(part) for part in dataset.parts.values()] == [18, 2, 8]
    assert (dataset.vocabulary, dataset.num_classes, dataset.length) == (257, 2, 40)
    for name, part in dataset.parts.items():
        for tokens, y in zip(part.tokens, part.y, strict=True):
            folder, label, _, accent = read_back(tokens).split()
            assert folder == ("test" if name == "test" else "train")
            assert label == ("neg", "pos")[int(y)]
            assert accent == "é"
    others = load_sequences("lra_text_bytes", root=texts, max_length=40, split=1)
    assert not torch.equal(others.val.tokens, dataset.val.tokens)
    assert torch.equal(others.test.tokens, dataset.test.tokens)
    cut = load_sequences("lra_text_bytes", root=texts, max_length=5)
    assert {read_back(t) for t in cut.test.tokens} == {"test "}
    unsplit = load_sequences("lra_text_bytes", root=texts / "test", max_length=40)
    parts = [{read_back(t) for t in part.tokens} for part in unsplit.parts.values()]
    assert [len(part) for part in parts] == [6, 1, 1]
    assert len(set.union(*parts)) == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "imdb"}, "name: got 'imdb'; accepted: listops, lra_text_bytes"),
        ({"name": "listops", "min_length": 9, "max_length": 8}, "max_length: got 8; accepted: at least 9"),
        ({"name": "listops", "train_size": 0}, "train_size: got 0"),
        ({"name": "listops", "seed": -1}, "seed: got -1"),
        ({"name": "lra_text_bytes", "root": None}, "root: got NoneType; accepted: a folder: folders train"),
        ({"name": "lra_text_bytes", "root": ".", "max_length": 0}, "max_length: got 0"),
        ({"name": "lra_text_bytes", "root": ".", "split": -1}, "split: got -1"),
    ],
)
def test_bad_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        load_sequences(**options)


def test_folders_without_texts(tmp_path: Path) -> None:
    with pytest.raises(DatasetUnavailableError, match=r"nowhere can't be read"):
        load_sequences("lra_text_bytes", root=tmp_path / "nowhere")
    (tmp_path / "one").mkdir()
    with pytest.raises(DatasetUnavailableError, match=r"has 1 folders of classes; accepted: folders train"):
        load_sequences("lra_text_bytes", root=tmp_path)
    (tmp_path / "two").mkdir()
    with pytest.raises(DatasetUnavailableError, match=r"one has no files"):
        load_sequences("lra_text_bytes", root=tmp_path)


def test_the_data_set_checks_itself() -> None:
    part = SequencePart(torch.tensor([[1, 2, 0]], dtype=torch.int16), torch.tensor([1]))
    longer = SequencePart(torch.ones(1, 4, dtype=torch.int16), torch.tensor([0]))
    assert SequenceDataset("x", part, part, part, 3, 2).length == 3
    for val, sizes, message in (
        (part, (2, 2), "train.tokens: holds 0 to 2; accepted: 0 to 1"),
        (part, (3, 1), "train.y: holds 1 to 1; accepted: 0 to 0"),
        (longer, (3, 2), "val.tokens: has length 4; accepted: 3"),
    ):
        with pytest.raises(ValueError, match=message):
            SequenceDataset("x", part, val, part, *sizes)
    with pytest.raises(TypeError, match=r"tokens: got a tensor of dtype torch.int64"):
        SequencePart(torch.ones(1, 3).long(), torch.tensor([0]))
