"""Checks of the stories about trained models, and about models of PyG and DGL."""

from __future__ import annotations

import json
import re

from tests.stories.checks import story
from tests.stories.of_graphs import scores_in
from tests.stories.running import Outcome


@story("Load it in another program")
def _(outcome: Outcome) -> None:
    shape, _, accuracy = outcome.output.rpartition(" ")
    assert shape == "torch.Size([1797, 10])"
    assert float(accuracy) > 0.9


@story("Load a model of my own")
def _(outcome: Outcome) -> None:
    refused, same = outcome.output.splitlines()
    assert (
        "model: is a SAGEConv, which is in no registry; accepted: gnnsparse.load(..., model=...)" in refused
    )
    assert same == "True"


@story("A model card")
def _(outcome: Outcome) -> None:
    card = outcome.output[outcome.output.index("---\nlibrary_name: gnnsparse") :]
    score = outcome.result()["metrics"]["test"]["accuracy"]
    assert f"{score:.4f}" in card
    for text in ("# gcn on digits", "gnnsparse.load(", "hidden_channels", "## Environment", "seed"):
        assert text in card


@story("The Hugging Face Hub", needs=("huggingface_hub",))
def _(outcome: Outcome) -> None:
    assert outcome.output == "True\n"
    assert outcome.files("published") == {"README.md", "config.json", "model.safetensors"}
    assert (
        json.loads((outcome.folder / "published" / "config.json").read_text())["gnnsparse"]["name"] == "gcn"
    )


@story("Latency")
def _(outcome: Outcome) -> None:
    found = re.fullmatch(r"([\d.]+) ms a call; in a CUDA graph: (True|False)\n", outcome.output)
    assert found is not None
    assert 0 < float(found[1]) < 1000


@story("Export")
def _(outcome: Outcome) -> None:
    assert outcome.output == "True\n"


@story("Speed it up as it is")
def _(outcome: Outcome) -> None:
    assert len(re.findall(r"GATConv +graph_attention", outcome.output)) == 2


@story("Try it for one block of code")
def _(outcome: Outcome) -> None:
    assert outcome.output == "torch_geometric.nn.conv.gcn_conv\n"


@story("A layer of my own")
def _(outcome: Outcome) -> None:
    assert outcome.output.startswith(("(", "["))
    assert "Mine" in outcome.output or "spmm" in outcome.output


@story("Replace the layers, and keep the weights")
def _(outcome: Outcome) -> None:
    found = re.fullmatch(r"fp16 differs by (\S+)\n", outcome.output)
    assert found is not None
    assert 0 < float(found[1]) < 1e-2


@story("Train it with one call")
def _(outcome: Outcome) -> None:
    assert scores_in(outcome.output)["accuracy"] > 0.8  # a quarter by chance
    assert len(outcome.output.partition("[")[2].split(",")) == 8


@story("A loader of small graphs")
def _(outcome: Outcome) -> None:
    assert outcome.output.count("GINConv") == 2 or outcome.output.count("convs") == 2


@story("My DGL model", needs=("dgl",))
def _(outcome: Outcome) -> None:
    assert outcome.output == "GATConv\n"
