"""The story of latency: how long does my model take on my graph, and what would make it faster?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.stories.test_own_tables import run

pytest.importorskip("torch_geometric")
NET = """
import torch
from torch_geometric.nn import GATConv

class Net(torch.nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.a, self.b = GATConv(in_channels, 16), GATConv(16, out_channels)

    def forward(self, x, edge_index):
        return self.b(self.a(x, edge_index).relu(), edge_index)
"""


@pytest.mark.slow
def test_my_model_on_my_graph(tmp_path: Path) -> None:
    from torch_geometric.data import Data

    (tmp_path / "mine.py").write_text(NET)
    edges = torch.randint(0, 300, (2, 2000))
    torch.save(Data(x=torch.randn(300, 16), edge_index=edges, y=torch.arange(300) % 3), tmp_path / "graph.pt")
    command = "gnnsparse bench latency --model mine.py:Net --graph graph.pt --seconds 0.5 --out latency.json"
    done = run(f"{command} --device cpu", tmp_path)
    assert (done.status, done.errors) == (0, "")
    assert done.output.splitlines()[0].strip() == "Net on cpu"
    rows = json.loads((tmp_path / "latency.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["as it is", "accelerated", "torch.compile"]
    assert all(row["ok"] for row in rows)
