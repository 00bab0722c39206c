"""Operations on several ranks against those of one process, for gloo on CPUs."""

from pathlib import Path

import pytest
import torch

from tests.distributed import checks
from tests.distributed.ranks import Ranks

#: Nodes: fewer than ranks, so that parts are empty; a few; more than any tile of a kernel.
SIZES = (2, 17, 90)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("nodes", SIZES)
def test_products_and_gradients_are_those_of_one_process(ranks: Ranks, size: int, nodes: int) -> None:
    ranks.run(size, checks.products, nodes, 7, "fp32", 37)


@pytest.mark.parametrize("precision", ["tf32", "fp16", "bf16"])
def test_features_travel_in_the_precision_of_the_operand(ranks: Ranks, precision: str) -> None:
    ranks.run(2, checks.products, 40, 11, precision, 70)


@pytest.mark.parametrize("nodes", SIZES)
def test_means_and_extrema_are_those_of_one_process(ranks: Ranks, nodes: int) -> None:
    ranks.run(3, checks.reductions, nodes, 13)


@pytest.mark.parametrize("nodes", SIZES)
def test_edge_values_stay_on_the_rank_of_their_row(ranks: Ranks, nodes: int) -> None:
    ranks.run(3, checks.edge_operations, nodes, 17)


@pytest.mark.parametrize(("size", "heads"), [(2, 4), (3, 3)])
def test_attention_fetches_keys_and_values_of_the_halo(ranks: Ranks, size: int, heads: int) -> None:
    for nodes in SIZES:
        ranks.run(size, checks.attentions, nodes, 19, heads)


MODELS = [
    ("gcn", "halo", {"norm": "batch"}),
    ("gcn", "gather", {"norm": "layer", "residual": True}),
    ("gcn", "features", {"num_layers": 3}),
    ("graphsage", "halo", {}),
    ("gin", "halo", {}),
    ("agnn", "halo", {}),
    ("gat", "halo", {"heads": 2}),
    ("gatv2", "gather", {"heads": 2}),
    ("graph_transformer", "halo", {"heads": 2}),
]


@pytest.mark.parametrize("case", MODELS, ids=lambda case: f"{case[0]}-{case[1]}")
def test_two_steps_of_a_model_are_those_of_one_process(ranks: Ranks, case: tuple) -> None:
    ranks.run(3 if case[1] == "halo" else 2, checks.model_steps, *case)


def test_what_several_ranks_do_not_have_is_refused_on_each_of_them(ranks: Ranks) -> None:
    ranks.run(3, checks.refusals)


def test_rates_are_measured_and_equal_on_all_ranks(ranks: Ranks) -> None:
    first, *others = ranks.run(3, checks.rates)
    assert all(other == first for other in others)
    assert first.link_bytes > 0
    assert "3 ranks, gloo" in first.about


def test_rows_of_all_ranks_come_together_in_the_order_of_the_graph(ranks: Ranks) -> None:
    ranks.run(3, checks.gathered_rows)


def test_ranks_prepare_a_graph_once(ranks: Ranks, tmp_path: Path) -> None:
    assert sum(ranks.run(3, checks.cached, str(tmp_path))) >= 2  # the one that made the shards, or none
    assert len(list(tmp_path.glob("*.safetensors"))) == 3
    assert ranks.run(3, checks.cached, str(tmp_path)) == [True] * 3
    message = "cache: has shards of several divisions; accepted: another folder, or an empty one"
    assert ranks.run(3, checks.other_division, str(tmp_path)) == [message] * 3


@pytest.mark.parametrize("count", [0, 5, 5000])
def test_sums_are_added_in_the_order_of_ranks(ranks: Ranks, count: int) -> None:
    """With the bits of that order, whether ranks divide the work or not."""
    x = torch.randn(count, generator=torch.Generator().manual_seed(1))
    expected = (x * 1.0 + x * 1e3) + x * 1e6
    for found in ranks.run(3, checks.sums, count):
        assert torch.equal(found, expected)
