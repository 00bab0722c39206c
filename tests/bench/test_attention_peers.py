"""Attention beside other libraries: what the script makes of right, wrong, crashing and missing ones."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import attention_peers, graph_attention
from benchmarks.attention_peers import PATTERNS, PEERS, Peer, Row, Sizes, Work
from gnnsparse.data import graph_like

SMALL = ["--device", "cpu", "--batch", "2", "--heads", "3", "--length", "256", "--repeats", "1"]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    def arxiv(name: str, device: torch.device) -> Any:
        return graph_like(name, 0.01, device=device)

    monkeypatch.setattr(attention_peers, "graph_like", arxiv)
    # Targets without edges, and edges that are drawn twice.
    for name, size in {
        "processor": (40, 40, 300, 6),
        "encoder": (30, 60, 90, 9),
        "decoder": (60, 30, 90, 5),
    }.items():
        monkeypatch.setitem(graph_attention.MESHES, name, size)


def plain(work: Work) -> Any:
    """Attention in the work's own precision, by the function that is exact in float64."""

    def call(**leaves: torch.Tensor) -> torch.Tensor:
        if work.name not in PATTERNS:
            return work.exact(**{n: by_heads(work, n, x) for n, x in leaves.items()})
        return work.exact(**{n: x.flatten(0, 1) for n, x in leaves.items()}).view_as(leaves["v"])

    def by_heads(work: Work, name: str, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(0, attention_peers.WEATHER) if name == "weight" else x

    return call


def measured(tmp_path: Path, *options: str) -> dict[str, Any]:
    out = tmp_path / "peers.json"
    attention_peers.main([*SMALL, *options, "--out", str(out)])
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.mark.parametrize("name", attention_peers.ROWS)
def test_each_row_is_what_gnnsparse_computes(name: str) -> None:
    precision = "fp32" if name in attention_peers.ON_ARXIV else "fp16"
    row = Row(name, precision, CPU, Sizes(2, 3, 256))
    ours = plain(row.work) if name == "dense" else row.work.ours()
    errors = row.errors(ours)
    assert [*errors] == ["forward_error", "gradient_error"]
    assert max(errors.values()) < {"fp32": 1e-5, "fp16": 3e-3}[precision]


def test_the_window_and_the_blocks_are_those_of_the_peers() -> None:
    window = attention_peers.pattern("window", 512)
    blocks = attention_peers.pattern("blocks", 512)
    assert window is not None
    assert blocks is not None
    dense = torch.from_numpy(window.to_scipy().toarray()) != 0
    distance = (torch.arange(512)[:, None] - torch.arange(512)).abs()
    assert torch.equal(dense, distance <= attention_peers.RADIUS)
    kept = attention_peers.kept_blocks(4).repeat_interleave(128, 0).repeat_interleave(128, 1)
    assert torch.equal(torch.from_numpy(blocks.to_scipy().toarray()) != 0, kept)


def test_wrong_crashing_and_missing_libraries_are_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(work: Work) -> Any:
        call = plain(work)
        return lambda **x: call(**{**x, "v": 1.1 * x["v"]})

    def wrong_gradient(work: Work) -> Any:
        call = plain(work)
        return lambda **x: call(**{**x, "k": x["k"].detach() * 0.9 + 0.1 * x["k"]})

    def crashing(work: Work) -> Any:
        raise RuntimeError("no kernel\nfor this device")

    def not_a_number(work: Work) -> Any:
        return lambda **x: plain(work)(**x) * float("nan")

    def forward_only(work: Work) -> Any:
        return lambda **x: plain(work)(**x).detach()

    everything = tuple(dict.fromkeys(kind for peer in PEERS.values() for kind in peer.kinds))
    makers = {
        "right": plain, "wrong": wrong, "wrong gradient": wrong_gradient, "crashing": crashing,
        "not a number": not_a_number, "forward only": forward_only,
    }  # fmt: skip
    fakes = {name: Peer(make, everything) for name, make in makers.items()}
    fakes["missing"] = Peer(plain, everything, "no_such_module_of_a_peer", "no-such-package")
    fakes["fp32 only"] = Peer(plain, everything, precisions=("fp32",))
    monkeypatch.setattr(attention_peers, "PEERS", fakes)
    found = measured(
        tmp_path, "--only", "window", "dot 4 x 32", "--precision", "bf16", "fp32", "--peers", *fakes
    )
    problems = {(r["work"], r["peer"]): r.get("problem") for r in found["rows"]}
    for name in ("window", "dot 4 x 32"):
        assert problems[name, "right"] is problems[name, "forward only"] is None
        assert str(problems[name, "wrong"]).startswith("wrong: forward_error 1.0e-01, gradient_error")
        assert str(problems[name, "wrong gradient"]).startswith("wrong: forward_error")
        assert problems[name, "crashing"] == "crashed: RuntimeError: no kernel for this device"
        assert str(problems[name, "not a number"]).startswith("wrong: forward_error nan")
        assert "No module named 'no_such_module_of_a_peer'" in str(problems[name, "missing"])
    assert ("window", "fp32 only") not in problems  # of patterns there is no fp32
    assert problems["dot 4 x 32", "fp32 only"] is None
    times = {(r["work"], r["peer"]): [key for key in r if key.endswith("_ms")] for r in found["rows"]}
    assert times["window", "right"] == ["forward_ms", "both_ms"]
    assert times["window", "forward only"] == ["forward_ms"]
    assert times["window", "wrong"] == times["window", "missing"] == []
    assert found["peers"]["missing"]["problem"].startswith("can't be imported")
    assert "missing: can't be imported" in capsys.readouterr().out


def test_fused3s_gets_whole_windows_of_one_head_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = Row("dot 4 x 32", "fp16", CPU, Sizes())
    graph = row.work.graph
    assert graph is not None
    rows, made = graph.num_rows, ("offsets", "order", "tiles", "places", "ids", "columns", "bits", 7)

    def preprocess(source: Any, indptr: Any, count: int, height: int, width: int, *scratch: Any) -> Any:
        assert (count, height, width) == (rows, 16, 16)
        assert [x.numel() for x in scratch] == [-(-rows // 16), graph.nnz, graph.nnz]
        assert source.dtype == indptr.dtype == torch.int32
        return made

    def product(*given: Any) -> list[torch.Tensor]:
        *matrix, q, k, v, scale, warps = given
        assert matrix == ["offsets", "order", "columns", "bits", rows]
        assert warps == 8
        assert q.shape == (-(-rows // 16) * 16, 32)
        leaves = {"q": q[:rows, None], "k": k[:, None], "v": v[:, None]}
        out = attention_peers.by_edges(graph, "dot", None, **{n: x.float() for n, x in leaves.items()})
        assert scale == 32**-0.5
        return [torch.zeros(1), torch.cat([out[:, 0], torch.full((q.shape[0] - rows, 32), torch.nan)])]

    fake = types.SimpleNamespace(preprocess_gpu=preprocess, f3s_1tb1rw_scheduled_permuteV_scaleQK=product)
    monkeypatch.setitem(sys.modules, "F3S", fake)
    assert row.measure(PEERS["Fused3S"], 0).keys() == {"forward_error"}


def test_a_library_that_ends_its_process_is_tried_in_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(work: Work) -> Any:
        raise AssertionError("not in this process")

    monkeypatch.setattr(attention_peers, "PEERS", {"deadly": Peer(end, ("window",), alone=True)})
    monkeypatch.setattr(attention_peers, "PATIENCE", 3)
    for code, said in (
        ("import os; os.kill(os.getpid(), 11)", "crashed: SIGSEGV"),
        ("raise ValueError('no such shape')", "crashed: ValueError: no such shape"),
        ("import time; time.sleep(60)", "took more than 3 s"),
        ('print(\'{"problem": "wrong: forward_error 1"}\')', "wrong: forward_error 1"),
    ):
        command = [sys.executable, "-c", code]
        monkeypatch.setattr(attention_peers, "probe_command", lambda *_, command=command: command)
        found = measured(tmp_path, "--only", "window", "--precision", "fp16", "--peers", "deadly")
        assert [r["problem"] for r in found["rows"]] == [said]


def test_a_process_of_its_own_prints_the_problem(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--only", "dense", "--precision", "fp16", "--peers", "cuDNN"]
    attention_peers.main([*SMALL, *options, "--probe"])
    assert json.loads(capsys.readouterr().out)["problem"].startswith("crashed: RuntimeError")
    attention_peers.main(
        [*SMALL, "--only", "window", "--precision", "fp16", "--peers", "gnnsparse", "--probe"]
    )
    assert json.loads(capsys.readouterr().out) == {"problem": None}


def test_the_command_of_a_process_of_its_own_is_one_of_the_script() -> None:
    command = attention_peers.probe_command("dot 4 x 32", "fp32", "DF-GNN", CPU, Sizes(1, 2, 128))
    assert command[1:3] == ["-m", "benchmarks.attention_peers"]
    options = attention_peers.parse(command[3:])
    assert (options.only, options.precision, options.peers) == (["dot 4 x 32"], ["fp32"], ["DF-GNN"])
    assert (options.batch, options.heads, options.length, options.probe) == (1, 2, 128, True)


def test_the_help_names_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        attention_peers.parse(["--help"])
    assert stop.value.code == 0
    assert ", ".join(attention_peers.ROWS) in capsys.readouterr().out
