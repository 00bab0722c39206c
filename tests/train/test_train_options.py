"""Options: what is refused, in one sentence and before data is loaded; configs/ agrees with the settings."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig, OmegaConf

import train
from gnnsparse.data import CATALOG, DATASETS, SEQUENCE_DATASETS, register_dataset
from gnnsparse.data.datasets import CLASS_METRICS
from gnnsparse.nn.transformer import ACTIVATIONS
from gnnsparse.patterns.masks import PATTERNS
from gnnsparse.train import OptimizerConfig, PreprocessConfig, TrainerConfig, resolve_device
from gnnsparse.train.settings import SECTIONS
from gnnsparse.train.tasks import TASKS
from gnnsparse.train.tasks.sequence import make_pattern
from launch import checks
from launch.checks import section
from launch.words import check_words
from models import MODELS
from models.gps import CONVS
from models.parts import NORMS
from models.patterns import ATTENTIONS
from models.transformer import POOLS
from tests.configs import CONFIGS, composed
from tests.own_graphs import write_tables

LOADED: list[int] = []


def load() -> Any:
    LOADED.append(1)
    raise AssertionError("the data was loaded")


@pytest.fixture(autouse=True)
def unloadable(registrations: None) -> None:
    register_dataset("unloadable", task="node")(load)


@functools.cache
def base() -> DictConfig:
    return composed("dataset=unloadable")


def refusal(options: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The line that train.py prints; the options are set whatever their types are, None removes a group."""
    cfg = copy.deepcopy(base())
    OmegaConf.set_struct(cfg, False)
    for option, value in options.items():
        OmegaConf.update(cfg, option, value, merge=False)
    LOADED.clear()
    with pytest.raises(SystemExit) as end:
        train.run(cfg, folder)
    printed = capsys.readouterr()
    assert (end.value.code, printed.out, LOADED) == (2, "", [])
    assert printed.err.count("\n") == 1
    assert not folder.exists() or not any(folder.iterdir())
    return printed.err.removeprefix("train.py: ").rstrip("\n")


HUGE = 10**400


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trainer": None}, "trainer: got None; accepted: a name, as in --help, and its options"),
        ({"model": 3}, "model: got 3; accepted: a name"),
        ({"model.name": None}, "model: got NoneType; accepted: one of gcn, agnn"),
        ({"model.name": "../x"}, "model: got '../x'; accepted: gcn, agnn"),
        ({"dataset.name": 5}, "dataset.name: got int"),
        ({"model.hidden_channels": 10**12}, "model."),
        ({"model.hidden_channels": 2**62}, "model"),
        ({"model.hidden_channels": 2**70}, "model"),
        ({"model.num_layers": 10**9}, "model.num_layers: got 1000000000; accepted: at most 10000"),
        ({"model.hidden_channels": [8]}, "model.hidden_channels: got list; accepted: a positive integer"),
        ({"model.dropout": {"p": 1}}, "model.dropout: got dict; accepted: a number in [0, 1)"),
        ({"model.out_channels": 3}, "model.out_channels: gcn has no such option; accepted: hidden_channels"),
        ({"trainer.max_epochs": 0}, "trainer.max_epochs: got 0; accepted: an integer, at least 1"),
        ({"trainer.max_epochs": 2**31}, "trainer.max_epochs: got 2147483648; accepted: at most 2147483647"),
        ({"trainer.max_epochs": 10.0}, "trainer.max_epochs: got 10.0; accepted: an integer, at least 1"),
        ({"trainer.log_every": True}, "trainer.log_every: got True; accepted: an integer, at least 1"),
        ({"trainer.patience": 0}, "trainer.patience: got 0; accepted: an integer, at least 1"),
        ({"trainer.patience": HUGE}, "trainer.patience: got about 10^"),
        ({"trainer.val_every": 0}, "trainer.val_every: got 0"),
        ({"trainer.logger": "comet"}, "trainer.logger: got 'comet'; accepted: csv, tensorboard, both, wandb"),
        ({"trainer.class_weights": "even"}, "trainer.class_weights: got 'even'; accepted: none, balanced, o"),
        ({"trainer.class_weights": [1, "2"]}, "trainer.class_weights: got [1, '2']; accepted: none, balan"),
        ({"trainer.class_weights": [1, -2]}, "trainer.class_weights: got [1, -2]; accepted: none, balanced"),
        ({"trainer.class_weights": []}, "trainer.class_weights: got []; accepted: none, balanced, or a li"),
        ({"trainer.profile": 0}, "trainer.profile: got 0"),
        ({"trainer.progress": 1}, "trainer.progress: got 1"),
        ({"trainer.checkpoint": "yes"}, "trainer.checkpoint: got 'yes'; accepted: True or False"),
        ({"trainer.checkpoint_seconds": float("inf")}, "trainer.checkpoint_seconds: got inf; accepted"),
        ({"trainer.checkpoint_seconds": -1.0}, "trainer.checkpoint_seconds: got -1.0"),
        ({"optimizer.lr": 0}, "optimizer.lr: got 0; accepted: a number above 0"),
        ({"optimizer.lr": "fast"}, "optimizer.lr: got 'fast'"),
        ({"optimizer.lr": HUGE}, "optimizer.lr: got an integer of 1329 bits; accepted: a number above 0"),
        ({"optimizer.lr": float("nan")}, "optimizer.lr: got nan; accepted: a number above 0"),
        ({"optimizer.weight_decay": -1}, "optimizer.weight_decay: got -1; accepted: a number, 0 or more"),
        ({"optimizer.schedule": "step"}, "optimizer.schedule: got 'step'; accepted: none, cosine"),
        ({"optimizer.decay": "last"}, "optimizer.decay: got 'last'; accepted: first, all"),
        ({"optimizer.decay": ["first"]}, "optimizer.decay: got list; accepted: one of first, all"),
        ({"optimizer.momentum": 1}, "optimizer.momentum: no such option; accepted: lr, weight_decay"),
        ({"sampler.name": "random"}, "sampler.name: got 'random'; accepted: none, neighbor"),
        ({"sampler.fanouts": [0]}, "sampler.fanouts: got 0; accepted: positive integers, or -1"),
        ({"sampler.fanouts": []}, "sampler.fanouts: is empty"),
        ({"sampler.fanouts": 4}, "sampler.fanouts: got int"),
        ({"sampler.batch_size": 0}, "sampler.batch_size: got 0"),
        ({"sampler.batch_size": 16}, "sampler.batch_size: goes with sampler=neighbor"),
        ({"sampler.method": "weighted"}, "sampler.method: got 'weighted'; accepted: uniform, labor"),
        ({"sampler.replace": 1}, "sampler.replace: got 1;"),
        ({"sampler.replace": True, "sampler.method": "labor"}, "sampler.replace: got true with sampler.met"),
        ({"sampler.relations": "all"}, "sampler.relations: got 'all'; accepted: auto, each, shared"),
        ({"sampler.temporal_strategy": "first"}, "sampler.temporal_strategy: got 'first'; accepted: "),
        ({"sampler.prefetch": -1}, "sampler.prefetch: got -1"),
        ({"sampler.features": "gpu"}, "sampler.features: got 'gpu'; accepted: auto, device, pinned, host"),
        ({"sampler.cache_share": 2}, "sampler.cache_share: got 2; accepted: a number from 0 to 1"),
        ({"sampler.cache_share": -1}, "sampler.cache_share: got -1"),
        ({"preprocess.reorder": "best"}, "preprocess.reorder: got 'best'; accepted: none, degree"),
        ({"preprocess.format": "dense"}, "preprocess.format: got 'dense'; accepted: auto, csr"),
        ({"preprocess.format": "window", "preprocess.balance": "even"}, "preprocess.balance: got 'even'; ac"),
        ({"preprocess.balance": "wave"}, "preprocess.balance: got 'wave' for preprocess.format=auto, "),
        ({"preprocess.cache": 1}, "preprocess.cache: got int; accepted: true, false or a folder"),
        ({"preprocess.cache": ""}, "preprocess.cache: got ''; accepted: true, false or a folder"),
        ({"preprocess.cache": "a\0b"}, r"preprocess.cache: got 'a\x00b'; accepted: true, false or a folder"),
        ({"precision": None}, "precision: got None; accepted: fp32, tf32, fp16, bf16"),
        ({"precision": ["fp32"]}, "precision: got ['fp32']; accepted: fp32"),
        ({"seed": HUGE}, "seed: got 1000"),
        ({"seed": "0"}, "seed: got '0'; accepted: an integer, at least 0"),
        ({"seed": -1}, "seed: got -1; accepted: an integer, at least 0"),
        ({"device": "tpu"}, "device: got 'tpu'; accepted: auto, cpu, cuda"),
        ({"resume": 5}, "resume: there is no file 5"),
        ({"resume": "/"}, "resume: there is no file /"),
        ({"resume": "/dev/zero"}, "resume: there is no file /dev/zero"),
        ({"resume": "a\0b"}, "resume: there is no file a"),
        ({"resume": "x" * 5000}, "resume: there is no file x"),
        ({"mode": "predict"}, "checkpoint: got None with mode=predict; accepted: a path with mode=predict"),
        ({"checkpoint": "x"}, "checkpoint: got x with mode=train"),
        ({"mode": "predict", "checkpoint": "none.ckpt"}, "checkpoint: there is no file 'none.ckpt'"),
        ({"mode": "guess"}, "mode: got 'guess'; accepted: train, predict"),
        ({"optimizer.lr": "${nothing}"}, "optimizer.lr: Interpolation key 'nothing' not found"),
        ({"dataset.root": "x"}, "dataset.root: got 'x' for unloadable; accepted: None"),
    ],
)  # fmt: skip
def test_refused(
    options: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refusal(options, tmp_path / "run", capsys).startswith(message)


def test_a_model_that_does_not_fit_says_the_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without taking the memory, and in no time."""
    line = refusal({"model.hidden_channels": 2**30, "model.num_layers": 3}, tmp_path / "run", capsys)
    numbers = r"model: training \d+ parameters in float32 needs \d+\.\d GB, and .* leaves \d+\.\d GB"
    assert re.fullmatch(numbers, line)


def test_patterns_of_a_size_that_no_index_has_and_none() -> None:
    cfg = composed(*LISTOPS, f"pattern.block_size={2**63}")
    with pytest.raises(ValueError, match=rf"pattern\.block_size: got {2**63}; accepted: an integer"):
        TASKS["sequence"].check(train.read_settings(cfg))
    OmegaConf.set_struct(cfg, False)
    del cfg["pattern"]
    with pytest.raises(ValueError, match="pattern: got nothing; accepted: bigbird, "):
        TASKS["sequence"].check(train.read_settings(cfg))


@pytest.mark.parametrize("content", [b"", b"nonsense", {"state_dict": {}}, {"global_step": 1}])
def test_a_checkpoint_is_checked_before_data_is_loaded(
    content: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "last.ckpt"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        torch.save(content, file)
    line = refusal({"resume": str(file)}, tmp_path / "run", capsys)
    assert line.startswith(f"resume: {file} is no last.ckpt of a run (")


def test_a_folder_is_checked_before_data_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    folder = tmp_path / "file" / "run"
    said = f"hydra.run.dir: {folder} can't be written to (Not a directory); accepted: a folder that can"
    assert refusal({}, folder, capsys) == said


def test_another_seed_does_not_resume() -> None:
    """The random numbers are the checkpoint's, so that the option would do nothing."""
    task, settings = TASKS["node"], train.read_settings(composed())
    first, other = (train.identity_of(composed(f"seed={seed}"), task, settings) for seed in (0, 1))
    assert first != other


LISTOPS = ("model=transformer", "dataset=listops")
NOWHERE = "dataset.root=PLACE/nowhere"
TABLES = ("dataset=custom", "dataset.path=PAPERS")
MISSING = "dataset.root: no complete raw files of {} in PLACE/nowhere: "


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(([f"dataset={data}", NOWHERE], MISSING.format(data)) for data in ("cora", "ogbn_arxiv", "reddit")),
        (["dataset=listops"], "model: got gcn for listops, a data set of sequences; accepted: transformer"),
        (["model=transformer", "dataset=cora"], "model: got transformer for cora, a data set of nodes; acc"),
        (["model=agnn", "dataset=proteins"], "model: got agnn for proteins, a data set of graphs; accepted:"),
        (["model=gin", "dataset=ogbl_ddi", "dataset.root=x"], "a data set of links; accepted: gcn, graph"),
        (["model=gin", "dataset=proteins", "dataset.fold=10"], "dataset.fold: got 10; accepted: 0 to 9"),
        (["model=gin", "dataset=proteins", "model.pool=median"], "model.pool: got 'median'; accepted: sum"),
        (["model=gin", "dataset=proteins", "preprocess.reorder=rcm"], "preprocess.reorder: got 'rcm' for"),
        (["model=gin", "dataset=proteins", "dataset.root=/nowhere"], "no complete raw files of proteins"),
        (["model=graphsage", "dataset=ogbl_ddi"], "dataset.root: got nothing"),
        ([*LISTOPS, "pattern.window_blocks=2"], "pattern.window_blocks: got 2"),
        ([*LISTOPS, "dataset.min_length=0"], "dataset.min_length: got 0"),
        ([*LISTOPS, "model.heads=5"], "model.heads: got 5; accepted: a div"),
        (["model=transformer", "dataset=lra_text_bytes"], "dataset.root: got NoneType; accepted: a folder"),
        (["trainer.plots=maybe"], "trainer.plots: got 'maybe'; accepted: True or False"),
        (["dataset=custom", "dataset.path=nowhere"], "dataset.path: there is no file or folder 'nowhere'"),
        (["dataset=custom"], "dataset.path: got NoneType; accepted: the path of a file or a folder, as in"),
        ([*TABLES, "dataset.label=kind"], "dataset.label: there is no column 'kind'"),
        ([*TABLES, "dataset.split=3"], "dataset.split: got int; accepted: one of auto"),
        ([*TABLES, "dataset.split=time:day"], "dataset.split: got 'time:day', and the no"),
        ([*TABLES, "dataset.train_fraction=2"], "dataset.train_fraction: got 2; accepted"),
        ([*TABLES, "dataset.classes=[a]"], "dataset.classes: lacks 'law', which is a label"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_refused_as_they_are_typed(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names the option."""
    papers = str(write_tables(tmp_path / "papers"))
    place = str(tmp_path / "place")
    typed = [option.replace("PAPERS", papers).replace("PLACE", place) for option in options]
    with pytest.raises(SystemExit):
        train.run(composed("device=cpu", *typed), tmp_path / "run")
    line = capsys.readouterr().err
    assert line.startswith("train.py: ")
    assert message.replace("PLACE", place) in line
    assert line.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["papers"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["dataset=nowhere"], "dataset: got 'nowhere'; accepted: amazon_computers, amazon_photo, "),
        (["model=gnc"], "model: got 'gnc'; nearest: gin, gcn; accepted: agnn, exphormer, gat, "),
        (["-m", "model=gcn,gnc"], "model: got 'gnc'; nearest: "),
        (["modle=gcn"], "modle: got 'gcn', and there is no such option; nearest: mode, model; accepted: "),
        (["+modle=gcn"], "modle: got 'gcn', and there is no such option; nearest: mode, model; accepted: "),
        (["++modle=gcn"], "modle: got 'gcn', and there is no such option; nearest: mode, model; accepted: "),
        (["-m", "+modle=gcn,gat"], "modle: got 'gcn,gat', and there is no such option; nearest: mode, mod"),
        (["~modle"], "modle: there is no such option; nearest: mode, model; "),
        (["model.hiden=3"], "model.hiden: got '3', and gcn has no such option; nearest: model.hidden_ch"),
        (["model=gat", "model.head=3"], "model.head: got '3', and gat has no such option; nearest: model.h"),
        (["trainer.max_epoch=3"], "trainer.max_epoch: got '3', and there is no such option; nearest: tra"),
        (["trainr.max_epochs=3"], "trainr.max_epochs: got '3', and there is no such option; nearest: tra"),
        (["dataset=cora", "dataset.rot=x"], "dataset.rot: got 'x', and cora has no such option; nearest: "),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else " ".join(value),
)
def test_bad_choices_and_typos(words: list[str], message: str) -> None:
    """Refused with the nearest declared name, before hydra sees them."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        check_words(words, CONFIGS, {"dataset": CATALOG, "model": MODELS})


@pytest.mark.parametrize(("group", "kind"), SECTIONS.items())
def test_a_removed_option_has_its_default(group: str, kind: type[Any]) -> None:
    for field in dataclasses.fields(kind):
        cfg = composed()
        OmegaConf.set_struct(cfg, False)
        cfg[group].pop(field.name, None)
        OmegaConf.set_struct(cfg, True)
        train.check_quickly(cfg)
        train.read_settings(cfg)
        assert getattr(section(cfg, group, kind), field.name) == getattr(kind(), field.name)


# The settings, and that configs/ and train.py agree with them and with the data sets.


def test_resolve_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert resolve_device("auto").type == "cpu"
    with pytest.raises(ValueError, match="device: got 'cuda', but torch finds no CUDA GPU here"):
        resolve_device("cuda")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("gnnsparse.train.device._native", type("Native", (), {"has_cuda": False}))
    assert resolve_device("auto").type == "cpu"
    with pytest.raises(ValueError, match="built without its CUDA kernels"):
        resolve_device("cuda")


def test_comments_list_what_the_library_accepts_of_which_defaults_are() -> None:
    """Where the list is open, as that of formats, the comment refers to --help."""
    choices, listed, cfg = checks.choices(), set(), composed()
    accepted = {option.rpartition(".")[2]: tuple(names) for option, names in choices.items()}
    accepted |= {"norm": tuple(NORMS), "activation": tuple(ACTIVATIONS), "pool": POOLS}
    accepted |= {"conv": tuple(CONVS), "attention": ATTENTIONS, "metric": CLASS_METRICS}
    for path in sorted(CONFIGS.rglob("*.yaml")):
        for comment, line in itertools.pairwise(path.read_text().splitlines()):
            if match := re.fullmatch(r"# (\w+(?: \| \w+)+)(: .*)?", comment):
                option = line.split(":")[0]
                listed.add(option)
                assert tuple(match[1].split(" | ")) == accepted[option], path
    closed = {"precision", "device", "decay", "schedule", "logger", "capture", "mode", "balance", "norm",
               "activation", "pool", "conv", "attention", "metric", "method", "way", "parts", "wire",
              "features", "sparse_features", "resume_data", "class_weights"}  # fmt: skip
    assert listed == closed
    assert {"preprocess.reorder", "preprocess.format", "sampler.name"} <= set(choices)
    for option, names in choices.items():
        assert OmegaConf.select(cfg, option) in names


def test_a_file_for_each_pattern_and_none_for_what_is_not_registered() -> None:
    names = {group: {path.stem for path in (CONFIGS / group).iterdir()} for group in ("dataset", "model")}
    assert names["dataset"] <= set(CATALOG)
    assert names["model"] <= set(MODELS)
    assert {path.stem for path in (CONFIGS / "pattern").iterdir()} == set(PATTERNS)


@pytest.mark.parametrize("path", sorted((CONFIGS / "tuned").glob("*.yaml")), ids=lambda path: path.stem)
def test_tuned_settings(path: Path) -> None:
    """Those of a model on one data set; tests/models/test_models.py composes every model."""
    ((model, name),) = [(m, d) for m in MODELS for d in DATASETS if f"{m}_{d}" == path.stem]
    cfg = composed(f"model={model}", f"dataset={name}")
    train.read_settings(cfg)
    assert (cfg.model.name, cfg.dataset.name) == (model, name)


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns(name: str) -> None:
    cfg = composed("dataset=listops", "model=transformer", f"pattern={name}")
    assert make_pattern(train.read_settings(cfg).groups["pattern"], 96).num_rows == 96
    sizes = {"length", "nodes", "keys"}
    assert set(train.options_of(cfg.pattern)) == set(inspect.signature(PATTERNS[name]).parameters) - sizes


@pytest.mark.parametrize(
    ("model", "name", "layers", "lr", "weight_decay"),
    [("gcn", name, 2, 0.01, 5e-4) for name in ("cora", "citeseer", "pubmed")]
    + [
        ("agnn", "cora", 2, 0.03, 5e-4),
        ("agnn", "pubmed", 2, 0.01, 5e-4),
        ("agnn", "citeseer", 4, 0.03, 1e-3),
    ],
)
def test_settings_of_planetoid(model: str, name: str, layers: int, lr: float, weight_decay: float) -> None:
    """Those of Kipf and Welling (2017); the AGNN is not trained after these epochs by a rate of 0.01."""
    cfg = composed(f"model={model}", f"dataset={name}")
    settings, decay = train.read_settings(cfg), "first" if model == "gcn" else "all"
    assert settings.optimizer == OptimizerConfig(lr, weight_decay, decay, "none")
    assert (settings.trainer.max_epochs, settings.trainer.val_every) == (200, 1)
    assert (cfg.model.hidden_channels, cfg.model.num_layers, cfg.model.dropout) == (16, layers, 0.5)
    assert model == "agnn" or (cfg.model.norm, cfg.model.residual) == ("none", False)


@pytest.mark.parametrize("name", [*DATASETS, *SEQUENCE_DATASETS])
def test_settings_of_data_sets(name: str) -> None:
    own = ["dataset.task=node"] if name == "custom" else []  # else its files say which, and there are none
    model = ["model=transformer"] if name in SEQUENCE_DATASETS else []
    cfg = composed(f"dataset={name}", *own, *model)
    assert cfg.dataset.name == name
    train.check_quickly(cfg)
    train.read_settings(cfg)
    common = {"name", "root", "split", "seed", "scale"}
    written = (CONFIGS / "dataset" / f"{name}.yaml").exists()
    own = name in ("custom", "generated_weather", *SEQUENCE_DATASETS) or not written
    assert set(cfg.dataset) == ({"name", *CATALOG[name].options} if own else common)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("trainer", TrainerConfig), ("optimizer", OptimizerConfig), ("preprocess", PreprocessConfig)],
)
def test_the_files_have_every_option_and_no_other(name: str, kind: type[Any]) -> None:
    options = [field.name for field in dataclasses.fields(kind)]
    assert set(composed()[name]) == set(options)
    with pytest.raises(ValueError, match=rf"{name}\.epochs: no such option; accepted: {', '.join(options)}"):
        section(composed(f"+{name}.epochs=3"), name, kind)


def test_the_command_line_wins_over_the_data_set_and_tuned_settings() -> None:
    cfg = composed("dataset=cora", "model.hidden_channels=5", "trainer.max_epochs=7")
    assert (cfg.model.hidden_channels, cfg.trainer.max_epochs) == (5, 7)
    assert OmegaConf.is_struct(cfg)
    assert composed("model=agnn", "dataset=cora", "optimizer.decay=first").optimizer.decay == "first"
