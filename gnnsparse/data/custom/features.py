"""Features that are made of columns of a table: of numbers, of texts, and of empty cells.

What a column becomes is decided by the rows to train on alone. It is stored with a model as plain values by
the names of the columns, so that other tables are read alike.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gnnsparse.errors import bad_value, check_memory


@dataclass(frozen=True)
class FeatureTransform:
    """How columns of a table become features; `fit` makes it, and `read` makes it of `to_dict`.

    Attributes:
        columns: the names of the columns, in the order of the features.
        categories: by column of texts the texts that have a feature each, which is 1 where it stands.
        fill: by column of numbers that is not scaled what stands in place of an empty cell.
        scale: by column that is scaled the mean that is subtracted, and the deviation that divides.
        missing: the columns with a feature more, `NAME is missing`, which is 1 where the cell is empty.

    Raises:
        ValueError: two features would have one name.
    """

    columns: tuple[str, ...]
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fill: Mapping[str, float] = field(default_factory=dict)
    scale: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = self.names
        if len(set(names)) < len(names):
            twice = next(name for at, name in enumerate(names) if name in names[:at])
            bad_value("feature_columns", f"two features are called {twice!r}; accepted: another name")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the features: NAME, NAME=TEXT of a text, and `NAME is missing`."""
        found: list[str] = []
        for name in self.columns:
            found += (
                [f"{name}={text}" for text in self.categories[name]] if name in self.categories else [name]
            )
            found += [f"{name} is missing"] if name in self.missing else []
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as plain values by name, for a checkpoint; empty ones are left out."""
        plain = {"columns": list(self.columns), "missing": list(self.missing), "fill": dict(self.fill)}
        lists = {key: {n: list(v) for n, v in getattr(self, key).items()} for key in ("categories", "scale")}
        return {key: value for key, value in {**plain, **lists}.items() if value}

    @classmethod
    def read(cls, content: Any, option: str = "transform") -> FeatureTransform:
        """Make a transform of what `to_dict` returned; raise ValueError if it is something else."""
        if isinstance(content, cls):
            return content
        try:
            given = dict(content)
            made = cls(
                tuple(given.pop("columns", ())),
                {name: tuple(texts) for name, texts in given.pop("categories", {}).items()},
                {name: float(number) for name, number in given.pop("fill", {}).items()},
                {name: (float(mean), float(by)) for name, (mean, by) in given.pop("scale", {}).items()},
                tuple(given.pop("missing", ())),
            )
            texts = [*made.columns, *made.missing, *(text for of in made.categories.values() for text in of)]
            numbers = [*made.fill.values(), *(number for of in made.scale.values() for number in of)]
            named = {*made.categories, *made.fill, *made.scale, *made.missing}
            fits = all(isinstance(text, str) for text in texts) and all(map(math.isfinite, numbers))
            fits &= not given and named <= set(made.columns) and all(by > 0 for _, by in made.scale.values())
        except (TypeError, ValueError, AttributeError):
            fits = False
        if not fits:
            accepted = f"what a data set has as {'feature_' * (option == 'transform')}{option}, or null"
            bad_value(option, f"got {str(content)[:100]}; accepted: {accepted}")
        return made

    @classmethod
    def fit(cls, columns: Mapping[str, np.ndarray], rows: np.ndarray, standardize: bool) -> FeatureTransform:
        """Decide by some rows of a table what its columns become.

        Args:
            columns: by name numbers, float64 [N], NaN where a cell is empty; or texts, objects [N], "" where
                one is empty.
            rows: bool [N], the rows to train on.
            standardize: whether numbers have the mean 0 and the deviation 1 over these rows. A column with
                one number in all of them stays as it is.
        """
        categories: dict[str, tuple[str, ...]] = {}
        fill: dict[str, float] = {}
        scale: dict[str, tuple[float, float]] = {}
        missing: list[str] = []
        for name, column in columns.items():
            if column.dtype.kind == "O":
                found = column[rows]
                categories[name] = tuple(sorted(set(found.tolist()) - {""}))
                if (found == "").any():
                    missing.append(name)
                continue
            found = column[rows]
            known = found[~np.isnan(found)]
            with np.errstate(over="ignore", invalid="ignore"):  # such a column is refused later
                mean, deviation = (float(known.mean()), float(known.std())) if known.size else (0.0, 0.0)
            if known.size < found.size:
                missing.append(name)
            if standardize and known.size and known.max() > known.min() and 0 < deviation < math.inf:
                scale[name] = (mean, deviation)
            elif math.isfinite(mean):
                fill[name] = mean
        return cls(tuple(columns), categories, fill, scale, tuple(missing))

    def __call__(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the features of the rows of a table, float32 [N, F].

        Texts that no training row has are 0 in all features, and empty cells where no training row had one
        get the mean of the training rows; a warning names both. Numbers beyond float32 become infinite.
        """
        rows, names = len(next(iter(columns.values()))), self.names
        check_memory("x", 4 * rows * len(names), f"features of shape ({rows}, {len(names)})")
        x = np.zeros((rows, len(names)), np.float32)
        unknown: list[str] = []  # what no training row had
        at = 0
        for name in self.columns:
            column = columns[name]
            if name in self.categories:
                empty = column == ""
                place = {text: at + i for i, text in enumerate(self.categories[name])}
                found = np.array([place.get(text, -1) for text in column.tolist()], dtype=np.int64)
                known = (found >= 0).nonzero()[0]
                x[known, found[known]] = 1
                if (new := (found < 0) & ~empty).any():
                    unknown.append(f"{name}={column[int(new.argmax())]} ({int(new.sum())} rows), read as 0")
                at += len(place)
            else:
                empty = np.isnan(column)
                mean, deviation = self.scale.get(name, (0.0, 1.0))
                filled = np.where(empty, self.fill.get(name, mean), column)
                with np.errstate(over="ignore"):
                    x[:, at] = (filled - mean) / deviation
                at += 1
            if name in self.missing:
                x[:, at] = empty
                at += 1
            elif empty.any():
                what = "0" if name in self.categories else "the mean"
                unknown.append(f"{name} is empty ({int(empty.sum())} rows), read as {what}")
        if unknown:
            problem = f"features: no training row has what others have: {'; '.join(unknown)[:300]}"
            warnings.warn(problem, UserWarning, stacklevel=2)
        return x


@dataclass(frozen=True)
class TypedTransform:
    """How the tables of a graph with types are read for a trained model; `read` makes it of `to_dict`.

    Attributes:
        types: by type of nodes how its columns become features.
        nodes: by type without features the names of its nodes, each of which the model has an embedding of.
    """

    types: Mapping[str, FeatureTransform]
    nodes: Mapping[str, tuple[str, ...]]

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as plain values by name, for a checkpoint."""
        types = {kind: made.to_dict() for kind, made in self.types.items()}
        return {"types": types, "nodes": {kind: list(names) for kind, names in self.nodes.items()}}

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> TypedTransform:
        """Make a transform of what `to_dict` returned; raise ValueError if it is something else."""
        try:
            nodes = {kind: tuple(map(str, names)) for kind, names in content["nodes"].items()}
            return cls({kind: FeatureTransform.read(of) for kind, of in content["types"].items()}, nodes)
        except (TypeError, KeyError, AttributeError):
            accepted = "what a data set has as feature_transform, or null"
            bad_value("transform", f"got {str(content)[:100]}; accepted: {accepted}")
