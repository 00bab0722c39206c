"""The imports of train.py: without garbage collections, and torchmetrics without its metrics."""

from __future__ import annotations

import argparse
import gc
import importlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

import gnnsparse_cli
import train
from launch.checks import choices
from startup import import_task, importing

ROOT = Path(__file__).resolve().parents[2]


def test_nothing_is_collected_while_packages_are_imported() -> None:
    """What was imported last is left out of later collections too."""
    assert gc.isenabled()
    with importing():
        assert not gc.isenabled()
        with importing():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    before = gc.get_freeze_count()
    with pytest.raises(ImportError), importing():
        raise ImportError
    assert (gc.isenabled(), gc.get_freeze_count()) == (True, before)
    importlib.import_module("gnnsparse.train.fitting")  # a task that was imported before
    assert import_task({"node": 3}, "node") == 3
    assert gc.get_freeze_count() == before
    try:
        with importing(last=True):
            pass
        assert gc.get_freeze_count() > before
    finally:
        gc.unfreeze()


def python(code: str) -> str:
    """What a fresh interpreter prints."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_lightning_without_all_metrics() -> None:
    """The metrics are there when somebody asks for them, with the classes that Lightning has."""
    code = """
import sys
from startup import light_torchmetrics
light_torchmetrics()
import lightning.pytorch as pl
heavy = ("scipy.signal", "transformers", "torchmetrics.classification")
print([name for name in heavy if name in sys.modules])
import torchmetrics
print(torchmetrics.__version__ == __import__("importlib.metadata").metadata.version("torchmetrics"))
print(torchmetrics.Metric is sys.modules["torchmetrics.metric"].Metric)
accuracy = torchmetrics.Accuracy(task="binary")
print(isinstance(accuracy, pl.core.module.Metric), torchmetrics.functional.__name__)
try:
    torchmetrics.no_such_metric
except AttributeError:
    print("AttributeError")
"""
    lines = ["[]", "True", "True", "True torchmetrics.functional", "AttributeError"]
    assert python(code).splitlines() == lines


def test_another_torchmetrics_is_imported_as_it_is(tmp_path: Path) -> None:
    package = tmp_path / "torchmetrics"
    package.mkdir()
    (package / "__init__.py").write_text("Metric = 3")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from startup import light_torchmetrics
light_torchmetrics()
print([name for name in sys.modules if name.startswith("torchmetrics")])
import torchmetrics
print(torchmetrics.Metric)
light_torchmetrics()
print(torchmetrics.Metric)
"""
    assert python(code).splitlines() == ["[]", "3", "3"]


def test_without_torchmetrics_and_where_it_is_there() -> None:
    code = """
import sys
from startup import light_torchmetrics
for module in (None, sys):
    sys.modules["torchmetrics"] = module
    light_torchmetrics()
    print(sys.modules["torchmetrics"] is module)
"""
    assert python(code) == "True\nTrue\n"


#: Ends like the command it runs, after a line that says whether torch was imported.
WITHOUT_TORCH = """
import atexit, runpy, sys
atexit.register(lambda: print("torch" in sys.modules))
sys.argv = sys.argv[1:]
sys.path.insert(0, "")
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ("train.py --help", 0, "trainer.capture: auto, on, off"),
        ("train.py model=gnc", 2, "train.py: model: got 'gnc'; nearest: gin, gcn; accepted: agnn"),
        ("train.py dataset=coraa", 2, "train.py: dataset: got 'coraa'; nearest: cora; accepted: amazon"),
        ("train.py trainer.max_epoch=3", 2, "there is no such option; nearest: trainer.max_epochs"),
        ("gnnsparse_cli/__init__.py predict --help", 0, "a checkpoint in it"),
        ("gnnsparse_cli/__init__.py predict run --out x.csv --devise cpu", 2, "arguments: --devise"),
        ("gnnsparse_cli/__init__.py predict run", 2, "required: --out"),
    ],
)
def test_help_and_mistakes_do_not_wait_for_torch(words: str, status: int, said: str) -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (status, "False"), done.stderr
    assert said in " ".join((done.stdout + done.stderr).split())


def test_the_help_has_the_values_that_options_accept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the library is imported, too, for what is in the tree."""
    content = OmegaConf.load(ROOT / "configs" / "train.yaml")
    for imported in (True, False):
        if not imported:
            monkeypatch.delitem(sys.modules, "gnnsparse.data")
        lines = content.hydra.help.footer.splitlines()
        for option, accepted in choices().items():
            assert f"{option}: {', '.join(accepted)}" in lines
    assert not train.registers_more()


@pytest.mark.parametrize("package", ["lightning", "hydra", "gnnsparse_cli"])
def test_without_the_extra_the_command_says_what_to_install(package: str, tmp_path: Path) -> None:
    code = f"""
import runpy, sys
sys.modules[{package!r}] = None
sys.path.insert(0, "")
sys.argv = ["train.py", "hydra.run.dir={tmp_path}/run"]
runpy.run_path("train.py", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    text = f"train.py: needs {package}, which is not installed here: "
    text += "pip install 'gnnsparse[train]', or make train"
    assert (done.returncode, done.stderr.strip()) == (2, text)


def test_words_are_completed_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """By argcomplete, which ends the process: here it is one that takes the parser."""
    found: list[argparse.ArgumentParser] = []
    monkeypatch.setitem(sys.modules, "argcomplete", SimpleNamespace(autocomplete=found.append))
    monkeypatch.setenv("_ARGCOMPLETE", "1")
    with pytest.raises(SystemExit):
        gnnsparse_cli.main(["--version"])
    (parser,) = found
    assert parser.parse_args(["predict", "run", "--out", "y.csv"]).out == Path("y.csv")


def test_the_library_is_imported_without_what_only_several_processes_or_samples_need() -> None:
    found = python("import gnnsparse, sys; print(*sys.modules)").split()
    assert "gnnsparse.train.settings" in found
    parts = {"api", "cost", "exchange", "operand", "partition", "shard"}
    assert not {f"gnnsparse.distributed.{part}" for part in parts} & set(found)
    assert not {f"gnnsparse.sampling.{part}" for part in ("blocks", "draws", "sampler")} & set(found)


@pytest.mark.parametrize("name", ["gnnsparse.distributed", "gnnsparse.sampling", "gnnsparse.train"])
def test_a_package_has_all_of_its_names_when_they_are_asked_for(name: str) -> None:
    package = importlib.import_module(name)
    for public in package.__all__:
        assert getattr(package, public) is vars(package)[public]
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nothing'"):
        _ = package.nothing
