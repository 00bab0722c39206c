"""Graphs in tables: a list of edges and a table of nodes, as CSV, TSV or Parquet files.

What each column is used for is decided by rules, which docs/howto/own-data.md lists. A column that could be
several things is refused, and the error names the option that says which it is.

It stands alone because its rules about columns are an idea of their own, and tested as such.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np

from gnnsparse.data.array_files import read_text
from gnnsparse.data.custom.build import PARTS, Content, FileOptions, TypedContent, sorted_texts, text_of
from gnnsparse.data.custom.delimited import MISSING_WORDS, is_number, parse
from gnnsparse.data.custom.features import TypedTransform
from gnnsparse.data.optional import import_optional
from gnnsparse.errors import bad_value, check_memory
from gnnsparse.runtime.safe_io import open_regular, reading
from gnnsparse.sparse.typed import Relation

#: The endings of the names of tables.
ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt", ".txt.gz", ".parquet")
#: Bytes of memory for each byte of a text.
_FACTOR = 12
#: Names of columns to which nobody gave one: pandas' in texts and in Parquet files.
_UNNAMED = re.compile(r"|Unnamed: \d+(_level_\d+)?|__index_level_\d+__")
#: The usual names of columns, in small letters: of the two ends of an edge, of weights, ids and labels.
_ENDS = (("source", "target"), ("src", "dst"), ("from", "to"))
#: Names of columns, without "id", whose nodes are of two kinds.
_USERS = ("user", "users", "customer", "buyer", "reader", "person")
_ITEMS = ("item", "items", "product", "movie", "book", "song", "article")
_WEIGHTS = ("weight", "weights", "edge_weight", "w")
_IDS = ("id", "node", "node_id")
_LABELS = ("label", "y")
#: The usual names of the column of ids of graphs.
_GRAPHS = ("graph_id", "graph")
#: What stands between the ids of a graph and of a node where these begin anew in each graph.
_OF_GRAPH = "/"
#: Names by which a column of the nodes is no feature, unless the user says so.
_NO_FEATURES = (*_IDS, *_LABELS, "train_mask", "val_mask", "test_mask")
#: The name under which pandas writes an index that was made a column.
_INDEX = "index"
#: Different texts that a column of features may have, and rows that are names if all of them differ.
CATEGORIES, _MANY = 100, 20
#: Cells that are empty, in small letters, where others are numbers.
_EMPTY = ("", *MISSING_WORDS)
#: How many times the size of the other features a column is that there is a warning of.
_OUTSIZED = 500
#: The column of the split, and what its values mean.
_SPLIT = "split"
SPLIT_WORDS = {
    "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "test": "test",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Table:
    """The columns of a table: arrays [rows] of numbers, or of texts as objects."""

    file: str  # its name, for messages
    names: tuple[str, ...]
    columns: tuple[np.ndarray, ...]
    first_row: bool = False  # whether the names are the first row of a text, which may be values
    nameless: bool = False  # whether the columns have no names, but numbers: column 1, column 2 and so on
    separator: str = ""  # its name, of a text

    def headless(self) -> Table:
        """Return the table whose first row is values and whose columns have no names."""
        columns = [
            np.concatenate([np.array([name], dtype=object), column])
            for name, column in zip(self.names, self.columns, strict=True)
        ]
        while len(columns) > 1 and not any(columns[-1].tolist()):  # each line ends with a separator
            columns.pop()
        names = tuple(f"column {number + 1}" for number in range(len(columns)))
        return Table(self.file, names, tuple(columns), nameless=True, separator=self.separator)

    def with_names(self) -> Table:
        """Return the table itself if no two of its columns have the same name, else raise."""
        twice = next((name for at, name in enumerate(self.names) if name in self.names[:at]), None)
        if twice is not None:
            bad_value("path", f"{self.file} has two columns {twice!r}; accepted: a different name for each")
        return self

    def choose(self, option: str, name: str) -> str:
        """Return the name of the column that an option chooses, in any case if only one fits, else raise."""
        alike = [name] if name in self.names else self.called([name.casefold()])
        if len(alike) != 1:
            known = ", ".join(self.names)[:300]
            bad_value(option, f"there is no column {name!r}; {self.file} has {known or 'none'}{self.hint}")
        return alike[0]

    @property
    def hint(self) -> str:
        """What an error says of a text that has one column, maybe because of its separator."""
        single = self.separator and len(self.names) == 1
        return f" (the separator is taken to be a {self.separator}; separator= says it)" if single else ""

    def called(self, usual: Collection[str]) -> list[str]:
        """Return the names of columns that are one of some usual names, in capital or small letters."""
        return [name for name in self.names if name.casefold() in usual]

    def row_numbers(self, option: str, used: Collection[str | None]) -> list[str]:
        """Return unused columns without a name that number the rows or are empty; raise at others without."""
        unnamed = [name for name in self.names if _UNNAMED.fullmatch(name) and name not in used]
        for name in unnamed:
            if not self.counts_rows(name):
                problem = f"column {self.names.index(name) + 1} has no name, and holds no row numbers"
                bad_value(option, f"{self.file}: {problem}; accepted: a name for each column")
        return unnamed

    def counts_rows(self, name: str) -> bool:
        """Return whether a column has a different whole number in each row, as an index has, or nothing."""
        texts = self.texts(name).tolist()
        return not any(texts) or (len(set(texts)) == len(texts) and all(t.isdecimal() for t in texts))

    def values(self, name: str) -> np.ndarray:
        """Return a column: numbers, or texts."""
        return self.columns[self.names.index(name)]

    def texts(self, name: str) -> np.ndarray:
        """Return a column as texts, an array of objects, "" where a value is missing."""
        return np.array([text_of(value) for value in self.values(name).tolist()], dtype=object)

    def full_texts(self, option: str, name: str) -> np.ndarray:
        """Return a column as texts, an array of objects, of which none may be missing."""
        texts = self.texts(name)
        if (empty := texts == "").any():
            self.refuse(option, name, int(empty.argmax()), "a text")
        return texts

    def numbers(
        self, option: str, name: str, missing: bool = False, accepted: str = "finite numbers"
    ) -> np.ndarray:
        """Return the column of an option as finite numbers, float64, or NaN where values may be missing."""
        numbers, wrong = self._parsed(name)
        wrong |= np.isinf(numbers) if missing else ~np.isfinite(numbers)
        if wrong.any():
            self.refuse(option, name, int(wrong.argmax()), accepted)
        return numbers

    def feature(self, name: str, is_text: bool | None = None) -> np.ndarray:
        """Return a column of features: float64, NaN where a cell is empty; or texts, "" where one is.

        Args:
            name: the column.
            is_text: whether it has texts; None: it has if more than half of its cells have a letter, and
                others are neither numbers nor true and false.

        Raises:
            ValueError: a cell is no number where others are, or there are too many texts.
        """
        if is_text:
            return self.texts(name)
        numbers, wrong = self._parsed(name)
        wrong |= np.isinf(numbers)
        if not wrong.any():
            return numbers
        texts = self.texts(name)
        words = [text.casefold() for text in texts.tolist()]
        filled = [word for word in words if word not in _EMPTY]
        if set(filled) <= {"true", "false"}:
            return np.array([{"true": 1.0, "false": 0.0}.get(word, np.nan) for word in words])
        wrong &= np.array([word not in _EMPTY for word in words])
        if is_text is None and 2 * sum(any(map(str.isalpha, word)) for word in filled) > len(filled):
            self._check_categories(name, texts)
            return texts
        if wrong.any():
            self.refuse("feature_columns", name, int(wrong.argmax()), "a number, or an empty cell")
        return numbers

    def _check_categories(self, name: str, texts: np.ndarray) -> None:
        """Raise ValueError for texts that are names of rows, and no categories."""
        found = texts[texts != ""]
        count = len(set(found.tolist()))
        if count > CATEGORIES or count == len(found) >= _MANY:
            such = f"such as {found[0][:40]!r}"
            problem = (
                f"column {name!r} has {count} different texts in {len(found)} rows, as names are, {such}"
            )
            accepted = f"at most {CATEGORIES}, each in several rows"
            bad_value("feature_columns", f"{self.file}: {problem}; accepted: {accepted}")

    def is_numeric(self, name: str) -> bool:
        """Return whether each value of a column is a finite number."""
        return bool(np.isfinite(self._parsed(name)[0]).all())

    def refuse(self, option: str, name: str, at: int, accepted: str) -> NoReturn:
        """Raise ValueError about an element of a column."""
        got = text_of(self.values(name)[at])[:80]
        what = f"has {got!r}" if got else "is empty"
        bad_value(option, f"{self.file}: column {name!r} {what} in row {at + 1}; accepted: {accepted}")

    def _parsed(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return a column as float64, NaN where there is no number, and where something else is, bool."""
        column = self.values(name)
        if column.dtype.kind in "biuf":
            return column.astype(np.float64), np.zeros(len(column), bool)
        pandas = import_optional("pandas", self.file)
        series = pandas.Series(column, dtype=object).astype(str).str.strip()
        numbers = pandas.to_numeric(series, errors="coerce").to_numpy(np.float64, na_value=np.nan)
        return numbers, np.isnan(numbers) & ~series.str.lower().isin(["", "nan"]).to_numpy(bool)


def read_table(path: Path, separator: str | None = None) -> Table:
    """Read a table: a delimited text, whose separator is found if it is not given; or a Parquet file."""
    with reading(path):
        if not path.name.endswith(".parquet"):
            tabs = path.name.endswith((".tsv", ".tsv.gz"))
            found = parse(path.name, read_text(path, _FACTOR), separator, tabs)
            return Table(path.name, found.first, found.columns, not found.named, separator=found.separator)
        try:
            with open_regular(path) as file:
                return _parquet(path.name, file)
        except (MemoryError, ImportError, OSError):
            raise
        except Exception as error:  # pyarrow raises errors of many types
            raise ValueError(f"is no table ({type(error).__name__}: {str(error).strip()[:200]})") from error


def _parquet(name: str, file: BinaryIO) -> Table:
    """Read a Parquet file: numbers, and everything else as texts."""
    described = import_optional("pyarrow.parquet", name).ParquetFile(file)
    groups = range(described.metadata.num_row_groups)
    size = sum(described.metadata.row_group(i).total_byte_size for i in groups)
    check_memory("table", _FACTOR * size, f"a table of {size} bytes")
    table = described.read()
    return Table(name, tuple(table.column_names), tuple(map(array_of_arrow, table.columns)))


def array_of_arrow(column: Any) -> np.ndarray:
    """Return a column of pyarrow as numbers, or as texts, an array of objects with "" for missing ones."""
    types = import_optional("pyarrow", "a table").types
    is_real = types.is_floating(column.type) or types.is_boolean(column.type)
    if is_real or (types.is_integer(column.type) and not column.null_count):
        numbers: np.ndarray = np.asarray(column)
        return numbers
    return np.array(
        ["" if text is None else text for text in column.cast("string").to_pylist()], dtype=object
    )


def read_tables(path: Path, options: FileOptions) -> Content:
    """Read a graph of a table of edges and one of nodes in a folder, or of a file of edges; ids are texts."""
    is_folder = path.is_dir()
    if not is_folder and options.edges is not None:
        bad_value("edges", f"got {options.edges!r}, and path is a file itself; accepted: a folder as path")
    edges = _file(path, "edges", options.edges) if is_folder else path
    nodes = _file(path if is_folder else path.parent, "nodes", options.nodes)
    if nodes == edges:
        bad_value(
            "path", f"got {path}, the table of nodes; accepted: its folder, with a table of edges in it"
        )
    of_nodes = None if nodes is None else _with_names_of_nodes(read_table(nodes, options.separator), options)
    of_edges = _with_names_of_edges(read_table(edges, options.separator), options, of_nodes)
    if not len(of_edges.columns[0]):
        _warn("edges", of_edges, "has no row, so that no node has a neighbour")
    of_edges, of_nodes, graphs = _within_graphs(of_edges, of_nodes, options)
    labels = _edge_labels(of_edges, options, of_nodes)
    links = labels is None and _learns_links(of_edges, options, of_nodes)
    (source, target, weight), row_numbers, unused = _edge_columns(of_edges, options, labels or [], links)
    ends = {"source": of_edges.full_texts("source", source), "target": of_edges.full_texts("target", target)}
    if graphs is not None:
        ends = {name: graphs + _OF_GRAPH + end for name, end in ends.items()}
    bipartite = links and _are_two_kinds(of_edges, options, source, target, ends)
    apart = not bipartite or set(ends["source"]).isdisjoint(ends["target"])
    if not apart:
        if of_nodes is not None:
            problem = f"{of_nodes.file} can't tell apart nodes that {source} and {target} both have"
            bad_value("bipartite", f"{problem}; accepted: different ids, no table of nodes, or false")
        ends = {name: name + _OF_GRAPH + end for name, end in ends.items()}
    weights = None if weight is None else of_edges.numbers("weight", weight)
    uses: dict[str, Sequence[str]] = {"ends": [source, target], "weights": [weight] if weight else []}
    items: Content | None = None
    of_model = options.edge_transform
    wanted = options.edge_features or (of_model is not None and of_model.columns)
    if labels is not None or wanted:
        items, more, unused = _edge_items(of_edges, options, labels or [], unused)
        uses |= more
    if links:
        split = of_edges.called((_SPLIT,))[:1]
        times = {name: of_edges.values(name) for name in of_edges.names if name == options.time}
        uses |= {"split": split, "times": list(times)}
        unused = [name for name in unused if name not in {*split, *times}]
        count, masks = len(of_edges.columns[0]), _split(of_edges, split[0]) if split else {}
        items = Content(count, np.empty((2, count), np.int64), masks=masks, columns=times, item="edge")
    if unused:
        learned = None if links else items
        hint = "" if weight or learned else "; weight=COLUMN if one of them has the weights of the edges"
        others = [name for name in unused if name not in of_edges.called((*_LABELS, _SPLIT))]
        if learned is None and others and not links:
            takers = "models of PyG, and to gine, gatedgcn, pna and meshgraphnet"
            hint += f"; edge_features=[{','.join(others)}] gives them to {takers}"
        if learned is None and of_edges.called(_LABELS):
            hint += "; task=edge learns labels of edges"
        _warn("weight", of_edges, f"columns that are not used: {_listed(unused)}{hint}")
    lines, known = [_line(of_edges, uses, row_numbers, unused)], of_edges.file
    content: dict[str, Any] = {"ids": tuple(sorted_texts({*np.concatenate([*ends.values()]).tolist()}))}
    if of_nodes is not None:
        content, id, line = _nodes(of_nodes, options, ends)
        lines, known = [*lines, line], f"{of_nodes.file}, column {id!r}"
        if labels is not None and content.pop("y") is not None:
            _warn("task", of_nodes, "labels of nodes are not used, as the labels of edges are learned")
    numbers = [_numbers(option, of_edges.file, end, content["ids"], known) for option, end in ends.items()]
    ends_of = np.stack(numbers)
    if labels is not None:
        why = f"{of_edges.file} has a column {labels[0]!r}" if labels else "task=edge"
        content |= {"learns_edges": True, "reason": why}
    if items is not None:
        content |= {"of_edges": replace(items, edges=ends_of)}
    content |= {"bipartite": bipartite}
    if not apart:  # both columns have the same texts for nodes of two kinds
        content["ids"] = tuple(name.split(_OF_GRAPH, 1)[1] for name in content["ids"])
    return Content(len(content["ids"]), ends_of, weights, directed=False, uses=tuple(lines), **content)


#: What stands between the types and the name of a relation in the name of its table.
_JOIN = "__"


def read_typed_tables(folder: Path, options: FileOptions) -> TypedContent:
    """Read a graph with types: edges/SOURCE__NAME__TARGET.csv of each relation, and nodes/TYPE.csv of types.

    The nodes of a type without a table are the ends of its edges.
    """
    edges: dict[Relation, Table] = {}
    for stem, file in _files_of(folder / "edges").items():
        relation = tuple(stem.split(_JOIN))
        if len(relation) != 3 or not all(relation):
            accepted = "names as SOURCE__NAME__TARGET.csv, with the types of both ends"
            bad_value("path", f"edges/{file.name} is no name of a relation; accepted: {accepted}")
        edges[relation] = replace(read_table(file, options.separator), file=f"edges/{file.name}")
    kinds = dict.fromkeys(kind for relation in edges for kind in relation[::2])
    nodes = {}
    for kind, file in _files_of(folder / "nodes").items():
        if kind not in kinds:
            bad_value("path", f"nodes/{file.name} is of a type without edges; accepted: {', '.join(kinds)}")
        table = replace(read_table(file, options.separator), file=f"nodes/{file.name}")
        nodes[kind] = _with_names_of_nodes(table, options.of_type(kind))
    labels = () if options.transform is not None else ("label_columns",)  # of which predictions need none
    _check_named(options, nodes, ("id", *labels, "feature_columns"))
    _check_named(options, edges, ("source", "target"))
    lines, made = [], {}
    texts: dict[tuple[Relation, int], np.ndarray] = {}
    for relation, table in edges.items():
        made[relation], *ends, line = _relation(table, relation, nodes, options)
        texts |= {(relation, at): end for at, end in zip((0, 2), ends, strict=True)}
        lines.append(line)
    of_types, known = {}, dict.fromkeys(kinds, "its edges")
    for kind in kinds:
        joined = np.concatenate([end for (relation, at), end in texts.items() if relation[at] == kind])
        content: dict[str, Any] = {"ids": tuple(sorted_texts({*joined.tolist()}))}
        if kind in nodes:
            own = _options_of(nodes[kind], options.of_type(kind))
            if own.transform is None and options.transform is not None:
                own = replace(own, features="constant")  # the model takes none
            content, id, line = _nodes(nodes[kind], own, {"edges": joined})
            known[kind] = f"{nodes[kind].file}, column {id!r}"
            lines.append(line)
        content = _of_trained_nodes(kind, content, options, kind in nodes)
        of_types[kind] = Content(len(content["ids"]), np.empty((2, 0), np.int64), item=kind, **content)
    for relation, items in made.items():
        numbers = [
            _numbers(
                option, edges[relation].file, texts[relation, at], of_types[relation[at]].ids or (),
                known[relation[at]],
            )
            for option, at in (("source", 0), ("target", 2))
        ]  # fmt: skip
        made[relation] = replace(items, edges=np.stack(numbers))
    return TypedContent(of_types, made, directed=False, uses=tuple(lines))


def _of_trained_nodes(
    kind: str, content: dict[str, Any], options: FileOptions, has_table: bool
) -> dict[str, Any]:
    """Return what there is of a type's nodes as the embeddings of a trained model need it, or raise."""
    made = options.transform
    if not isinstance(made, TypedTransform):
        return content
    names = made.nodes.get(kind)
    if names is None:
        if not has_table:
            accepted = f"a table nodes/{kind}.csv with the columns of the training"
            bad_value("path", f"there is no table of the nodes of type {kind!r}; accepted: {accepted}")
        return content
    new = sorted({*content["ids"]}.difference(names))
    if new or (has_table and content["ids"] != names):
        got = f"{new[0][:80]!r} is new" if new else "the table has fewer, or another order"
        accepted = f"the {len(names)} of the training, which have embeddings and no features"
        bad_value("path", f"of the nodes of type {kind!r} {got}; accepted: {accepted}")
    return {**content, "ids": names}


def _files_of(folder: Path) -> dict[str, Path]:
    """Return the tables in a folder by their names without the ending, sorted."""
    found: dict[str, Path] = {}
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        stem = next((file.name.removesuffix(end) for end in ENDINGS if file.name.endswith(end)), None)
        if stem is None or file.name.startswith("."):
            continue
        if stem in found:
            got = f"{folder.name} has {found[stem].name} and {file.name}"
            bad_value("path", f"{got}; accepted: one table of each name")
        found[stem] = file
    return found


def _check_named(options: FileOptions, tables: Mapping[Any, Table], names: Sequence[str]) -> None:
    """Raise ValueError if an option names a column that no table has."""
    for option in names:
        given = getattr(options, option) or ()
        for name in [given] if isinstance(given, str) else given:
            if not any(table.called([name.casefold()]) for table in tables.values()):
                there = "; ".join(f"{table.file} has {_listed(table.names)}" for table in tables.values())
                problem = f"no table has a column {name!r}: {there or 'there is no folder nodes'}"
                bad_value(option.removesuffix("_columns") if option[0] == "l" else option, problem)


def _options_of(table: Table, options: FileOptions) -> FileOptions:
    """Return the options of one type's table: those that name columns of others do not count."""

    def has(name: str | None) -> bool:
        return name is not None and bool(table.called([name.casefold()]))

    chosen = [name for name in options.feature_columns or () if has(name)]
    none = options.feature_columns is not None and not chosen
    return replace(
        options,
        id=options.id if has(options.id) else None,
        label=options.label if options.label_columns and all(map(has, options.label_columns)) else None,
        feature_columns=chosen or None,
        features="constant" if none else options.features,
    )


def ends_of_relation(table: Table, relation: Relation, options: FileOptions) -> FileOptions:
    """Return the options of a relation's table, whose columns with the names of its types are the ends."""
    ends: dict[str, Any] = {}
    for option, kind in zip(("source", "target"), relation[::2], strict=True):
        given = getattr(options, option)
        usual = [kind + more for more in ("", "_id", "id")] if relation[0] != relation[2] else []
        columns = table.called([name.casefold() for name in ([given] if given else usual)])
        ends[option] = columns[0] if len(columns) == 1 else None
    return replace(options, weight=None, edge_label=None, **ends)


def _relation(
    table: Table, relation: Relation, nodes: Mapping[str, Table], options: FileOptions
) -> tuple[Content, np.ndarray, np.ndarray, str]:
    """Return the rows of a relation, the texts of both ends, and a line that says what its columns are."""
    own = ends_of_relation(table, relation, options)
    table = _with_names_of_edges(table, own, nodes.get(relation[0]) if relation[0] == relation[2] else None)
    (source, target, weight), row_numbers, unused = _edge_columns(table, own, (), links=True)
    split = table.called((_SPLIT,))[:1]
    times = {name: table.values(name) for name in table.names if name == options.time}
    unused = [name for name in unused if name not in {*split, *times}] + ([weight] if weight else [])
    if unused:
        _warn("edges", table, f"columns that are not used: {_listed(unused)}")
    texts = table.full_texts("source", source), table.full_texts("target", target)
    masks = _split(table, split[0]) if split else {}
    items = Content(len(texts[0]), np.empty((2, 0), np.int64), masks=masks, columns=times, item="edge")
    uses = {"ends": [source, target], "split": split, "times": list(times)}
    return items, *texts, _line(table, uses, row_numbers, unused)


def _edge_labels(table: Table, options: FileOptions, nodes: Table | None) -> list[str] | None:
    """Return the columns of labels of edges; None: the task is not one of edges."""
    given = options.edge_labels
    if options.task not in ("auto", "edge"):
        if given:
            accepted = "task=edge, or no edge_label"
            bad_value("edge_label", f"got {given[0]!r} for task={options.task}; accepted: {accepted}")
        return None
    if given and options.edge_transform is not None and not set(given) & set(table.names):
        return []  # a model predicts for edges without labels too
    usual = table.called(_LABELS if options.task == "edge" else _LABELS[:1])
    found = [table.choose("edge_label", name) for name in given] or usual
    if options.task == "edge":
        if not found and options.classes is None:
            there = f"{table.file} has {_listed(table.names)}{table.hint}"
            accepted = "a column label, edge_label=COLUMN, or classes= for predictions alone"
            bad_value("edge_label", f"no column has the labels of the edges; {there}; accepted: {accepted}")
        if not given and len(found) > 1:
            accepted = "edge_label=COLUMN"
            bad_value("edge_label", f"{table.file} has {' and '.join(found)}; accepted: {accepted}")
        return found
    has_others = options.label is not None or (nodes is not None and bool(nodes.called(_LABELS)))
    return found if options.edge_labels or (found and not has_others) else None


def _learns_links(table: Table, options: FileOptions, nodes: Table | None) -> bool:
    """Return whether the task is one of links: it is chosen, or nothing has labels."""
    if options.task != "auto":
        return options.task == "link"
    other = options.label is not None or options.classes is not None or options.transform is not None
    return not other and (
        nodes is None or not (nodes.called((*_LABELS, _SPLIT)) or graph_column(nodes.names, options))
    )


def _are_user_and_item(source: str, target: str) -> bool:
    first, second = (name.casefold().removesuffix("id").rstrip("_ ") for name in (source, target))
    return first in _USERS and second in _ITEMS


def _are_two_kinds(
    table: Table, options: FileOptions, source: str, target: str, ends: Mapping[str, np.ndarray]
) -> bool:
    """Return whether sources and targets are nodes of two kinds: by the option, names or ids of columns."""
    if options.bipartite is not None:
        return options.bipartite
    return _are_user_and_item(source, target) or (
        set(ends["source"]).isdisjoint(ends["target"]) and not table.nameless
    )


def _edge_items(
    table: Table, options: FileOptions, labels: list[str], unused: Sequence[str]
) -> tuple[Content, dict[str, Sequence[str]], list[str]]:
    """Return the labels, split and features of edges, what columns are used for, and those that are not."""
    several = bool(labels) and not isinstance(options.edge_label, str) and options.edge_label is not None
    y = table.values(labels[0]) if labels and not several else None
    if several:
        y = np.stack([table.numbers("edge_label", name, missing=True) for name in labels], axis=1)
    split = table.called((_SPLIT,))[:1]
    times = {name: table.values(name) for name in table.names if name == options.time}
    features, chosen = {}, options.edge_features
    of_model = options.edge_transform
    if of_model is not None:
        chosen = of_model.columns
    left = [name for name in unused if name not in {*labels, *split, *times}]
    for name in left if chosen is None else [table.choose("edge_features", name) for name in chosen]:
        try:
            column = table.feature(name, None if of_model is None else name in of_model.categories)
        except ValueError as error:
            if chosen is None:
                continue  # it is named as one that is not used
            raise ValueError(str(error).replace("feature_columns", "edge_features")) from None
        if of_model is not None or column.dtype.kind == "O" or not np.isnan(column).all():
            features[name] = column
    rows = len(table.columns[0])
    items = Content(
        rows, np.empty((2, rows), np.int64), y=y, masks=_split(table, split[0]) if split else {},
        columns=times, label_columns=tuple(labels) if several else None, named=bool(labels) and not several,
        features=features or None, item="edge",
    )  # fmt: skip
    uses: dict[str, Sequence[str]] = {
        "labels": labels, "split": split, "times": list(times), "features of edges": _described(features),
    }  # fmt: skip
    return items, uses, [name for name in left if name not in features]


def _within_graphs(
    edges: Table, nodes: Table | None, options: FileOptions
) -> tuple[Table, Table | None, np.ndarray | None]:
    """Take the ids of graphs out of a table of edges, which then is like that of one graph.

    Where the ids of nodes begin anew in each graph, they are put behind those of the graphs, and the ids of
    the edges' graphs are returned too.
    """
    column = None if nodes is None else graph_column(nodes.names, options)
    if nodes is None or column not in edges.names:
        return edges, nodes, None
    graphs, at = edges.full_texts("graph", column), edges.names.index(column)
    names, columns = ((*all_of[:at], *all_of[at + 1 :]) for all_of in (edges.names, edges.columns))
    edges = replace(edges, names=names, columns=columns)
    id = _named_id(nodes, options)
    if id is None or len(set(texts := nodes.texts(id).tolist())) == len(texts):
        return edges, nodes, None
    own = nodes.full_texts("graph", column) + _OF_GRAPH + nodes.full_texts("id", id)
    at = nodes.names.index(id)
    return edges, replace(nodes, columns=(*nodes.columns[:at], own, *nodes.columns[at + 1 :])), graphs


def _file(folder: Path, option: str, name: str | None) -> Any:
    """Return the file that an option names, or that has its usual name; None: there are no nodes."""
    for candidate in [name] if name is not None else [option + ending for ending in ENDINGS]:
        if (folder / candidate).is_file():
            if not candidate.endswith(ENDINGS):
                bad_value(option, f"got {candidate!r}; accepted: a file {', '.join(ENDINGS)}")
            return folder / candidate
    if name is not None or option == "edges":
        wanted = name or f"{option}.csv, {option}.tsv or {option}.parquet"
        bad_value(option, f"there is no file {wanted} in {folder}; accepted: the name of a file there")
    return None


def _with_names_of_edges(table: Table, options: FileOptions, nodes: Table | None) -> Table:
    """Return the table of edges, after deciding whether its first row has names or is an edge."""
    usual = all(table.called(names) for names in zip(*_ENDS, strict=True))
    usual = usual or any(_are_user_and_item(s, t) for s in table.names for t in table.names)
    given = (options.source, options.target, options.weight, *options.edge_labels)
    if usual or len(table.names) < 2 or _are_names(table, given):
        return table.with_names()
    cells = [name for name in table.names if name]
    if all(map(is_number, cells)):
        if cells == [str(number) for number in range(len(cells))]:
            problem = (
                f"the first row, {','.join(cells)}, is read as an edge; if these are the numbers of columns, "
                "as pandas writes them, set source='0' and target='1'"
            )
            _warn("source", table, problem)
        return table.headless()
    ids: set[str] | None = None
    if nodes is not None and (name := _named_id(nodes, options)) is not None and len(cells) in (2, 3):
        ids = set(nodes.texts(name).tolist())
    if ids is not None and ids.issuperset(cells[:2]) and all(map(is_number, cells[2:])):
        return table.headless()
    if _differ_from_values(table) or (ids is not None and len(cells) == 2 and ids.isdisjoint(cells)):
        return table.with_names()
    bad_value(
        "source",
        f"{table.file}: its first row, {','.join(table.names)[:200]}, may be names of columns or an edge; "
        f"accepted: source={table.names[0]} target={table.names[1]} if it is names, else a row source,target "
        "before it",
    )


def _with_names_of_nodes(table: Table, options: FileOptions) -> Table:
    """Return the table of nodes, after making sure that it has names of columns."""
    of_model = () if options.of_model is None else options.of_model.columns
    given = (options.id, *options.label_columns, *(options.feature_columns or ()), *of_model, options.time)
    usual = table.called((*_NO_FEATURES, _SPLIT))
    if not (usual or _are_names(table, given) or _differ_from_values(table)):
        bad_value(
            "id",
            f"{table.file}: its first row, {','.join(table.names)[:200]}, may be a node; accepted: a first "
            f"row of names, such as id,a,b,label, or id=COLUMN if it is names{table.hint}",
        )
    return table.with_names()


def _are_names(table: Table, given: Iterable[str | None]) -> bool:
    """Return whether names are certain: of Parquet, given as options, or as pandas writes an index."""
    return not table.first_row or table.names[0] == "" or any(name in table.names for name in given)


def _differ_from_values(table: Table) -> bool:
    """Return whether a column has a text in its first row, and numbers in all others."""
    words = [n for n in table.names if n and not is_number(n) and n.casefold() not in MISSING_WORDS]
    return any(len(table.values(name)) and table.is_numeric(name) for name in words)


def _line(
    table: Table, uses: Mapping[str, Sequence[str]], row_numbers: Sequence[str], unused: Sequence[str]
) -> str:
    parts = [f"{_listed(names)} = {what}" for what, names in uses.items() if names]
    left = [f"{name!r} (row numbers)" for name in row_numbers] + list(unused)
    return f"{table.file}: {'; '.join(parts)}{f'; not used: {_listed(left)}' if left else ''}"


def _listed(names: Sequence[str]) -> str:
    shown = [name or "''" for name in names]
    return ", ".join(shown) if len(shown) <= 8 else f"{', '.join(shown[:3])}, ... {shown[-1]} ({len(shown)})"


def _edge_columns(
    table: Table, options: FileOptions, labels: Sequence[str], links: bool = False
) -> tuple[tuple[str, str, str | None], list[str], list[str]]:
    """Decide which columns of a table of edges are sources, targets and weights, row numbers, and others."""
    given = {name for name in (options.source, options.target, options.weight, *labels) if name is not None}
    numbers = table.row_numbers("edges", given)
    unused: list[str] = []
    if table.nameless and not given:
        source, target, *more = _headless_columns(table)
        weight = more[0] if more else None
    else:
        weight = options.weight and table.choose("weight", options.weight)
        if weight is None:
            weights = [name for name in table.called(_WEIGHTS) if name not in given]
            if len(weights) > 1:
                bad_value("weight", f"{table.file} has {' and '.join(weights)}; accepted: weight=COLUMN")
            weight = weights[0] if weights else None
        others = {*labels, *(table.called((_SPLIT,)) if labels or links else []), options.time}
        left = [name for name in table.names if name not in {*numbers, weight, *others}]
        if _INDEX in left and len(left) > 2 and _INDEX not in given and table.counts_rows(_INDEX):
            left.remove(_INDEX)
        source, target = _ends(table, options, left)
        unused = [name for name in table.names if name not in {source, target, weight, *numbers}]
    return (source, target, weight), numbers, unused


def columns_of_edges(table: Table, options: FileOptions) -> tuple[Table, tuple[str, str, str | None], str]:
    """Return a table of edges with names of columns, those of its ends and weights, and a line to log."""
    named = _with_names_of_edges(table, options, None)
    (source, target, weight), row_numbers, unused = _edge_columns(named, options, ())
    if unused:
        hint = "" if weight else "; --weight COLUMN if one of them has the weights of the edges"
        _warn("weight", named, f"columns that are not used: {_listed(unused)}{hint}")
    uses = {"ends": [source, target], "weights": [weight] if weight else []}
    return named, (source, target, weight), _line(named, uses, row_numbers, unused)


def _warn(option: str, table: Table, problem: str) -> None:
    warnings.warn(f"{option}: {table.file}: {problem}", UserWarning, stacklevel=3)


def _headless_columns(table: Table) -> tuple[str, ...]:
    """Return the columns of a table of edges without names: two of ends, and perhaps one of weights."""
    names = table.names
    accepted = "a first row of names, such as source,target,weight"
    if not 2 <= len(names) <= 3:
        bad_value("source", f"{table.file} has {len(names)} columns without names; accepted: {accepted}")
    ends = list(zip(("source", "target"), names, strict=False))
    ids = [table.full_texts(option, name) for option, name in ends]
    numbered = all(map(is_number, ids[0].tolist()))
    if numbered:
        for option, name in ends:
            wrong = table.numbers(option, name) % 1 != 0
            if wrong.any():
                table.refuse(option, name, int(wrong.argmax()), f"whole numbers as ids, or {accepted}")
    rows = len(ids[0])
    if len(names) == 3 and rows > 2 and numbered:
        first, third = table.numbers("source", names[0]), table.numbers("weight", names[2])
        counts = any(np.array_equal(first, np.arange(start, start + rows)) for start in (0, 1))
        if counts and not (third % 1).any():
            bad_value(
                "source",
                f"{table.file}: its first column has the numbers of the rows, which may be sources or an "
                f"index; accepted: {accepted}",
            )
    return names


def _ends(table: Table, options: FileOptions, left: list[str]) -> tuple[str, str]:
    """Return the columns of sources and targets, among those that are nothing else."""
    given = {"source": options.source, "target": options.target}
    found = [name and table.choose(option, name) for option, name in given.items()]
    if found[0] is not None and found[0] == found[1]:
        bad_value("target", f"got {found[1]!r}, which is the column of sources; accepted: another column")
    small = {name: name.casefold() for name in left}
    pairs = [(s, t) for s in left for t in left if (small[s], small[t]) in _ENDS or _are_user_and_item(s, t)]
    if found == [None, None] and len(pairs) == 1:
        return pairs[0]
    for at, usual in enumerate(zip(*_ENDS, strict=True)):
        named = [name for name in left if small[name] in usual and name not in found]
        if found[at] is None and len(named) == 1:
            found[at] = named[0]
    free = [name for name in left if name not in found]
    missing = found.count(None)
    if len(free) == missing:
        found = [free.pop(0) if name is None else name for name in found]
    source, target = found
    if source is None or target is None:
        rest = "; accepted: two columns of ids at least, source and target"
        if len(free) > missing:
            accepted = "the names source and target, or source=COLUMN target=COLUMN"
            rest = f", of which several may be the ends of edges; accepted: {accepted}"
        columns = f"{table.file} has the columns {', '.join(table.names)[:300]}"
        bad_value("source" if source is None else "target", f"{columns}{rest}{table.hint}")
    return source, target


def _numbers(option: str, file: str, ends: np.ndarray, ids: tuple[str, ...], known: str) -> np.ndarray:
    """Return the numbers of nodes, int64, after a check that all ids are those of nodes."""
    pandas = import_optional("pandas", "a table of edges")
    numbers: np.ndarray = pandas.Index(np.array(ids, dtype=object)).get_indexer(ends)
    if (numbers < 0).any():
        at = int((numbers < 0).argmax())
        such = f", such as {ids[0][:80]!r}" if ids else ""
        bad_value(
            option, f"{file}: row {at + 1} has {ends[at][:80]!r}; accepted: the ids of nodes in {known}{such}"
        )
    return numbers.astype(np.int64)


def _named_id(table: Table, options: FileOptions) -> str | None:
    """Return the column of ids, if an option or its name alone says which it is."""
    if options.id is not None:
        return table.choose("id", options.id)
    named = table.called(_IDS)
    return named[0] if len(named) == 1 else None


def _id_column(table: Table, options: FileOptions, ends: np.ndarray, taken: Iterable[str | None]) -> str:
    """Return the column of the nodes' ids: the named one, or the only one with all ends of edges."""
    if (name := _named_id(table, options)) is not None:
        return name

    def has_ids(name: str) -> bool:
        texts = table.texts(name).tolist()
        return len(set(texts)) == len(texts) and "" not in texts and needed.issubset(texts)

    needed, taken = set(ends.tolist()), set(taken)
    if options.of_model is not None:
        taken |= set(options.of_model.columns)
    among = table.called(_IDS) or [name for name in table.names if name not in taken]
    found = [name for name in among if has_ids(name)]
    if len(found) == 1:
        return found[0]
    problem = f"no column of {table.file} has each end of an edge once, and no text twice"
    if found:
        problem = f"{table.file}: the columns {_listed(found)} all have the ends of the edges"
    bad_value("id", f"{problem}; accepted: a column id, or id=COLUMN")


def graph_column(names: Iterable[str], options: FileOptions) -> str | None:
    """Return the column of the nodes with the ids of graphs, the chosen one or the usual one; None: none."""
    there = list(names)
    if options.graph is not None:
        if options.graph not in there:
            bad_value(
                "graph", f"the nodes have no column {options.graph!r}; they have {', '.join(there)[:300]}"
            )
        return options.graph
    usual = [
        name for name in there if name.casefold() in _GRAPHS and name not in (options.feature_columns or ())
    ]
    return usual[0] if len(usual) == 1 else None


def _nodes(
    table: Table, options: FileOptions, ends: dict[str, np.ndarray]
) -> tuple[dict[str, Any], str, str]:
    if not len(table.columns[0]):
        bad_value("nodes", f"{table.file} has names of columns and no row; accepted: a row for each node")
    given = options.label_columns
    if options.transform is not None and not set(given) & set(table.names):
        given = []  # a model predicts for nodes without labels too
    labels = [table.choose("label", name) for name in given] or table.called(_LABELS)
    several = options.label is not None and not isinstance(options.label, str)
    if not given and len(labels) > 1:
        bad_value("label", f"{table.file} has {' and '.join(labels)}; accepted: label=COLUMN")
    split = table.called((_SPLIT,))[:1]
    graphs = graph_column(table.names, options)
    taken = [*labels, *split, options.time, graphs]
    column = _id_column(table, options, np.concatenate(list(ends.values())), taken)
    ids = tuple(table.full_texts("id", column).tolist())
    if len(set(ids)) != len(ids):
        twice = next(text for text, count in Counter(ids).items() if count > 1)
        accepted = (
            "one for each node" if graphs is None else f"one for each node, or {graphs} in the edges too"
        )
        bad_value("id", f"{table.file}: {twice[:80]!r} has two rows; accepted: {accepted}")
    y = table.values(labels[0]) if labels and not several else None
    if several and labels:
        y = np.stack([table.numbers("label", name, missing=True) for name in labels], axis=1)
    chosen, row_numbers, unused = _feature_columns(table, options, labels, {column, *taken})
    features = _features(table, options, chosen)
    if empty := [name for name in chosen if name not in features]:
        _warn("feature_columns", table, f"columns that are not used, as they are empty: {_listed(empty)}")
        chosen, unused = list(features), [*unused, *empty]
    if options.feature_columns is None and options.of_model is None and not options.standardize:
        _compare_sizes(table, features)
    times = [name for name in table.names if name == options.time]
    uses = {
        "ids": [column],
        "features": _described(features),
        "labels": labels,
        "split": split,
        "times": times,
        "graphs": [] if graphs is None else [graphs],
    }
    content = {
        "ids": ids,
        "features": features or None,
        "y": y,
        "label_columns": tuple(labels) if several else None,
        "masks": _split(table, split[0]) if split else {},
        "columns": {name: table.values(name) for name in table.names if name not in {column, *labels}},
        "named": bool(labels) and not several,
    }
    return content, column, _line(table, uses, row_numbers, unused)


def _feature_columns(
    table: Table, options: FileOptions, labels: list[str], taken: set[str | None]
) -> tuple[list[str], list[str], list[str]]:
    """Return the columns of the features, those of row numbers, and those that are not used."""
    rest = [name for name in table.names if name not in taken]
    if options.features != "file":
        return [], [], rest
    if options.of_model is not None:
        return _columns_of_model(table, options.of_model.columns, rest)
    if options.feature_columns is not None:
        chosen = [table.choose("feature_columns", name) for name in options.feature_columns]
        if (label := next((name for name in labels if name in chosen), None)) is not None:
            bad_value("feature_columns", f"has {label!r}, the column of labels; accepted: other columns")
        return chosen, [], [name for name in rest if name not in chosen]
    row_numbers = table.row_numbers("nodes", taken)
    rest = [name for name in rest if name not in row_numbers]
    doubtful = [name for name in table.called(_NO_FEATURES) if name in rest]
    if doubtful:
        others = ",".join(name for name in rest if name not in doubtful and table.is_numeric(name))
        bad_value(
            "feature_columns",
            f"{table.file}: {doubtful[0]!r} may be something else than a feature; accepted: "
            f"feature_columns=[{others[:200]}], say, without it or with it",
        )
    unused = [_INDEX] if _INDEX in rest and table.counts_rows(_INDEX) else []
    if unused:
        problem = f"columns that are not used: {_INDEX}; feature_columns=[...] if it is a feature"
        _warn("feature_columns", table, problem)
    return [name for name in rest if name not in unused], row_numbers, unused


def _columns_of_model(
    table: Table, wanted: Sequence[str], rest: Sequence[str]
) -> tuple[list[str], list[str], list[str]]:
    """Return what `_feature_columns` does, for features of a trained model; raise if columns are missing."""
    if missing := [name for name in wanted if name not in table.names]:
        there = f"{table.file} has {_listed(table.names)}{table.hint}"
        problem = f"there is no column {_listed(list(map(repr, missing)))}; {there}"
        bad_value("feature_columns", f"{problem}; accepted: all columns that the model was trained with")
    more = [name for name in rest if name not in wanted]
    numbers = [name for name in more if _UNNAMED.fullmatch(name)]
    more = [name for name in more if name not in numbers]
    if more:
        _warn("feature_columns", table, f"columns that the model does not take are not used: {_listed(more)}")
    return list(wanted), numbers, more


def _features(table: Table, options: FileOptions, chosen: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the columns of features, without those that are empty and that no model was trained with."""
    of_model = options.of_model
    if of_model is not None:
        return {name: table.feature(name, name in of_model.categories) for name in chosen}
    features: dict[str, np.ndarray] = {}
    for name in chosen:
        try:
            column = table.feature(name)
        except ValueError as error:
            fitting = ",".join(name for name in chosen if table.is_numeric(name))[:200]
            choice = f"feature_columns=[{fitting}] without this column" if fitting else "features=degree"
            raise ValueError(f"{error}, or {choice}") from None
        if column.dtype.kind == "O" or not len(column) or not np.isnan(column).all():
            features[name] = column
    return features


def _described(features: Mapping[str, np.ndarray]) -> list[str]:
    """Return the names of columns of features, with the number of different texts and of empty cells."""
    described = []
    for name, column in features.items():
        texts = column.dtype.kind == "O"
        empty = int((column == "").sum() if texts else np.isnan(column).sum())
        count = len(set(column.tolist()) - {""}) if texts else 0
        notes = [f"{count} text{'' if count == 1 else 's'}"] if texts else []
        notes += [f"{empty} empty"] if empty else []
        described.append(f"{name} ({', '.join(notes)})" if notes else name)
    return described


def _compare_sizes(table: Table, features: dict[str, np.ndarray]) -> None:
    """Warn of a column that nobody has chosen, next to which a model hardly sees the others, as a year."""
    numbers = {
        name: column[~np.isnan(column)] for name, column in features.items() if column.dtype.kind == "f"
    }
    sizes = {name: float(np.sqrt(np.mean(column**2))) for name, column in numbers.items() if column.size}
    for name, size in sizes.items():
        others = [other for key, other in sizes.items() if key != name and other > 0]
        usual = float(np.median(others)) if others else size
        if size > _OUTSIZED * usual:
            problem = (
                f"the values of {name!r} are about {size:.3g}, and those of the others about {usual:.3g}, "
                "which a model then hardly sees; standardize=true scales them, or name the columns"
            )
            _warn("feature_columns", table, problem)


def _split(table: Table, column: str) -> dict[str, np.ndarray]:
    parts = [text.lower() for text in table.texts(column).tolist()]
    for at, text in enumerate(parts):
        if text and text not in SPLIT_WORDS:
            got = f"{table.file}: row {at + 1} of column {column!r} has {text[:40]!r}"
            bad_value("split", f"{got}; accepted: train, val, test, or nothing")
    of = np.array([SPLIT_WORDS.get(text, "") for text in parts], dtype=object)
    return {part: of == part for part in PARTS}
