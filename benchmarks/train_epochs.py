"""Times epochs by train.py on a GPU, as users run it, validation included.

    python -m benchmarks.train_epochs [--root-of cora=DIR] [--cases cora-fp16 ...] [--out FILE.json]

A case is one run of train.py, in a process of its own and a folder that is removed afterwards. What is kept
is its result.json: the median time of an epoch with the validations between, the scores, whether steps were
captured in a CUDA graph, and peak memory.
"""

from __future__ import annotations

from typing import Any

from benchmarks.script import roots_of, run_train, script_parser
from gnnsparse.bench.render import ENVIRONMENT
from gnnsparse.runtime.environment import write_json

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


def result_of(options: tuple[str, ...], roots: dict[str, Any]) -> dict[str, Any]:
    """Run train.py, and return its result.json."""
    name = next(option.partition("=")[2] for option in options if option.startswith("dataset="))
    root = [f"dataset.root={roots[name]}"] if name in roots else []
    return run_train("device=cuda", *options, *root)


def as_file(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the content of the JSON file: what all runs have in common, and a row for each."""
    first = next(iter(results.values()))
    rows = []
    for name, result in results.items():
        own = {key: value for key, value in result.items() if key not in ENVIRONMENT}
        rows.append({"case": name, "options": list(CASES[name]), **own})
    return {**{key: first[key] for key in ENVIRONMENT}, "rows": rows}


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--root-of", action="append", default=[], metavar="NAME=DIR")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    args = parser.parse_args()
    roots = roots_of(args.root_of)
    results: dict[str, dict[str, Any]] = {}
    for name in args.cases:
        results[name] = result_of(CASES[name], roots)
        print(f"{name}: {results[name]['epoch_milliseconds']:.3f} ms an epoch", flush=True)
        if args.out is not None:
            write_json(args.out, as_file(results))


if __name__ == "__main__":
    main()
