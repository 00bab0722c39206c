"""What is registered is offered everywhere: one file and one registration, and it prepares and trains."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import gnnsparse
import gnnsparse.nn
import train
from gnnsparse.bench.kernels_command import add_arguments
from gnnsparse.data import CATALOG, DATASETS, GENERATED_GRAPHS, SEQUENCE_DATASETS, load_dataset
from gnnsparse.data.catalog import register_dataset
from gnnsparse.data.generators import BlockModel, graph_like, register_block_model
from gnnsparse.formats import FORMAT_NAMES, PRESETS, FormatSpec, format_spec, register_preset
from gnnsparse.formats.csr import Csr
from gnnsparse.precision import Precision, round_operand
from gnnsparse.preprocess.reorder import METHODS, REORDERINGS, Option, register_reordering, reorder
from gnnsparse.registry import Names, Registry, temporary_registrations
from gnnsparse.testing import assert_accurate, assert_all_accurate, random_graph, with_gradients
from gnnsparse.train import PreprocessConfig
from gnnsparse.train.tasks import TASKS
from gnnsparse_cli import Parser
from launch.checks import choices
from models import MODELS
from papers.decode import decode
from tests.configs import composed
from tests.helpers import dense_matrix
from tests.tasks import toy_task

pytestmark = pytest.mark.usefixtures("registrations")


# The registry itself.


def test_names_are_taken_once_and_listed_in_errors() -> None:
    registry: Registry[int] = Registry("thing")
    for name in ("b", "a"):
        registry.register(name, 0)
    for method, name, error, message in (
        ("register", "b", ValueError, "got 'b' to register; accepted: a name that is not taken"),
        ("register", "", ValueError, "got '' to register"),
        ("register", 1, TypeError, "got int; accepted: a name"),
        ("check", "c", ValueError, "got 'c'; accepted: b, a"),
        ("check", 3, TypeError, "got int; accepted: one of b, a"),
    ):
        with pytest.raises(error, match=f"thing: {message}"):
            getattr(registry, method)(*((name, 2) if method == "register" else (name,)))
    assert dict(registry) == {"b": 0, "a": 0}
    assert registry.check("a") == "a"


def test_names_are_live() -> None:
    registry: Registry[int] = Registry("thing")
    names, even = Names(registry, "none"), Names(registry, where=lambda entry: entry % 2 == 0)
    registry.register("one", 1)
    with temporary_registrations():
        registry.register("two", 2)
        assert names == ("none", "one", "two")
        assert (list(even), even[0], len(names), "two" in names) == (["two"], "two", 3, True)
        assert names[1:] == ("one", "two")
    assert names == ("none", "one")
    assert names != ("none",)
    assert not even


def test_files_are_imported_when_they_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "lazy_things"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from gnnsparse.registry import Registry\nTHINGS = Registry('thing', package=__name__)\n"
    )
    (folder / "good.py").write_text("from lazy_things import THINGS\nTHINGS.register('good', 1)\n")
    (folder / "bad.py").write_text("")
    (folder / "_hidden.py").write_text("raise AssertionError")
    monkeypatch.syspath_prepend(tmp_path)
    things = importlib.import_module("lazy_things").THINGS
    assert list(things) == ["bad", "good"]
    assert "good" in things
    assert "lazy_things.good" not in sys.modules
    with temporary_registrations():
        assert things["good"] == 1
    assert things["good"] == 1, "a file is imported once: what it registered stays"
    with pytest.raises(ImportError, match=r"lazy_things\.bad registers nothing as 'bad'"):
        things["bad"]
    with pytest.raises(KeyError):
        things["_hidden"]


@pytest.mark.parametrize(
    ("register", "name"),
    [
        (lambda name: register_preset(FormatSpec(name, 8, 8, 8, 8, "dense"), "twice"), "me-bcrs"),
        (lambda name: register_preset(FormatSpec(name, 8, 8, 8, 8, "dense"), "twice"), "csr"),
        (lambda name: register_reordering(name)(lambda csr: csr.degrees), "degree"),
        (lambda name: register_dataset(name, task="node")(toy_task), "digits"),
        (lambda name: register_block_model(name, BlockModel(9, 9, 1, 3, 1, 2, 2)), "dd_like"),
    ],
    ids=["preset", "csr", "reordering", "data set", "graph"],
)
def test_nothing_is_registered_twice(register: Callable[[str], Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"got '{name}' to register; accepted: a name that is not taken"):
        register(name)


def test_names_come_in_the_order_of_old() -> None:
    """Messages and --help name what users know first."""
    assert REORDERINGS[:5] == ("none", "degree", "rcm", "metis", "community")
    assert FORMAT_NAMES[:8] == (
        "auto", "csr", "window", "me-bcrs", "cvse", "tiled-csr", "hrpb", "rs-tile",
    )  # fmt: skip
    assert "sr-bcrs" in FORMAT_NAMES
    assert not {"panel", "panel-values"} & set(FORMAT_NAMES)
    assert GENERATED_GRAPHS[:3] == ("reddit_like", "products_like", "arxiv_like")


def test_every_model_and_data_set_is_for_a_task() -> None:
    assert {entry.task for entry in CATALOG.values()} <= set(TASKS)
    assert {model.task for model in MODELS.values()} <= set(TASKS)
    assert all(TASKS[name].name == name for name in TASKS)
    assert all(PRESETS[name].spec.name == name for name in PRESETS)
    assert all(PRESETS[name].source for name in PRESETS)


# A preset.


def tall(name: str = "tall", **options: Any) -> FormatSpec:
    return FormatSpec(
        name, **{"window": 16, "panel": 16, "block": 4, "brick": 4, "encoding": "dense", **options}
    )


def assert_products(a: gnnsparse.SparseOperand, dense: torch.Tensor) -> None:
    """The product and its gradient, which is the product with the transpose."""
    x = torch.randn(dense.shape[1], 9)
    got = with_gradients(lambda x: a @ x, [x])
    plain = with_gradients(lambda x: gnnsparse.spmm(a, x, impl="reference"), [x])
    assert_all_accurate(got, plain, with_gradients(lambda x: dense @ x, [x.double()]))


def test_a_preset() -> None:
    register_preset(
        tall(),
        source="a test",
        panels={8: 8, 16: 16},
        adapt=lambda spec, precision, density: replace(spec, pad=8 if precision.storage.itemsize == 2 else 1),
        ops=("spmm", "sddmm"),
        precisions=tuple(Precision),
        paper_bytes=lambda matrix: 4 * matrix.vectors,
    )
    assert FORMAT_NAMES[-1] == "tall"
    assert (format_spec("tall", "fp16").pad, format_spec("tall", "fp32", panel=8).window) == (8, 8)
    graph = random_graph(70, 50, 0.1, hubs=2, empty_rows=0.2)
    dense = dense_matrix(graph, None)
    for precision, panel in (("fp32", None), ("fp16", 8)):
        a = gnnsparse.prepare(graph, format="tall", precision=precision, panel=panel, cache=False)
        stats = a.stats()
        assert stats["format"] == "tall"
        assert stats["format_bytes"]["paper"] == 4 * a.kernels.blocked.vectors
        row, col, values = decode(a.kernels.blocked)
        found = torch.zeros(70, 50, dtype=torch.float64)
        found[row, col] = values.double()
        assert torch.equal(found, round_operand(dense.float(), Precision(precision)).double())
        assert_products(a, dense)
    assert PreprocessConfig(format="tall").format == "tall"
    assert "tall" in choices()["preprocess.format"]
    with pytest.raises(ValueError, match=r"format: got 'ell'; accepted: auto, csr, .*tall"):
        gnnsparse.prepare(graph, format="ell")
    with pytest.raises(ValueError, match=r"panel: got 32 for tall; accepted: .*8 or 16 for tall"):
        gnnsparse.prepare(graph, format="tall", panel=32)


def test_a_preset_of_the_kernels_own() -> None:
    register_preset(tall("inner"), source="a test", public=False)
    assert format_spec("inner").name == "inner"
    with pytest.raises(ValueError, match="format: got 'inner'; accepted: auto"):
        gnnsparse.prepare(random_graph(9, 9, 0.1), format="inner")


def test_a_preset_with_a_height_that_does_not_go() -> None:
    with pytest.raises(ValueError, match="panel must be a multiple of window"):
        register_preset(tall(), source="a test", panels={24: 16})
    assert "tall" not in PRESETS


def test_a_preset_that_changed_is_prepared_anew() -> None:
    """The cache tells two definitions of one name apart."""
    graph = random_graph(40, 40, 0.1)
    operands = []
    for block in (4, 8):
        with temporary_registrations():
            register_preset(tall(block=block, brick=block, pad=8), source="a test")
            operands.append(gnnsparse.prepare(graph, format="tall", precision="fp16"))
            assert operands[-1].kernels.blocked.spec.block == block
            again = gnnsparse.prepare(graph, format="tall", precision="fp16")
            assert again.stats()["cache_hit"]
    assert not any(a.stats()["cache_hit"] for a in operands)


# A reordering.


def test_a_reordering() -> None:
    seen: list[tuple[int, dict[str, Any]]] = []

    @register_reordering("shuffle", options={"seed": Option(int, 0, least=0), "top": Option(bool, False)})
    def shuffle(csr: Csr, seed: int, top: bool) -> torch.Tensor:
        seen.append((csr.rows, {"seed": seed, "top": top}))
        return torch.randperm(csr.rows, generator=torch.Generator().manual_seed(seed))

    assert REORDERINGS[-1] == "shuffle"
    graph = random_graph(30, 20, 0.2)
    a = gnnsparse.prepare(graph, reorder="shuffle", reorder_options={"seed": 5}, cache=False)
    assert seen == [(30, {"seed": 5, "top": False}), (20, {"seed": 5, "top": False})], "options reach A^T"
    assert_products(a, dense_matrix(graph, None))
    assert a.stats()["reorder"]["method"] == "shuffle"
    assert PreprocessConfig(reorder="shuffle").reorder == "shuffle"
    assert "shuffle" in choices()["preprocess.reorder"]
    for options, error, message in (
        ({"seed": -1}, ValueError, "seed: got -1; accepted: at least 0"),
        ({"seed": 0.5}, TypeError, "seed: got float; accepted: an integer"),
        ({"top": 1}, TypeError, "top: got int; accepted: True or False"),
        ({"round": 1}, ValueError, "unknown options for 'shuffle': round; accepted: seed, top"),
    ):
        with pytest.raises(error, match=message):
            reorder(graph, "shuffle", **options)
    with pytest.raises(ValueError, match=r"reorder: got 'best'; accepted: none, .*shuffle"):
        reorder(graph, "best")


def test_what_a_reordering_says_of_itself() -> None:
    def order(csr: Csr, size: int) -> torch.Tensor:
        return torch.arange(csr.rows)

    with pytest.raises(ValueError, match=r"options: got \[\] for half; accepted: \['size'\]"):
        register_reordering("half")(order)
    with pytest.raises(ValueError, match="symmetric: got True"):
        register_reordering("half", options={"size": Option(int, 1)}, symmetric=True)(order)
    with pytest.raises(ValueError, match="size: got 0; accepted: at least 1"):
        register_reordering("half", options={"size": Option(int, 0, least=1)})(order)
    assert "half" not in METHODS


def test_options_of_every_kind() -> None:
    number = Option(float, 0.5, least=0, most=1)
    assert number.check("share", 1) == 1.0
    assert isinstance(number.check("share", 1), float)
    with pytest.raises(ValueError, match=r"share: got 1\.5; accepted: 0 to 1"):
        number.check("share", 1.5)
    with pytest.raises(ValueError, match="share: got nan; accepted: 0 to 1"):
        number.check("share", float("nan"))
    with pytest.raises(ValueError, match="size: got inf; accepted: a finite number above 0"):
        Option(float, 1.0, above=0).check("size", float("inf"))
    with pytest.raises(ValueError, match="stage: got 'mst'; accepted: knn, dfs"):
        Option(str, "knn", choices=("knn", "dfs")).check("stage", "mst")


def test_a_reordering_of_a_package_that_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    register_reordering("rabbit", package="no_such_package")(lambda csr: csr.degrees)
    with pytest.raises(ImportError, match="reorder='rabbit' needs the package no_such_package: pip install"):
        reorder(random_graph(9, 9, 0.3), "rabbit")
    parser = Parser(prog="bench")
    add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--reorder", "rabbit"])
    assert "rabbit needs the package no_such_package: pip install" in capsys.readouterr().err


def test_a_reordering_of_empty_matrices() -> None:
    empty = gnnsparse.SparseGraph.from_edge_index(torch.empty(2, 0, dtype=torch.int64), 4)
    register_reordering("plain")(lambda csr: pytest.fail("it was called"))
    register_reordering("backwards", empty=True)(lambda csr: torch.arange(csr.rows - 1, -1, -1))
    assert reorder(empty, "plain").order is None
    assert reorder(empty, "backwards").order.tolist() == [3, 2, 1, 0]


# A data set and a graph.


def test_a_data_set() -> None:
    @register_dataset("rings", task="node", splits=2)
    def load_rings(nodes: int = 60, split: int = 0) -> Any:
        return replace(toy_task(nodes), name=f"rings{split}")

    assert DATASETS[-1] == "rings"
    assert "rings" not in SEQUENCE_DATASETS
    assert load_dataset("rings", split=1, nodes=20).name == "rings1"
    rows, ones = load_dataset("rings", normalize_features=True).x, torch.ones(60)
    assert_accurate(rows.abs().sum(1), ones, ones.double())
    for options, error, message in (
        ({"split": 2}, ValueError, "split: got 2; accepted: 0 to 1"),
        ({"scale": 0.5}, ValueError, "scale: got 0.5 for rings; accepted: 1"),
        ({"root": "."}, ValueError, "root: got '.' for rings; accepted: None"),
        ({"edges": 3}, TypeError, "edges: no such option of rings; accepted: nodes, split"),
    ):
        with pytest.raises(error, match=message):
            load_dataset("rings", **options)
    cfg = composed("dataset=rings", "dataset.nodes=30")
    assert dict(cfg.dataset) == {"name": "rings", "nodes": 30, "split": 0}


def test_a_data_set_of_sequences() -> None:
    register_dataset("letters", task="sequence")(lambda length=3: length)
    assert list(SEQUENCE_DATASETS)[-1] == "letters"
    assert gnnsparse.data.load_sequences("letters", length=4) == 4
    with pytest.raises(TypeError, match="size: no such option of letters; accepted: length"):
        gnnsparse.data.load_sequences("letters", size=4)
    with pytest.raises(ValueError, match=r"name: got 'digits'; accepted: listops, .*letters"):
        gnnsparse.data.load_sequences("digits")


def test_a_generated_graph() -> None:
    register_block_model("small_like", BlockModel(600, 6000, 0.7, 30, 0.3, 2.5, 10))
    assert graph_like("small_like").num_rows == 600
    with pytest.raises(ValueError, match=r"name: got 'tiny'; accepted: reddit_like, .*small_like"):
        graph_like("tiny")


def test_an_option_without_a_default_has_to_be_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    register_dataset("mine", task="node")(lambda path, split=0: toy_task(path))
    with pytest.raises(SystemExit):
        train.run(composed("dataset=mine"), tmp_path)
    assert "train.py: dataset.path: got nothing; accepted: a value" in capsys.readouterr().err
    assert composed("dataset=mine", "dataset.path=60").dataset.path == 60


def test_prepare_names_what_came_with_it() -> None:
    """In its docstring, which refers to the registries for the rest."""
    text = gnnsparse.prepare.__doc__ or ""
    assert all(f'"{name}"' in text for name in (*REORDERINGS[:5], *FORMAT_NAMES[:8]))
    assert "gnnsparse.preprocess.reorder.REORDERINGS" in text
    assert "gnnsparse.formats.FORMAT_NAMES" in text
