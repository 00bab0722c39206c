"""As a user would type it: a trained run becomes a package, and a server answers requests with it."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse.data import load_dataset
from gnnsparse.inference.export import load_package
from tests.docs.blocks import ROOT, Block
from tests.stories.running import environment_of, run_block

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

TRAIN = """
python train.py model=gat model.hidden_channels=16 trainer.max_epochs=3 trainer.plots=false hydra.run.dir=run
"""
EXPORT = """
gnnsparse export run --out model.pt2 --device cpu
gnnsparse export run --out digits.pt2 --graph --device cpu
"""


def typed(text: str, folder: Path) -> str:
    """What commands print, which have to succeed."""
    outcome = run_block(Block(Path(__file__), 0, "sh", text, "", ""), folder)
    assert outcome.status == 0, outcome.errors
    assert outcome.errors == ""
    return outcome.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with a run and its two packages."""
    found = tmp_path_factory.mktemp("deploy") / "checkout"
    found.mkdir()
    typed(TRAIN, found)
    lines = typed(EXPORT, found).splitlines()
    assert lines[0] == "model.pt2: takes x, edge_index; runs on cpu"
    assert lines[2] == "digits.pt2: takes x; runs on cpu"
    assert lines[1].startswith("Tried on random features: its logits are ")
    return found


@pytest.fixture
def serve(folder: Path) -> Iterator[Any]:
    """Starts a server of a package, and returns its address."""
    started = []

    def start(package: str) -> str:
        command = [sys.executable, "-W", "error", str(ROOT / "examples" / "serve.py"), package, "--port", "0"]
        server = subprocess.Popen(
            command, cwd=folder, env=environment_of(folder), stdout=subprocess.PIPE, text=True
        )
        started.append(server)
        assert server.stdout is not None
        said = server.stdout.readline().split()
        assert said[:4] == ["serving", package, "on", said[-1]]
        return said[-1]

    yield start
    for server in started:
        server.kill()
        server.communicate()


def ask(address: str, request: Any) -> tuple[int, Any]:
    """The status and the content of an answer."""
    try:
        with urllib.request.urlopen(address, json.dumps(request).encode(), timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_a_server_answers_several_requests_at_once(folder: Path, serve: Any) -> None:
    """Each has a graph of its own; the answers are those of the loaded model."""
    address, model = serve("model.pt2"), gnnsparse.load(folder / "run", device="cpu")
    draws = torch.Generator().manual_seed(0)
    graphs = [
        (torch.rand(nodes, 64, generator=draws), torch.randint(nodes, (2, 4 * nodes), generator=draws))
        for nodes in range(20, 52)
    ]
    requests = [{"x": x.tolist(), "edge_index": edges.tolist(), "rows": [3, 1]} for x, edges in graphs]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda request: ask(address, request), requests))
    for (status, got), (x, edges) in zip(answers, graphs, strict=True):
        want = model.predict(x, gnnsparse.prepare(edges, num_nodes=len(x), values="gcn", cache=False))
        assert status == 200
        torch.testing.assert_close(torch.tensor(got["probabilities"]), want.probabilities[[3, 1]])
        assert got["classes"] == want.classes[[3, 1]].tolist()
    with urllib.request.urlopen(address, timeout=60) as response:
        assert json.load(response) == {"inputs": ["x", "edge_index"]}
    for wrong, said in (
        ({"x": requests[0]["x"]}, "request: lacks edge_index; accepted: JSON with x, edge_index"),
        ({**requests[0], "x": [[1.0]]}, "x: has shape (1, 1); accepted: (any, 64)"),
        ({**requests[0], "edge_index": [[0], [20]]}, "edge_index: has nodes from 0 to 20; accepted: 0 to 19"),
        ({**requests[0], "rows": [20]}, "rows: accepted: 0 to 19"),
    ):
        status, got = ask(address, wrong)
        assert status == 400
        assert got["error"].startswith(said)


def test_a_package_with_a_graph_takes_features_alone(folder: Path) -> None:
    package, model = load_package(folder / "digits.pt2"), gnnsparse.load(folder / "run")
    digits = load_dataset("digits")
    got, want = package.predict(digits.x), model.predict(digits.x, digits.graph)
    torch.testing.assert_close(got.probabilities, want.probabilities)
    with pytest.raises(ValueError, match=r"x: has shape \(5, 64\); accepted: \(1797, 64\)"):
        package(digits.x[:5])
