"""The tasks "typed_node" and "typed_link": what they learn, ranks, times, and runs that go on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnsparse.data import TypedLinkDataset
from gnnsparse.sampling import TypedNeighborSampler
from gnnsparse.sparse.typed import TypedGraph
from gnnsparse.train import PreprocessConfig, SamplerConfig, TrainerConfig, fit
from gnnsparse.train.tasks import TASKS, RunOptions
from gnnsparse.train.tasks.typed_link import ranks_of, scores_of
from gnnsparse.train.trained import LoadedModel
from models import MODELS
from tests.tasks import typed_links, typed_nodes

SAMPLES = SamplerConfig(name="neighbor", fanouts=(4, 4), batch_size=8, prefetch=0)


def run_of(name: str, sampler: SamplerConfig | None = None, epochs: int = 30, **trainer: Any) -> RunOptions:
    return RunOptions(
        torch.device("cpu"), values=MODELS[name].values, sampler=sampler or SamplerConfig(),
        trainer=TrainerConfig(max_epochs=epochs, progress=False, **trainer),
        preprocess=PreprocessConfig(cache=False),
    )  # fmt: skip


def made(name: str, dataset: Any, run: RunOptions, **options: Any) -> tuple[Any, Any, Any]:
    """A task, and its Lightning and data modules for a model with weights of seed 0."""
    task = TASKS["typed_link" if isinstance(dataset, TypedLinkDataset) else "typed_node"]
    task.check(run)
    torch.manual_seed(0)
    inputs, outputs = task.model_sizes(dataset)
    options |= {"hidden_channels": 16, **task.model_options(dataset)}
    model = MODELS[name].for_task(task.name).build(inputs, out_channels=outputs, **options)
    data = task.make_data(dataset, run)
    return task, task.make_module(model, data, run), data


@pytest.mark.parametrize("name", ["rgcn", "hgt"])
@pytest.mark.parametrize("sampler", [None, SAMPLES], ids=["whole", "samples"])
@pytest.mark.parametrize("times", [False, True], ids=["", "times"])
def test_nodes_are_learnt_from_neighbours_of_other_types(
    name: str, sampler: SamplerConfig | None, times: bool
) -> None:
    run = run_of(name, sampler)
    _, module, data = made(name, typed_nodes(times=times), run, dropout=0.0)
    result = fit(module, data, run.trainer)
    assert result.metrics["test"]["accuracy"] > 0.6, result.metrics  # one of three by chance
    assert len(result.classes) == 3


@pytest.mark.parametrize("name", ["rgcn", "hgt"])
@pytest.mark.parametrize("sampler", [None, SAMPLES], ids=["whole", "samples"])
@pytest.mark.parametrize("times", [False, True], ids=["", "times"])
def test_links_of_users_without_features_are_ranked(
    name: str, sampler: SamplerConfig | None, times: bool
) -> None:
    run = run_of(name, sampler)
    dataset = typed_links(times=times, negatives=8)
    _, module, data = made(name, dataset, run, dropout=0.0)
    result = fit(module, data, run.trainer)
    assert set(result.metrics["test"]) == {"mrr", "hits@10"}
    # Of 8 drawn at random the mean reciprocal rank of an edge is 0.31.
    if not times:
        assert result.metrics["test"]["mrr"] > 0.6, result.metrics


@pytest.mark.parametrize("one_type", [False, True])
def test_edges_are_ranked_among_all_targets_that_are_no_edge(one_type: bool) -> None:
    dataset = typed_links(hits_at=2)
    if one_type:  # all are nodes of one kind, and none is a target of itself
        edges = {("node", "to", "node"): dataset.train_edges.T}
        graph = TypedGraph({"node": 20}, edges)
        dataset = replace(dataset, graph=graph, x={}, relation=("node", "to", "node"))
    task, module, data = made("rgcn", dataset, run_of("rgcn"))
    model = module.model.eval()
    with torch.no_grad():
        features = model(data.x, data.adj)
        scored = module.scored(next(data.chunks("test")))
        found = module.score("test", scored)
    known = {tuple(pair) for part in dataset.edges.values() for pair in part.tolist()}
    ranks = []
    for source, target in dataset.test_edges.tolist():
        logit = {
            other: float(model.score(features, torch.tensor([[source, other]])).detach())
            for other in range(dataset.sizes[1])
            if other == target or ((source, other) not in known and not (one_type and source == other))
        }
        own = logit.pop(target)
        above, equal = (sum(map(test, logit.values())) for test in (own.__lt__, own.__eq__))
        ranks.append(1 + above + equal / 2)
    rank = torch.tensor(ranks, dtype=torch.float64)
    assert float(found["mrr"]) == pytest.approx(float((1 / rank).mean()), rel=1e-5)
    assert float(found["hits@2"]) == pytest.approx(float((rank <= 2).double().mean()))
    loaded: Any = LoadedModel.__new__(LoadedModel)
    object.__setattr__(loaded, "module", model)
    arrays, scores = task.predict(loaded, data)
    assert scores["test"]["mrr"] == pytest.approx(float(found["mrr"]))
    assert torch.equal(torch.stack([arrays["source"], arrays["target"]], 1), dataset.test_edges)
    assert bool(arrays["is_edge"].all())
    torch.testing.assert_close(
        arrays["probability"], model.score(features, dataset.test_edges).sigmoid().detach()
    )


def test_ranks_count_ties_half() -> None:
    positive, negative = torch.tensor([1.0, 0.0]), torch.tensor([[2.0, 1.0, 1.0], [0.0, -1.0, 9.0]])
    counts = torch.tensor([[True, True, True], [True, True, False]])
    assert ranks_of(positive, negative, counts).tolist() == [3.0, 1.5]


def test_drawn_targets_are_no_edges_even_where_few_are_left() -> None:
    dataset = typed_links()
    users, items = dataset.sizes
    # User 0 has all items but one, which 32 rounds may not draw; user 1 has all of them.
    more = torch.tensor([[0, item] for item in range(items - 1)])
    known = torch.cat([dataset.known_keys, dataset.keys(more)]).unique()
    sources = torch.arange(users).repeat(20)
    drawn = dataset.draw_targets(sources, 3, torch.Generator().manual_seed(0), known)
    pairs = torch.stack([sources.repeat_interleave(3), drawn.flatten()], 1)
    assert not bool(torch.isin(dataset.keys(pairs), known).any())
    assert set(drawn[sources == 0].flatten().tolist()) == {items - 1}
    assert len(set(drawn[sources == 5].flatten().tolist())) > 5
    every = torch.cat([known, dataset.keys(torch.tensor([[1, item] for item in range(items)]))]).unique()
    with pytest.raises(ValueError, match="train_edges: join source 1 to all targets"):
        dataset.draw_targets(torch.tensor([1]), 1, torch.Generator(), every)


def test_edges_of_sources_with_all_targets_are_left_out() -> None:
    dataset, users = typed_links(), 20
    everything = torch.tensor([[4, item] for item in range(15)])
    dataset = replace(dataset, known=torch.cat([dataset.known_keys, dataset.keys(everything)]).unique())
    assert dataset.joined_to_all.tolist() == [user == 4 for user in range(users)]
    _, _, data = made("rgcn", dataset, run_of("rgcn"))
    left = dataset.train_edges[dataset.train_edges[:, 0] != 4]
    assert data.train_items == len(left) < len(dataset.train_edges)
    assert bool((next(data.chunks("val")).positive[:, 0] != 4).all())
    batch = data.gather("train", torch.arange(len(left)))
    assert torch.equal(batch.positive, left)
    one = replace(dataset, val_edges=everything[:1])
    with pytest.raises(ValueError, match="dataset: shop joins all sources of the val part to all targets"):
        made("rgcn", one, run_of("rgcn"))


def test_no_edge_of_a_links_own_time_or_later_reaches_it() -> None:
    dataset = typed_links(times=True, negatives=3)
    _, _, data = made("hgt", dataset, run_of("hgt", replace(SAMPLES, fanouts=(-1, -1))))
    ids = torch.arange(len(dataset.train_edges))
    (batch,) = data.training_batches(0, [ids])
    sample = data._sampler.sample
    seen: list[Any] = []
    data._sampler.sample = lambda *given: seen.append(sample(*given)) or seen[-1]
    list(data.training_batches(0, [ids]))
    (drawn,) = seen
    times, count = dataset.train_times, len(ids)
    assert times is not None
    assert drawn.trees is not None
    for relation, edges in drawn.edge_ids.items():
        trees = drawn.trees[relation[2]][drawn.edge_index[relation][1]]
        # The trees are those of sources, of targets and of the others that were drawn, in turn.
        of_seed = times[trees % count]
        assert dataset.edge_times is not None
        assert len(edges) > 0
        assert bool((dataset.edge_times[relation][edges] < of_seed).all())
    assert batch.positive.shape == (count, 2)
    assert batch.others.shape == (count, 1)


def in_another_order(edges: torch.Tensor, late: torch.Tensor) -> torch.Tensor:
    """Edges of which those that are `late` have the targets of one another."""
    places = late.nonzero().flatten()
    other = edges.clone()
    other[1, places] = edges[1, places[torch.randperm(len(places))]]
    assert len(places) == 0 or not torch.equal(other, edges)
    return other


@pytest.mark.parametrize("name", ["rgcn", "hgt"])
@pytest.mark.parametrize("strategy", ["uniform", "last"])
def test_no_later_paper_changes_what_is_said_of_one(name: str, strategy: str) -> None:
    dataset, early = typed_nodes(times=True), torch.arange(40)
    assert dataset.times is not None
    now = int(dataset.times["paper"][early].max())
    late = {r: dataset.times[r[0]][e[0]] > now for r, e in dataset.graph.edges.items() if r[0] == "paper"}
    assert all(bool(of.any()) for of in late.values())
    edges = dataset.graph.edges | {r: in_another_order(dataset.graph.edges[r], late[r]) for r in late}
    x = dict(dataset.x)
    x["paper"] = torch.where((dataset.times["paper"] > now)[:, None], -7.0, x["paper"])
    later = replace(dataset, graph=TypedGraph(dataset.graph.num_nodes, edges), x=x)
    sampler = replace(SAMPLES, fanouts=(2, 2), temporal_strategy=strategy)

    def said(of: Any, nodes: torch.Tensor) -> torch.Tensor:
        _, module, data = made(name, of, run_of(name, sampler))
        with torch.no_grad():
            return data.batch.outputs(nodes, module.eval().outputs)

    assert torch.equal(said(dataset, early), said(later, early))
    assert not torch.equal(said(dataset, early + 40), said(later, early + 40))


@pytest.mark.parametrize("name", ["rgcn", "hgt"])
@pytest.mark.parametrize("strategy", ["uniform", "last"])
def test_no_purchase_at_the_time_of_a_link_or_later_changes_its_score(name: str, strategy: str) -> None:
    dataset, count = typed_links(times=True, negatives=3), 40
    assert dataset.edge_times is not None
    assert dataset.train_times is not None
    now = int(dataset.train_times[count - 1])
    edges = {r: in_another_order(e, dataset.edge_times[r] >= now) for r, e in dataset.graph.edges.items()}
    known, graph = dataset.known_keys, TypedGraph(dataset.graph.num_nodes, edges)
    later = replace(dataset, graph=graph, known=known)
    sampler = replace(SAMPLES, fanouts=(2, 2), temporal_strategy=strategy)

    def said(of: Any, ids: torch.Tensor) -> torch.Tensor:
        _, module, data = made(name, of, run_of(name, sampler))
        (batch,) = data.training_batches(0, [ids])
        with torch.no_grad():
            model = module.eval().model
            positive, others = scores_of(model, model(batch.x, batch.graph), batch)
        return torch.cat([positive[:, None], others], 1)

    early = torch.arange(count)
    assert torch.equal(said(dataset, early), said(later, early))
    assert not torch.equal(said(dataset, early + 30), said(later, early + 30))


def test_the_newest_edges_are_drawn_if_asked_for() -> None:
    dataset, ids = typed_links(times=True), torch.arange(40, 60)
    assert dataset.edge_times is not None
    sampler = replace(SAMPLES, fanouts=(1, 1), temporal_strategy="last")
    _, _, data = made("rgcn", dataset, run_of("rgcn", sampler))
    sample, seen = data._sampler.sample, []
    data._sampler.sample = lambda *given: seen.append(sample(*given)) or seen[-1]
    list(data.training_batches(0, [ids]))
    relation = ("user", "buys", "item")
    (drawn,) = seen
    first = drawn.num_edges[relation][0]  # the edges of the items that are seeds
    pairs, times = dataset.graph.edges[relation], dataset.edge_times[relation]
    roots = drawn.edge_index[relation][1, :first]
    assert first > 20
    for edge, root in zip(drawn.edge_ids[relation][:first].tolist(), roots.tolist(), strict=True):
        item = int(drawn.nodes["item"][root])
        older = (pairs[1] == item) & (times < dataset.train_times[ids[root % len(ids)]])
        assert edge == int(torch.where(older, times, -1).argmax())


@pytest.mark.parametrize(("relations", "most"), [("auto", 4), ("each", 4), ("shared", 2)])
def test_fanouts_are_of_each_relation_or_shared_by_those_of_a_type(relations: str, most: int) -> None:
    dataset, ids = typed_nodes(), torch.arange(20)
    config = replace(SAMPLES, fanouts=(4, -1), relations=relations)
    _, _, data = made("rgcn", dataset, run_of("rgcn", config))
    drawn = data._samples.draw(0, ids).blocks
    whole = TypedNeighborSampler(dataset.graph, (-1, -1)).sample({"paper": data._samples._nodes[ids]})
    for relation, edges in drawn.edge_index.items():
        first = edges[1, : drawn.num_edges[relation][0]]
        everyone = whole.edge_index[relation][1, : whole.num_edges[relation][0]]
        # Three relations lead to papers, which share 4: rounded up each has 2.
        degrees = everyone.bincount(minlength=20)
        assert torch.equal(first.bincount(minlength=20), degrees.clamp(max=most)), relation
    assert int(drawn.num_edges["paper", "cites", "paper"][0]) > 0


def test_default_fanouts_are_shared_by_relations() -> None:
    model, config = MODELS["rgcn"].build(4, out_channels=3, hidden_channels=8), replace(SAMPLES, fanouts=None)
    found = config.with_fanouts(model)
    assert (found.fanouts, found.relations) == ((10, 10), "shared")
    assert replace(config, relations="each").with_fanouts(model).relations == "each"
    assert SAMPLES.with_fanouts(model) == SAMPLES


@pytest.mark.parametrize("dataset", [typed_nodes(), typed_links()], ids=["node", "link"])
def test_newest_edges_need_times(dataset: Any) -> None:
    with pytest.raises(ValueError, match=r"sampler.temporal_strategy: got 'last', and the data have no time"):
        made("rgcn", dataset, run_of("rgcn", replace(SAMPLES, temporal_strategy="last")))


def test_a_sample_with_all_neighbours_says_what_the_whole_graph_does() -> None:
    for dataset, name in ((typed_nodes(), "rgcn"), (typed_nodes(), "hgt")):
        run = run_of(name, replace(SAMPLES, fanouts=(-1, -1), batch_size=7))
        _, module, data = made(name, dataset, run)
        module.model.eval()
        with torch.no_grad():
            whole = module.outputs(data.batch)
            for batch in (
                data._samples.gather(data._samples.draw(0, ids)) for ids in torch.arange(20).split(7)
            ):
                own = module.outputs(batch)
                assert own.shape == (len(batch.y), 3)
            nodes = dataset.train_mask.nonzero().flatten()[torch.arange(14, 20)]
            torch.testing.assert_close(own, whole[nodes], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sampler", [None, SAMPLES], ids=["whole", "samples"])
@pytest.mark.parametrize(
    "dataset", [typed_nodes(), typed_links(times=True, negatives=5)], ids=["node", "link"]
)
def test_a_resumed_run_ends_as_one_without_a_break(
    dataset: Any, sampler: SamplerConfig | None, tmp_path: Path
) -> None:
    def trained(epochs: int, folder: str, resume: str | None = None) -> Any:
        run = run_of("rgcn", sampler, epochs)
        task, module, data = made("rgcn", dataset, run, dropout=0.0)
        last = None if resume is None else tmp_path / resume / "checkpoints" / "last.ckpt"
        where = tmp_path / (folder if resume is None else resume)
        fit(module, data, run.trainer, folder=where, identity=task.identity(run), resume=last)
        return module.state_dict()

    whole = trained(4, "whole")
    trained(2, "parts")
    again = trained(4, "more", resume="parts")
    assert all(torch.equal(again[name], value) for name, value in whole.items())


def test_wrong_options_are_named() -> None:
    with pytest.raises(ValueError, match=r"sampler.features: plays no part in graphs with types"):
        made("hgt", typed_nodes(), run_of("hgt", replace(SAMPLES, features="host")))
    with pytest.raises(ValueError, match=r"sampler.fanouts: has 2 numbers for a model of 3 layers"):
        made("hgt", typed_nodes(), run_of("hgt", SAMPLES), num_layers=3)
