"""Figures of accuracy and of training time: runs of train.py in a checkout of the repository."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from papers.figures import Missing, Outcome
from papers.session import Session

__all__ = ["ROOT", "train_once", "train_study"]

#: The root of the checkout, where train.py is.
ROOT = Path(__file__).resolve().parents[1]


def _train(options: list[str]) -> str:
    """Run train.py; returns "" or the last line that a failed run printed."""
    done = subprocess.run([sys.executable, "train.py", *options], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 0:
        return ""
    lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    return lines[-1] if lines else f"exit status {done.returncode}"


def train_study(session: Session, experiment: str) -> Outcome:
    """Run a study of configs/experiment, and lists its scores beside the paper's.

    The study is kept in outputs/: the same command goes on with what is left of it.
    """
    outcome = Outcome()
    options = [f"experiment={experiment}", f"device={session.device}"]
    if session.data is not None:
        options.append(f"data={session.data.resolve()}")
    if session.seeds is not None:
        options.append(f"seeds={session.seeds}")
    folder = ROOT / "outputs" / f"reproduce-{experiment}-{session.device}-{session.seeds or 'all'}"
    problem = _train([*options, f"hydra.run.dir={folder}"])
    file = folder / "study.json"
    if problem or not file.is_file():
        outcome.missing.append(Missing(f"the study {experiment}", problem or f"it left no {file.name}"))
        return outcome
    add_scores(outcome, json.loads(file.read_text()))
    return outcome


def add_scores(outcome: Outcome, study: dict[str, Any]) -> None:
    """Add the scores of a study.json, and those that the paper alone has."""
    paper = study["paper"]
    scores = {name.lower(): found for name, found in paper["scores"].items()}
    for row in study["rows"]:
        published = scores.get(row["dataset"], {}).get(row["variant"])
        seeds = f"mean of {len(row['seeds'])} seeds, deviation {row['standard_deviation']:.2f}"
        what = f"{row['variant']}: test {row['metric']}"
        outcome.add(what, row["dataset"], "paper's", row["mean"], published, "%", seeds)
    measured = {row["dataset"] for row in study["rows"]}
    for name in paper["scores"]:
        if name.lower() not in measured:
            outcome.missing.append(Missing(name, "no data set of this project"))
    outcome.notes.extend(paper["notes"])


def train_once(session: Session, options: list[str]) -> tuple[dict[str, Any] | None, Missing | None]:
    """Run train.py once; returns the content of result.json, or what is missing."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        problem = _train([*options, f"device={session.device}", f"hydra.run.dir={run}"])
        if problem:
            return None, Missing("a run of train.py", problem)
        return json.loads((run / "result.json").read_text()), None
