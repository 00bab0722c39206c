"""Options of the `gnnsparse` command that are not accepted: one line that names the option, and status 2."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

Refused = Callable[..., str]

#: Words of the command, the option, and what the line says of it.
REFUSED = [
    ("bench kernels --width 0", "--width", "from 1"),
    ("bench kernels --repeats 0", "--repeats", "from 1"),
    ("bench kernels --op spmv", "--op", "sddmm"),
    ("bench kernels --precision fp7", "--precision", "bf16"),
    ("bench kernels --values mean", "--values", "gcn"),
    ("bench kernels --kernels magic", "--kernels", "csr"),
    ("bench kernels --peers magic", "--peers", "pyg"),
    ("bench kernels --peers all pyg", "--peers", "alone"),
    ("bench kernels --device cpu --peers cusparse", "--peers", "cuda"),
    ("bench kernels --device cpu --op spmm --peers sampled_addmm", "--peers", "computes sddmm"),
    ("bench kernels --device tpu", "--device", "cuda"),
    ("bench kernels --cache hot", "--cache", "cold"),
    ("bench kernels --reorder magic", "--reorder", "metis"),
    ("bench kernels --matrix nowhere.mtx", "--matrix", "reddit_like"),
    (f"bench kernels --matrix {__file__}", "--matrix", ".smtx"),
    ("bench kernels --matrix reddit_like:scale=2", "--matrix", "at most 1"),
    ("bench kernels --matrix reddit_like:scale=1e-9", "--matrix", "reddit_like"),
    ("bench kernels --matrix reddit_like:scale=much", "--matrix", "number"),
    ("bench kernels --matrix reddit_like:mixed", "--matrix", "shuffled"),
    ("bench kernels --matrix .", "--matrix", "has no file .mtx"),  # the current folder is empty
    ("bench kernels --plot a.txt", "--plot", ".png"),
    ("bench kernels --out .", "--out", "folder"),
    ("bench kernels --device cpu --resume", "--resume", "--out"),
    ("bench kernels --device cpu --timing graph", "--timing", "needs an NVIDIA GPU"),
    ("bench kernels --device cpu --timing fast", "--timing", "graph"),
    ("bench kernels --device cpu --ablate", "--ablate", "needs --format"),
    ("bench kernels --device cpu --format cvse --ablate", "--ablate", "needs an NVIDIA GPU"),
    ("bench kernels --device cpu --format csr", "--format", "invalid choice: 'csr'"),
    ("bench kernels --unknown", "--unknown", ""),
    ("bench latency --model gcn,magic", "--model", "transformer"),
    ("bench latency --dataset nowhere", "--dataset", "cora_like"),
    ("bench latency --backend magic", "--backend", "pyg-csr"),
    ("bench latency --device cpu --mode captured", "--mode", "NVIDIA GPU"),
    ("bench latency --mode lazy", "--mode", "captured"),
    ("bench latency --layers 0", "--layers", "from 1"),
    ("bench latency --hidden x", "--hidden", "from 1"),
    ("bench latency --model gat --hidden 12 --heads 8", "--hidden", "multiple of --heads 8"),
    ("bench latency --model transformer --seq-len 100", "--seq-len", "multiple of --vector 8"),
    ("bench latency --batch 1,0", "--batch", "from 1"),
    ("bench latency --sparsity 1", "--sparsity", "below 1"),
    ("bench latency --sparsity nan", "--sparsity", "below 1"),
    ("bench latency --scale 2", "--scale", "at most 1"),
    ("bench latency --dataset cora --scale 0.5", "--scale", "generated graphs"),
    ("bench latency --dataset cora --features 8", "--features", "cora_like"),
    ("bench latency --features 0", "--features", "from 1"),
    ("bench latency --calls 0", "--calls", "from 1"),
    ("bench latency --seconds 0", "--seconds", "above 0"),
    ("bench latency --timeout -1", "--timeout", "above 0"),
    ("bench latency --root nowhere", "--root", "no folder"),
    ("bench accuracy --op gemm", "--op", "invalid choice: 'gemm'"),
    ("bench accuracy --seed -1", "--seed", "got '-1'"),
    ("bench accuracy --seed x", "--seed", "got 'x'; accepted: an integer from 0 to 2^63 - 1"),
    ("bench accuracy --part overflow --op spmm", "--op", "goes with --part operations"),
    ("bench accuracy --part scaling --precision fp32", "--precision", "scaling is of fp16 and bf16"),
    ("report absent.json", "RUN", "there is no file or folder absent.json"),
    ("report", "files", "there is no folder benchmarks/results"),
    ("doctor --seconds=-1", "--seconds", "accepted: seconds from 0 to 3600"),
    ("doctor --seconds=nan", "--seconds", "accepted: seconds from 0 to 3600"),
    ("doctor --seconds=1e9", "--seconds", "accepted: seconds from 0 to 3600"),
    ("profile --call step", "--call", "accepted: MODULE:FUNCTION or FILE.py:FUNCTION"),
    ("profile --model nope", "--model", "invalid choice: 'nope'"),
    ("profile --out trace.txt", "--out", "accepted: a name in .json, .json.gz"),
    ("profile --steps 0", "--steps", "accepted: an integer from 1 on"),
    ("profile --matrix no_graph", "--matrix", "accepted: reddit_like"),
    ("plan-cluster --graph g --nodes 5 --edges 9", "DATASET", "accepted: a data set, or --nodes and"),
    ("plan-cluster digits --graph g", "DATASET", "or --nodes and --edges, or --graph in its place"),
    ("plan-cluster digits --nodes 5 --edges 9", "DATASET", "accepted: a data set, or --nodes and --edges"),
    ("plan-cluster --nodes 5", "DATASET", "accepted: a data set, or --nodes and --edges"),
    ("plan-cluster --graph nowhere", "folder", "nowhere is no folder of a graph"),
    ("plan-cluster digits --gpus 2000", "--gpus", "at most 1024"),
    ("plan-cluster digits --gpus 0", "--gpus", "accepted: a positive integer"),
    ("plan-cluster digits --link-gbs nan", "--link-gbs", "accepted: a number above 0"),
    ("plan-cluster digits --gpu Z9", "--gpu", "got 'Z9'; accepted:"),
    ("plan-cluster digits --precision int8", "--precision", "invalid choice: 'int8'"),
    ("plan-cluster nowhere", "nowhere", ""),
]


@pytest.mark.parametrize(("words", "name", "says"), REFUSED)
def test_what_is_not_accepted_is_one_line(
    words: str, name: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.chdir(tmp_path)
    said = refused(words)
    assert name in said
    assert says in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(refused: Refused) -> None:
    assert "--device" in refused("bench kernels --device cuda")


def test_plot_without_matplotlib(monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *a: None if n == "matplotlib" else find(n, *a))
    assert "gnnsparse[bench]" in refused("bench kernels --plot a.png")
