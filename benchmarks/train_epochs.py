"""Times epochs by train.py on a GPU, as users run it, validation included.

    python -m benchmarks.train_epochs [--root-of cora=DIR] [--cases cora-fp16 ...] [--out FILE.json]

A case is one run of train.py, in a process of its own and a folder that is removed afterwards. What is kept
is its result.json: the median time of an epoch with the validations between, the scores, whether steps were
captured in a CUDA graph, and peak memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gnnsparse.runtime.environment import write_json

TRAIN = Path(__file__).resolve().parents[1] / "train.py"
_CORA = ("dataset=cora", "model=gcn", "trainer.max_epochs=400", "trainer.val_every=5")
_PLAIN = ("model.dropout=0.0", "model.norm=none", "precision=fp16")
_REDDIT = ("dataset=reddit_like", "model=gcn", "model.num_layers=5", *_PLAIN, "trainer.max_epochs=60")
CASES: dict[str, tuple[str, ...]] = {
    "cora-fp16": (*_CORA, "precision=fp16"),
    "cora-fp32": (*_CORA, "precision=fp32"),
    "arxiv_like-agnn": (
        "dataset=arxiv_like", "model=agnn", "model.hidden_channels=32", "model.num_layers=4", *_PLAIN,
        "trainer.max_epochs=150", "trainer.val_every=5",
    ),
    "reddit_like": (*_REDDIT, "trainer.val_every=5"),
    "reddit_like-val30": (*_REDDIT, "trainer.val_every=30"),
}  # fmt: skip


def result_of(options: tuple[str, ...], roots: dict[str, str]) -> dict[str, Any]:
    """Run train.py, and return its result.json."""
    name = next(option.partition("=")[2] for option in options if option.startswith("dataset="))
    root = [f"dataset.root={roots[name]}"] if name in roots else []
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, str(TRAIN), "device=cuda", "trainer.progress=false", *options, *root]
        subprocess.run([*command, f"hydra.run.dir={run}"], check=True, stdout=subprocess.DEVNULL)
        return json.loads((run / "result.json").read_text())


def as_file(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the content of the JSON file: what all runs have in common, and a row for each."""
    common = ("device", "device_name", "threads", "versions", "commit", "date")
    first = next(iter(results.values()))
    rows = []
    for name, result in results.items():
        own = {key: value for key, value in result.items() if key not in common}
        rows.append({"case": name, "options": list(CASES[name]), **own})
    return {**{key: first[key] for key in common}, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--root-of", action="append", default=[], metavar="NAME=DIR")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--out", type=Path, default=None, help="JSON file to write")
    args = parser.parse_args()
    roots = {name: folder for name, _, folder in (pair.partition("=") for pair in args.root_of)}
    results: dict[str, dict[str, Any]] = {}
    for name in args.cases:
        results[name] = result_of(CASES[name], roots)
        print(f"{name}: {results[name]['epoch_milliseconds']:.3f} ms an epoch", flush=True)
        if args.out is not None:
            write_json(args.out, as_file(results))


if __name__ == "__main__":
    main()
