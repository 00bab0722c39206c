"""Run folders: one run each, also when runs start at the same time, and errors in one sentence."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import resource
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from gnnsparse.train import RunFolder, RunFolderError, RunFolderWarning
from gnnsparse.train.folders import MARK, make_new
from tests.tasks import train_toy
from tests.together import run_together

FORK = multiprocessing.get_context("fork")
#: Runs that start together.
CROWD = 8
#: The folders of this process, which are locked as long as they are here.
KEPT: list[RunFolder] = []


def together(work: Callable[..., str], *given: Any) -> list[str]:
    """What `work` returns in threads that begin at the same time: each opens, and locks, files of its own."""
    found: list[str] = []

    def run(_: int, gate: threading.Barrier) -> None:
        gate.wait()
        found.append(work(*given))

    run_together(CROWD, run)
    return found


def claim(path: Path, resume: Path | None) -> str:
    try:
        KEPT.append(RunFolder.claim(path, resume=resume))
    except RunFolderError as error:
        return str(error)
    return "claimed"


def new(path: Path) -> str:
    made = make_new(path)
    KEPT.append(RunFolder.claim(made))
    return str(made)


@pytest.mark.parametrize("before", ["nothing", "a folder", "a run that is resumed"])
def test_of_runs_that_start_together_one_has_the_folder(tmp_path: Path, before: str) -> None:
    path, resume, refused = tmp_path / "a" / "run", None, "is the folder of another run"
    if before == "a folder":
        path.mkdir(parents=True)
    elif before != "nothing":
        RunFolder.claim(path).finish()
        resume, refused = path / "checkpoints" / "last.ckpt", "a run is writing to"
    found = together(claim, path, resume)
    assert found.count("claimed") == 1
    assert all(refused in text for text in found if text != "claimed")
    assert os.listdir(path) == [MARK]


def test_new_folders_of_runs_that_start_together_differ(tmp_path: Path) -> None:
    found = together(new, tmp_path / "a" / "10-20-30-gcn")
    names = ["10-20-30-gcn", *(f"10-20-30-gcn-{number}" for number in range(2, CROWD + 1))]
    assert sorted(Path(name).name for name in found) == sorted(names)


def test_a_second_run_is_refused_unless_it_resumes_the_first(tmp_path: Path) -> None:
    first, last = RunFolder.claim(tmp_path / "a"), tmp_path / "a" / "checkpoints" / "last.ckpt"

    def refuse(message: str, resume: Path | None) -> None:
        with pytest.raises(RunFolderError, match=f"^hydra.run.dir: .*{message}.*accepted: another folder"):
            RunFolder.claim(tmp_path / "a", option="hydra.run.dir", resume=resume)

    refuse("", None)
    refuse("", last)
    first.finish()
    for resume in (None, tmp_path / "b" / "checkpoints" / "last.ckpt"):
        refuse(r" is the folder of another run, started 20.* by process \d+; ", resume)
    second = RunFolder.claim(tmp_path / "a", resume=last)
    second.release()  # refused for another reason: the folder stays the first one's
    assert (tmp_path / "a" / MARK).exists()


def test_a_run_that_was_killed_can_be_resumed(tmp_path: Path) -> None:
    ready = FORK.Event()

    def run() -> None:
        KEPT.append(RunFolder.claim(tmp_path))
        ready.set()
        time.sleep(60)

    process = FORK.Process(target=run)
    process.start()
    assert ready.wait(30)
    last = tmp_path / "checkpoints" / "last.ckpt"
    with pytest.raises(RunFolderError, match="a run is writing to"):
        RunFolder.claim(tmp_path, resume=last)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    RunFolder.claim(tmp_path, resume=last).finish()


@pytest.mark.parametrize("name", ["result.json", "checkpoints", "logs", "multirun.yaml", "notes.txt"])
def test_a_folder_with_results_is_not_new_and_other_files_are_left_alone(tmp_path: Path, name: str) -> None:
    """Also without a mark, and with a link that leads nowhere."""
    (tmp_path / name).symlink_to(tmp_path / "nowhere")
    if name == "notes.txt":
        RunFolder.claim(tmp_path).release()
    else:
        with pytest.raises(RunFolderError, match="is the folder of another run; accepted"):
            RunFolder.claim(tmp_path)
    assert os.listdir(tmp_path) == [name]


def test_files_of_earlier_runs_are_kept(tmp_path: Path) -> None:
    folder = RunFolder.claim(tmp_path)
    for number in range(3):
        assert folder.first_free("result.json") == "result.json"
        (tmp_path / "result.json").write_text(str(number))
        folder.keep_earlier("result.json")
    assert [(tmp_path / f"result-{number}.json").read_text() for number in (1, 2, 3)] == ["0", "1", "2"]
    folder.keep_earlier("result.json")  # there is none
    (tmp_path / ".hydra").mkdir()
    assert folder.first_free(".hydra") == ".hydra-1"


def test_folders_that_can_not_be_written_to(tmp_path: Path) -> None:
    file, closed = tmp_path / "file", tmp_path / "closed"
    file.write_text("")
    closed.mkdir(0o555)
    for claim, path in ((RunFolder.claim, file), (RunFolder.claim, file / "run"), (make_new, file / "run")):
        with pytest.raises(RunFolderError, match=r"^folder: .* can't be written to \("):
            claim(path)
    with contextlib.ExitStack() as stack:
        if os.geteuid() == 0:  # permissions do not stop root, as which tests run in containers
            os.seteuid(65534)
            stack.callback(os.seteuid, 0)
        inner = closed / "run"
        for claim, path in ((RunFolder.claim, closed), (RunFolder.claim, inner), (make_new, inner)):
            with pytest.raises(RunFolderError, match=r"written to \(Permission denied\); accepted: "):
                claim(path)
    assert file.read_text() == ""


@contextlib.contextmanager
def files_end_at(nbytes: int) -> Iterator[None]:
    """Writes beyond a size fail, as on a full disk. For child processes: pytest's own files have no limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_shows_before_training(tmp_path: Path) -> None:
    with files_end_at(10), pytest.raises(RunFolderError, match=r"can't be written to \(File too large\)"):
        RunFolder.claim(tmp_path)
    assert os.listdir(tmp_path) == []
    folder = RunFolder.claim(tmp_path)
    with pytest.raises(RunFolderError, match=r"MB free, and the weights take 10{12}\.0 MB; accepted: "):
        folder.check_space(10**18, "the weights")


def test_a_disk_that_fills_up_costs_the_files_and_not_the_training(tmp_path: Path) -> None:
    def run(folder: Path | None) -> Any:
        return train_toy(folder, epochs=8, log_every=2, checkpoint_seconds=0)[0]

    want = run(None)
    with warnings.catch_warnings(record=True) as caught, files_end_at(300):
        warnings.simplefilter("always")
        got = run(tmp_path)
    texts = [str(one.message) for one in caught if one.category is RunFolderWarning]
    assert any(
        text.startswith(f"the checkpoints in {tmp_path / 'checkpoints'} can't be written") for text in texts
    )
    assert any(text.startswith(f"the log in {tmp_path / 'logs'}") for text in texts)
    assert (got.metrics, got.best_epoch) == (want.metrics, want.best_epoch)
    assert os.listdir(tmp_path / "checkpoints") == []


def test_no_file_system_lock_is_no_reason_to_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = OSError(errno.ENOLCK, "No locks available")
    monkeypatch.setattr("fcntl.flock", mock.Mock(side_effect=refused))
    RunFolder.claim(tmp_path).finish()
    with pytest.raises(RunFolderError, match="is the folder of another run"):
        RunFolder.claim(tmp_path)
