"""Data sets of the Long Range Arena: "listops", which is generated, and "lra_text_bytes", of a folder.

It stands alone because the catalog finds it by its names, as any data set.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import torch

from gnnsparse.data.catalog import register_dataset
from gnnsparse.data.datasets import SequenceDataset, SequencePart, check_seed, check_split
from gnnsparse.data.sources import DatasetUnavailableError, data_folder, stored_arrays
from gnnsparse.data.splits import split_generator
from gnnsparse.errors import bad_value, check_integer, check_memory, path_of
from gnnsparse.runtime.hashing import fingerprint

#: Token t of a sequence is LISTOPS_TOKENS[t]; the first one is padding.
LISTOPS_TOKENS = ("", *map(str, range(10)), "[MIN", "[MAX", "[MED", "[SM", "]")
_FIRST_OPERATOR, _CLOSE = 11, 15
#: Probability that an argument is a list, most arguments of a list, and greatest depth of nested lists.
_NESTED, _MAX_ARGUMENTS, _MAX_DEPTH = 0.25, 10, 10
#: A part of the file's name, to be raised when the generator changes such that it makes other data.
_VERSION = 1
#: Most expressions that are drawn and rejected in a row before an error is raised.
_PATIENCE = 100_000


@register_dataset("listops", task="sequence")
def load_listops(
    seed: int = 0,
    min_length: int = 500,
    max_length: int = 2000,
    train_size: int = 96_000,
    val_size: int = 2_000,
    test_size: int = 2_000,
) -> SequenceDataset:
    """Generate the ListOps task (Nangia and Bowman 2018) of the Long Range Arena (Tay et al. 2021).

    The value of an expression such as `[MAX 2 9 [MIN 4 7 ] 0 ]` is one of ten digits. The operations are
    minimum, maximum, median (rounded down) and sum modulo 10 of 2 to 10 arguments. An argument is a digit or,
    with a probability of one quarter, another list; lists are nested up to ten deep. Expressions are drawn
    from this grammar until there are enough different ones with a length in the range. The default lengths
    and sizes are the Long Range Arena's. Equal arguments make equal data on every machine. Generated data are
    kept in the data folder ($GNNSPARSE_DATA_DIR or the user's cache folder).

    Args:
        seed: seed of the expressions.
        min_length: fewest tokens of an expression, brackets included.
        max_length: most tokens of an expression.
        train_size: number of expressions for training.
        val_size: number of expressions for validation.
        test_size: number of expressions for the test.

    Raises:
        TypeError: an argument is no integer.
        ValueError: an argument is out of range, or the grammar has too few expressions of these lengths.
        DatasetUnavailableError: the data folder can't be written.
        MemoryError: the sequences do not fit into memory.
    """
    check_seed(seed)
    check_integer("min_length", min_length)
    check_integer("max_length", max_length, min_length, f"at least {min_length}, as min_length")
    sizes = [
        check_integer(name, size)
        for name, size in (("train_size", train_size), ("val_size", val_size), ("test_size", test_size))
    ]
    parts = (_VERSION, seed, min_length, max_length, *sizes)
    file = data_folder() / "generated" / f"listops-{fingerprint([], *parts)[:16]}.safetensors"
    count = sum(sizes)
    check_memory("max_length", 3 * count * max_length, f"{count} sequences of {max_length} tokens")
    arrays = stored_arrays(file, lambda: _generate(seed, min_length, max_length, count))
    ends = torch.tensor(sizes).cumsum(0).tolist()
    train, val, test = (
        SequencePart(arrays["tokens"][end - size : end], arrays["y"][end - size : end].long())
        for size, end in zip(sizes, ends, strict=True)
    )
    return SequenceDataset("listops", train, val, test, vocabulary=len(LISTOPS_TOKENS), num_classes=10)


def _generate(seed: int, min_length: int, max_length: int, count: int) -> dict[str, torch.Tensor]:
    generator = random.Random(seed)
    found: dict[bytes, int] = {}  # in the order of drawing
    failures = 0
    while len(found) < count:
        tokens: list[int] = []
        value = _draw(generator, 1, tokens, max_length)
        if value is not None and len(tokens) >= min_length and bytes(tokens) not in found:
            found[bytes(tokens)] = value
            failures = 0
        elif (failures := failures + 1) > _PATIENCE:
            problem = f"of {min_length} to {max_length} tokens there are few expressions"
            accepted = "a wider range, or fewer of them"
            bad_value("min_length", f"{problem}: {len(found)} of {count} found; accepted: {accepted}")
    return {
        "tokens": _padded(list(found), max_length),
        "y": torch.tensor(list(found.values()), dtype=torch.int8),
    }


def _padded(sequences: list[bytes], length: int, offset: int = 0) -> torch.Tensor:
    padded = torch.zeros(len(sequences), length, dtype=torch.int16)
    for row, sequence in zip(padded, sequences, strict=True):
        tokens = torch.tensor(list(sequence[:length]), dtype=torch.int16)
        row[: tokens.numel()] = tokens + offset
    return padded


def _below(generator: random.Random, limit: int) -> int:
    """Return a random integer below `limit`, made by `random()`, whose numbers no Python release changes."""
    return int(generator.random() * limit)


def _draw(generator: random.Random, depth: int, tokens: list[int], max_length: int) -> int | None:
    """Draw an expression and append its tokens; return its value, or None if it got too long."""
    if depth >= _MAX_DEPTH or generator.random() > _NESTED:
        digit = _below(generator, 10)
        tokens.append(1 + digit)
        return digit if len(tokens) <= max_length else None
    operator = _below(generator, 4)
    tokens.append(_FIRST_OPERATOR + operator)
    values = []
    for _ in range(2 + _below(generator, _MAX_ARGUMENTS - 1)):
        value = _draw(generator, depth + 1, tokens, max_length)
        if value is None:
            return None
        values.append(value)
    tokens.append(_CLOSE)
    if len(tokens) > max_length:
        return None
    ordered, last = sorted(values), len(values) - 1
    median = (ordered[last // 2] + ordered[(last + 1) // 2]) // 2
    return (ordered[0], ordered[-1], median, sum(values) % 10)[operator]


_LAYOUT = "folders train and test, or none of both, with a folder of text files for each class"
#: Fractions of the texts for validation, and for testing if the folder has no test part.
_VAL_FRACTION, _TEST_FRACTION = 0.1, 0.1


@register_dataset("lra_text_bytes", task="sequence")
def load_text_bytes(root: str | os.PathLike[str], max_length: int = 4096, split: int = 0) -> SequenceDataset:
    """Load texts for the byte-level text classification of the Long Range Arena (Tay et al. 2021).

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
    base = path_of("root", root, f"a folder: {_LAYOUT}").expanduser()
    fixed = (base / "train").is_dir() and (base / "test").is_dir()
    folder = base / "test" if fixed else base
    try:
        classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    except OSError as error:
        problem = f"{folder} can't be read ({error})"
        raise DatasetUnavailableError(f"root: {problem}; accepted: {_LAYOUT}") from error
    if len(classes) < 2:
        problem = f"{base} has {len(classes)} folders of classes"
        raise DatasetUnavailableError(f"root: {problem}; accepted: {_LAYOUT}")
    train = _read_texts(base / "train" if fixed else base, classes, max_length)
    test = _read_texts(base / "test", classes, max_length) if fixed else None
    train, val = _divide(train, _VAL_FRACTION, split)
    if test is None:
        train, test = _divide(train, _TEST_FRACTION / (1 - _VAL_FRACTION), split)
    return SequenceDataset("lra_text_bytes", train, val, test, vocabulary=257, num_classes=len(classes))


def _read_texts(folder: Path, classes: list[str], max_length: int) -> SequencePart:
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
    return SequencePart(_padded(texts, max_length, offset=1), torch.tensor(labels))


def _divide(part: SequencePart, fraction: float, split: int) -> tuple[SequencePart, SequencePart]:
    """Divide a part at random into two of at least one text each; the second has a given fraction."""
    order = torch.randperm(len(part), generator=split_generator(split))
    count = min(max(1, round(fraction * len(part))), len(part) - 1)
    chosen = [ids.sort().values for ids in (order[count:], order[:count])]
    rest, taken = (SequencePart(part.tokens[ids], part.y[ids]) for ids in chosen)
    return rest, taken
