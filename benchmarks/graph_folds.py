"""Ten-fold cross-validation of a model of graphs by the protocol of Xu et al. (2019), a process a fold.

    python -m benchmarks.graph_folds proteins --root DIR --out OUT --jobs 10 -- device=cpu

It trains on nine folds, ten times, and reports the epoch with the best mean accuracy over the folds
(docs/howto/tasks.md). What follows `--` are options of train.py. OUT gets a folder for each fold, and
DATASET.json with the curves.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gnnsparse.data.tu import FOLDS
from gnnsparse.training.statistics import cross_validated

TRAIN = Path(__file__).resolve().parents[1] / "train.py"


def run_fold(options: list[str], folder: Path) -> list[float]:
    """Runs train.py, and returns the validation accuracy of each epoch."""
    folder.mkdir(parents=True)
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    command = [sys.executable, str(TRAIN), *options, "trainer.plots=false", "trainer.val_every=1"]
    command += ["trainer.logger=csv", "trainer.checkpoint=false", f"hydra.run.dir={folder / 'run'}"]
    with open(folder / "output.txt", "w") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    if done.returncode:
        raise RuntimeError(f"{folder / 'output.txt'}: train.py ended with status {done.returncode}")
    (log,) = folder.rglob("metrics.csv")
    with open(log) as rows:
        return [float(row["val/accuracy"]) for row in csv.DictReader(rows) if row["val/accuracy"]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", choices=("proteins", "enzymes", "dd"))
    parser.add_argument("--root", type=Path, required=True, help="dataset.root of train.py")
    parser.add_argument("--out", type=Path, required=True, help="a new folder for runs and curves")
    parser.add_argument("--model", default="gin")
    parser.add_argument("--jobs", type=int, default=1, help="folds that run at a time")
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    given = parser.parse_args(sys.argv[1:at])
    common = [f"model={given.model}", f"dataset={given.dataset}", f"dataset.root={given.root.absolute()}"]
    common += ["dataset.validation=fold", *sys.argv[at + 1 :]]
    with ThreadPoolExecutor(given.jobs) as pool:
        curves = list(
            pool.map(
                lambda fold: run_fold(
                    [*common, f"dataset.fold={fold}"], given.out / f"{given.dataset}-{fold}"
                ),
                range(FOLDS),
            )
        )
    epoch, scores = cross_validated(curves)
    (given.out / f"{given.dataset}.json").write_text(json.dumps(curves))
    deviation = 100 * (scores.standard_deviation or 0)
    print(
        f"{given.model} on {given.dataset}: {100 * scores.mean:.2f} +- {deviation:.2f} % over {scores.count} "
        f"folds after epoch {epoch} of {len(curves[0])}"
    )


if __name__ == "__main__":
    main()
