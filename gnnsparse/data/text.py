"""The data set "lra_text_bytes": classification of texts by their bytes, from a folder of files."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from gnnsparse.data.checks import check_split
from gnnsparse.data.registry import register_dataset
from gnnsparse.data.sequences import SequenceDataset, SequencePart, pad_sequences
from gnnsparse.data.splits import split_generator
from gnnsparse.data.storage import DatasetUnavailableError
from gnnsparse.errors import bad_type, check_integer, check_memory

__all__ = ["load_text_bytes"]

_LAYOUT = "folders train and test, or none of both, with a folder of text files for each class"
#: Shares of the texts for validation, and for testing if the folder has no test part.
_VAL_SHARE, _TEST_SHARE = 0.1, 0.1


@register_dataset("lra_text_bytes", task="sequence")
def load_text_bytes(root: str | os.PathLike[str], max_length: int = 4096, split: int = 0) -> SequenceDataset:
    """Loads texts for the byte-level text classification of the Long Range Arena (Tay et al. 2021).

    For the Long Range Arena's own task, the sentiment of IMDB reviews (Maas et al. 2011), `root` is the
    folder of the unpacked archive. A token is a byte plus 1.

    Args:
        root: a folder with `train/CLASS/FILE` and `test/CLASS/FILE`, or with `CLASS/FILE`, where each file is
            a text. Classes are numbered in the order of their names; folders of `train` that `test` lacks are
            left out. A tenth of the training texts is used for validation; without folders `train` and
            `test` another tenth is used for testing.
        max_length: bytes of a text that are read; shorter texts are padded.
        split: number of the random choice of these parts, from 0 on.

    Returns:
        The data set, on the CPU.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range.
        DatasetUnavailableError: `root` has no such files, or they can't be read.
        MemoryError: the texts do not fit into memory.
    """
    check_integer("max_length", max_length)
    check_split(split, None)
    if not isinstance(root, (str, os.PathLike)):
        bad_type("root", root, f"a folder: {_LAYOUT}")
    base = Path(root).expanduser()
    fixed = (base / "train").is_dir() and (base / "test").is_dir()
    classes = _classes(base / "test" if fixed else base)
    if len(classes) < 2:
        raise DatasetUnavailableError(
            f"root: {base} has {len(classes)} folders of classes; accepted: {_LAYOUT}"
        )
    train = _read(base / "train" if fixed else base, classes, max_length)
    test = _read(base / "test", classes, max_length) if fixed else None
    train, val = _share(train, _VAL_SHARE, split)
    if test is None:
        train, test = _share(train, _TEST_SHARE / (1 - _VAL_SHARE), split)
    return SequenceDataset("lra_text_bytes", train, val, test, vocabulary=257, num_classes=len(classes))


def _classes(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    except OSError as error:
        raise DatasetUnavailableError(
            f"root: {folder} can't be read ({error}); accepted: {_LAYOUT}"
        ) from error


def _read(folder: Path, classes: list[str], max_length: int) -> SequencePart:
    texts: list[bytes] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        try:
            files = sorted(path for path in (folder / name).iterdir() if path.is_file())
            for path in files:
                with open(path, "rb") as file:
                    texts.append(file.read(max_length))
        except OSError as error:
            raise DatasetUnavailableError(f"root: {folder / name} can't be read ({error})") from error
        check_memory("max_length", 2 * len(texts) * max_length, f"{len(texts)} texts of {max_length} bytes")
        if not files:
            raise DatasetUnavailableError(f"root: {folder / name} has no files; accepted: {_LAYOUT}")
        labels += [label] * len(files)
    return SequencePart(pad_sequences(texts, max_length, offset=1), torch.tensor(labels))


def _share(part: SequencePart, share: float, split: int) -> tuple[SequencePart, SequencePart]:
    """Divides a part at random into two of at least one text each, of which the second has a given share."""
    order = torch.randperm(len(part), generator=split_generator(split))
    count = min(max(1, round(share * len(part))), len(part) - 1)
    chosen = [ids.sort().values for ids in (order[count:], order[:count])]
    rest, taken = (SequencePart(part.tokens[ids], part.y[ids]) for ids in chosen)
    return rest, taken
