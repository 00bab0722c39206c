"""The start of the `gnnsparse` command, which does without torch."""

from __future__ import annotations

import importlib
import resource
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

import gnnsparse
import gnnsparse_cli
from gnnsparse.bench.candidates import KERNEL_DEVICES, KERNELS
from gnnsparse.cli import main as cli

ROOT = Path(__file__).resolve().parents[2]
#: Processor seconds in which the command says what it is, and modules that it does without.
SOON = 0.5
HEAVY = ("torch", "numpy", "gnnsparse", "rich", "hydra", "lightning", "scipy")


def started(*words: str, status: int = 0) -> tuple[str, float]:
    """What it prints in a fresh interpreter with the heavy modules imported; and its processor seconds."""
    code = (
        "import sys\nfrom gnnsparse_cli import main\n"
        f"try: main({list(words)!r})\nexcept SystemExit as end: assert (end.code or 0) == {status}\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    return done.stdout, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


@pytest.mark.parametrize(
    "words", ["--help", "-h", "--version", "cache --help", "bench --help", "graph --help"]
)
def test_it_says_what_it_is_without_torch(words: str) -> None:
    printed, seconds = started(*words.split())
    *lines, imported = printed.splitlines()
    assert imported == "[]"
    assert seconds < SOON
    if words == "--version":
        assert lines == [f"gnnsparse {gnnsparse.__version__}"]
    elif words in ("--help", "-h"):
        assert all(f"    {name}" in printed for name in gnnsparse_cli.COMMANDS)
    else:
        assert printed.startswith(f"usage: gnnsparse {words.partition(' ')[0]} ")


def test_the_installed_command_runs_a_subcommand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (entry,) = metadata.entry_points(group="console_scripts", name="gnnsparse")
    assert entry.load()(["cache", "ls", "--dir", str(tmp_path)]) == 0
    assert f"{tmp_path} is empty" in capsys.readouterr().out


@pytest.mark.parametrize("main", [gnnsparse_cli.main, cli.main])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "gnnsparse: error: the following arguments are required: command\n"),
        ("cahce", "gnnsparse: error: argument command: invalid choice: 'cahce' (choose from "),
        ("--verson", "gnnsparse: error: "),
        ("bench kernel", "gnnsparse bench: error: argument subject: invalid choice: 'kernel' (choose"),
        ("cache list", "gnnsparse cache: error: argument action: invalid choice: 'list' (choose from "),
    ],
)
def test_errors_are_one_line(main: object, words: str, said: str, refused: Callable[..., str]) -> None:
    assert refused(words, main).startswith(said)


SUBJECTS = [f"{name} {subject}" for name, subjects in gnnsparse_cli.SUBJECTS.items() for subject in subjects]


@pytest.mark.parametrize("name", [*gnnsparse_cli.COMMANDS, *SUBJECTS])
def test_every_command_has_options_and_a_line_of_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([*name.split(), "--help"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: gnnsparse {name} ")


def test_the_table_of_commands_is_whole() -> None:
    assert set(cli._COMMANDS) == {*(set(gnnsparse_cli.COMMANDS) - set(gnnsparse_cli.SUBJECTS)), *SUBJECTS}
    for module in map(importlib.import_module, cli._COMMANDS.values()):
        assert callable(module.run)


def test_the_cache_of_a_folder_that_is_not_there(tmp_path: Path, refused: Callable[..., str]) -> None:
    """It would look like an empty one; nothing is made, and torch is not needed to say so."""
    typo = str(tmp_path / "typo")
    problem = f"argument --dir: there is no folder '{typo}'; accepted: the folder of a cache"
    for action in ("ls", "verify", "clear"):
        assert refused(f"cache {action} --dir {typo}") == f"gnnsparse cache: error: {problem}\n"
    assert list(tmp_path.iterdir()) == []
    printed, _ = started("cache", "ls", "--dir", typo, status=2)
    assert printed == "[]\n"


def test_a_cpu_is_offered_its_own_kernels(
    monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    """On a machine without a GPU the kernels and peers of GPUs are not in the help, and are refused."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit):
        cli.main(["bench", "kernels", "--help"])
    printed = capsys.readouterr().out
    assert set(KERNEL_DEVICES) == set(KERNELS)
    words = set(printed.replace(",", " ").replace(";", " ").split())
    assert {name for name in KERNELS if name in words} == {n for n, d in KERNEL_DEVICES.items() if "cpu" in d}
    assert not {"cusparse", "ge-spmm"} & words
    assert "'window'" in refused("bench kernels --kernels window")
