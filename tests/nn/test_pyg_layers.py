"""The layers against PyG's: the same numbers, gradients, weights of attention, parameters and training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import gnnsparse
from gnnsparse.data.optional import import_optional
from gnnsparse.nn import AGNNConv, GCNConv
from gnnsparse.testing import assert_accurate, assert_all_accurate, in_float64, with_gradients
from tests.helpers import FLOOR, agnn_beta_scale, assert_same_results, named
from tests.nn.pyg_layers import SQUARE, TALL, WIDE, edges, pair, pyg

SIZES = st.sampled_from([SQUARE, WIDE, TALL])
NODES = SQUARE[0]
NONE = torch.empty(2, 0, dtype=torch.int64)


def one_loop_each(seed: int = 0) -> torch.Tensor:
    """Random edges with repeats, and self-loops, of which GCNConv takes one of a node."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(0, NODES - 6, (2, 220), generator=generator)
    index = index[:, index[0] != index[1]]
    loops = torch.randperm(NODES - 6, generator=generator)[:7].expand(2, -1)
    index = torch.cat([index, index[:, :25], loops], dim=1)
    return index[:, torch.randperm(index.shape[1], generator=generator)]


class TestGCNConv:
    """GCNConv, whose rounding errors need no more room than those of PyG's."""

    def compare(self, layers: Any, index: torch.Tensor, weighted: bool = False, adj: Any = None) -> None:
        ours, theirs = layers
        inputs = [torch.randn(NODES, theirs.in_channels)]
        inputs += [torch.rand(index.shape[1]) + 0.1] if weighted else []

        def call(layer: Any, x: torch.Tensor, *weight: torch.Tensor) -> torch.Tensor:
            return layer(x, index if adj is None or layer is theirs else adj, *weight)

        assert_same_results(ours, theirs, call, inputs, in_one=False, floor=None)

    @pytest.mark.parametrize("sizes", [(5, 12), (12, 5), (7, 7)], ids=str)
    @pytest.mark.parametrize("weighted", [False, True])
    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize(
        "mode", [(True, None), (True, True), (True, False), (False, None), (False, False)], ids=str
    )
    def test_output_and_gradients(
        self, mode: tuple[bool, bool | None], bias: bool, weighted: bool, sizes: tuple[int, int]
    ) -> None:
        layers = pair("GCNConv", *sizes, normalize=mode[0], add_self_loops=mode[1], bias=bias)
        self.compare(layers, one_loop_each(), weighted)

    @pytest.mark.parametrize("weighted", [False, True])
    def test_improved_and_no_edges(self, weighted: bool) -> None:
        self.compare(pair("GCNConv", 6, 4, improved=True), one_loop_each(1), weighted)
        self.compare(pair("GCNConv", 6, 4), NONE, weighted)

    def test_a_source_without_edges_to_it_adds_nothing(self) -> None:
        self.compare(pair("GCNConv", 6, 4, add_self_loops=False), torch.tensor([[7, 8], [8, 9]]))

    @pytest.mark.parametrize("weighted", [False, True])
    def test_repeated_self_loops_count_once(self, weighted: bool) -> None:
        index = torch.cat([one_loop_each(2), torch.tensor([[3, 3, 3, 8], [3, 3, 3, 8]])], dim=1)
        ours, theirs = pair("GCNConv", 6, 4)
        inputs = [torch.randn(NODES, 6), index, *([torch.rand(index.shape[1])] if weighted else [])]
        got, plain = ours(*inputs), theirs(*inputs)
        with in_float64(theirs):
            x, index, *weights = inputs
            assert_accurate(got, plain, theirs(x.double(), index, *(w.double() for w in weights)))

    def test_other_forms_of_the_edges(self) -> None:
        """PyG's class of edges, and an operand, which would sum repeats of self-loops."""
        index = one_loop_each()
        kind = import_optional("torch_geometric", "this comparison").EdgeIndex
        operand = gnnsparse.prepare(index, num_nodes=NODES, values="gcn", cache=False)
        for adj in (kind(index, sparse_size=(NODES, NODES)), operand):
            self.compare(pair("GCNConv", 6, 4), index, adj=adj)

    def test_both_refuse_self_loops_without_normalisation(self) -> None:
        for layer in (GCNConv, pyg.GCNConv):
            with pytest.raises(ValueError, match="self"):
                layer(3, 3, add_self_loops=True, normalize=False)


class TestAGNNConv:
    """AGNNConv; the gradient of beta is one number, which is judged beside its terms."""

    def compare(
        self, x: torch.Tensor, index: torch.Tensor, adj: Any = None, beta: float = 1.0, **options: Any
    ) -> None:
        ours, theirs = AGNNConv(**options), pyg.AGNNConv(**options)
        theirs.beta.data.fill_(beta)
        ours.load_state_dict(theirs.state_dict())
        assert list(ours.state_dict()) == ["beta"]
        counts = torch.zeros(NODES, NODES).index_put((index[1], index[0]), torch.ones(()), accumulate=True)
        if theirs.add_self_loops:
            counts.fill_diagonal_(1)
        scales = [None, None, agnn_beta_scale(x, beta, counts)][: 2 + theirs.requires_grad]

        def call(layer: Any, x: torch.Tensor) -> torch.Tensor:
            return layer(x, index if adj is None or layer is theirs else adj)

        assert_same_results(ours, theirs, call, [x], in_one=False, floor=None, scales=scales)

    @pytest.mark.parametrize("beta", [1.0, -2.5, 8.0])
    @pytest.mark.parametrize("width", [1, 7, 16])
    @pytest.mark.parametrize("requires_grad", [True, False])
    @pytest.mark.parametrize("loops", [True, False])
    def test_output_and_gradients(self, loops: bool, requires_grad: bool, width: int, beta: float) -> None:
        """Edges with repeats, which count as often as they are given, and nodes without any."""
        options = {"requires_grad": requires_grad, "add_self_loops": loops}
        self.compare(torch.randn(NODES, width), one_loop_each(), beta=beta, **options)
        self.compare(torch.randn(NODES, width), NONE, beta=beta, **options)

    def test_an_operand_with_gcn_weights_gives_the_same_as_its_edges(self) -> None:
        """Without repeats: the weights play no part, the self-loops are there."""
        index = one_loop_each().unique(dim=1)
        operand = gnnsparse.prepare(index, num_nodes=NODES, values="gcn", cache=False)
        self.compare(torch.randn(NODES, 6), index, operand)

    def test_rows_of_zeros(self) -> None:
        """The same output as PyG's, and a gradient that is finite and small where PyG's is not."""
        ours, theirs = AGNNConv(), pyg.AGNNConv()
        for layer in (ours, theirs):
            layer.beta.data.fill_(3.0)
        x, rest = torch.randn(NODES, 6), torch.arange(NODES) % 3 != 0
        x[~rest] = 0
        results = [self.run(layer, x) for layer in (ours, theirs)]
        with in_float64(theirs):
            results.append(self.run(theirs, x.double()))
        assert float(results[0][1].abs().max()) < 100
        for found in results:
            found[1] = found[1][rest]
        assert_all_accurate(*results)

    def run(self, layer: Any, x: torch.Tensor) -> list[torch.Tensor]:
        return with_gradients(lambda x: layer(x, one_loop_each()), [x], layer.parameters())


AGGREGATIONS = ["mean", "sum", "add", "max", "min"]


def features(size: tuple[int, int], widths: tuple[int, int]) -> list[torch.Tensor]:
    return [torch.randn(count, width) for count, width in zip(size, widths, strict=True)]


FLAG, SEED = st.booleans(), st.integers(0, 99)
AGGREGATING = {"size": SIZES, "out": st.sampled_from([3, 12]), "aggr": st.sampled_from(AGGREGATIONS)}


@pytest.mark.parametrize("name", ["SAGEConv", "GraphConv"])
def test_no_edges(name: str) -> None:
    for aggr in AGGREGATIONS:
        ours, theirs = pair(name, 6, 4, aggr=aggr)
        assert_same_results(ours, theirs, lambda layer, x: layer(x, NONE), [torch.randn(9, 6)])


@given(**AGGREGATING, bias=FLAG, seed=SEED, normalize=FLAG, root_weight=FLAG, project=FLAG)
def test_sage(
    size: tuple[int, int], out: int, aggr: str, normalize: bool, root_weight: bool, project: bool, bias: bool,
    seed: int,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    options = {"aggr": aggr, "normalize": normalize, "root_weight": root_weight, "project": project}
    widths: Any = 6 if size == SQUARE else (6, 4)
    ours, theirs = pair("SAGEConv", widths, out, bias=bias, **options)
    index = edges(size, seed)
    if size == SQUARE:
        assert_same_results(
            ours, theirs, lambda layer, x: layer(x, index), [torch.randn(size[0], 6)], rounded=normalize
        )
    else:
        inputs = features(size, (6, 4))[: 1 + root_weight]
        rest = [] if root_weight else [torch.randn(size[1], 4)]
        assert_same_results(
            ours,
            theirs,
            lambda layer, *x: layer((*x, *(t.to(x[0]) for t in rest)), index),
            inputs,
            rounded=normalize,
        )


@given(**AGGREGATING, bias=FLAG, seed=SEED, weighted=FLAG)
def test_graph_conv(
    size: tuple[int, int], out: int, aggr: str, weighted: bool, bias: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    ours, theirs = pair("GraphConv", (6, 4), out, aggr=aggr, bias=bias)
    index = edges(size, seed)
    if weighted and aggr in ("max", "min"):
        index = index.unique(dim=1)  # the weights of repeats would have to be kept apart
    weights = [torch.rand(index.shape[1]) + 0.1] if weighted else []

    def call(layer: Any, source: torch.Tensor, target: torch.Tensor, *weight: torch.Tensor) -> torch.Tensor:
        return layer((source, target), index, *weight)

    assert_same_results(ours, theirs, call, [*features(size, (6, 4)), *weights])


@given(size=SIZES, train_eps=st.booleans(), eps=st.sampled_from([0.0, 0.3, -2.0]), seed=st.integers(0, 99))
def test_gin(size: tuple[int, int], train_eps: bool, eps: float, seed: int) -> None:
    torch.manual_seed(seed)

    def network() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))

    ours, theirs = pair("GINConv", network, eps=eps, train_eps=train_eps)
    index = edges(size, seed)

    def call(layer: Any, *x: torch.Tensor) -> torch.Tensor:
        return layer(x, index)

    assert_same_results(ours, theirs, call, features(size, (6, 6)))


#: Options of RGCNConv that say what the matrices of relations are.
MATRICES = st.sampled_from([{}, {"num_bases": 1}, {"num_bases": 3}, {"num_blocks": 2}])


@given(
    size=SIZES, relations=st.sampled_from([1, 4, 40]), matrices=MATRICES, by_bases=FLAG, by_ranges=FLAG,
    aggr=st.sampled_from(["mean", "add"]), nodes=st.sampled_from(["features", "places", "none"]),
    root_weight=FLAG, bias=FLAG, seed=SEED,
)  # fmt: skip
def test_rgcn(
    size: tuple[int, int], relations: int, matrices: dict[str, int], by_bases: bool, by_ranges: bool,
    aggr: str, nodes: str, root_weight: bool, bias: bool, seed: int,
) -> None:  # fmt: skip
    """Of many relations few nodes have edges; one has none. Relations may begin in ranges of the nodes."""
    torch.manual_seed(seed)
    assume(nodes == "features" or "num_blocks" not in matrices)
    assume(nodes != "none" or size == SQUARE)
    widths = (6, 4) if nodes == "features" else size if nodes == "none" else (9, 7)
    options = {"aggr": aggr, "root_weight": root_weight, "bias": bias}
    ours, theirs = pair("RGCNConv", widths, 8, relations, **matrices, **options)
    index = edges(size, seed)
    kinds = torch.randint(0, relations, index.shape[1:])
    kinds[kinds == 1] = 0
    kinds[-40:] = kinds[-1]  # repeats of edges of one type, and of others
    if by_ranges:
        third = size[0] // 3
        index[0] = index[0] % third + kinds % 3 * third
    given = features(size, widths)
    if nodes == "places":
        given = [torch.randint(0, width, (count,)) for count, width in zip(size, widths, strict=True)]
    inputs = given[: 1 + root_weight] if nodes == "features" else []

    def call(layer: Any, *x: torch.Tensor) -> torch.Tensor:
        rest = [t.to(x[0]) if x else t for t in given[len(x) :]]
        return layer(None if nodes == "none" else (*x, *rest), index, kinds)

    with pytest.MonkeyPatch.context() as patch:
        if by_bases:
            patch.setattr("gnnsparse.nn.rgcn_conv.GATHER", 0)
        assert_same_results(ours, theirs, call, inputs)


#: Layers that need no features of targets, and which of their parameters then play a part.
WITHOUT_TARGETS = {"SAGEConv": "lin_l", "GraphConv": "lin_rel", "GATConv": ("lin_src", "att_src", "bias")}


@pytest.mark.parametrize("size", [None, (25, 40), (25, 60)], ids=str)
@pytest.mark.parametrize("name", WITHOUT_TARGETS)
def test_without_features_of_targets(name: str, size: tuple[int, int] | None) -> None:
    options = {"heads": 2, "residual": True} if name == "GATConv" else {}
    ours, theirs = pair(name, (6, 4), 5, **options)
    index = edges((25, 25) if size is None else TALL)

    def call(layer: Any, x: torch.Tensor) -> torch.Tensor:
        return layer((x, None), index, size=size)

    def used(layer: Any) -> dict[str, torch.Tensor]:
        return {n: p for n, p in named(layer).items() if n.startswith(WITHOUT_TARGETS[name])}

    assert_same_results(ours, theirs, call, [torch.randn(25, 6)], parameters=used)
    network = torch.nn.Linear(6, 3)
    gin = [kinds.GINConv(network) for kinds in (gnnsparse.nn, pyg)]
    assert_same_results(*gin, call, [torch.randn(25, 6)])


NAMES = ["GATConv", "GATv2Conv", "TransformerConv"]
EDGE_DIM = 3


def compare(ours: Any, theirs: Any, index: Any, inputs: list[torch.Tensor], adj: Any = None) -> None:
    """Outputs, weights, gradients of x, or x of sources and targets, and of edge_attr if it is the last."""
    bipartite = not isinstance(theirs.in_channels, int)
    nodes = 2 if bipartite else 1

    def call(layer: Any, *given: torch.Tensor, **options: Any) -> Any:
        x = given[:2] if bipartite else given[0]
        edge = index if adj is None or layer is theirs else adj
        return layer(x, edge, *given[nodes:], **options)

    unused = () if theirs.__dict__.get("root_weight", True) else ("lin_skip",)

    def used(layer: Any) -> dict[str, torch.Tensor]:
        return {name: p for name, p in named(layer).items() if not name.startswith(unused or "-")}

    assert_same_results(ours, theirs, call, inputs, parameters=used)
    out, (pairs, weights) = call(ours, *inputs, return_attention_weights=True)
    # Returned weights take another kernel, which may add in another order.
    torch.testing.assert_close(out, call(ours, *inputs), rtol=1e-4, atol=1e-5)
    _, (their_pairs, their_weights) = call(theirs, *inputs, return_attention_weights=True)
    if adj is None:
        assert torch.equal(pairs, their_pairs)
        with in_float64(theirs):
            exact = call(theirs, *(x.double() for x in inputs), return_attention_weights=True)[1][1]
        assert_accurate(weights, their_weights, exact, floor=FLOOR)


def inputs_for(
    size: tuple[int, int], widths: Any, index: torch.Tensor, edge_dim: int | None
) -> list[torch.Tensor]:
    x = [torch.randn(size[0], widths)] if isinstance(widths, int) else features(size, widths)
    return x if edge_dim is None else [*x, torch.randn(index.shape[1], edge_dim)]


@given(
    name=st.sampled_from(NAMES),
    size=SIZES,
    heads=st.sampled_from([1, 2, 4]),
    concat=st.booleans(),
    bias=st.booleans(),
    edge_dim=st.sampled_from([None, EDGE_DIM]),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_output_weights_and_gradients(
    name: str, size: tuple[int, int], heads: int, concat: bool, bias: bool, edge_dim: int | None, seed: int,
    data: st.DataObject,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    options: dict[str, Any] = {"heads": heads, "concat": concat, "bias": bias, "edge_dim": edge_dim}
    if name == "TransformerConv":
        options |= {"beta": data.draw(st.booleans()), "root_weight": data.draw(st.booleans())}
    else:
        options["residual"] = data.draw(st.booleans())
        options["negative_slope"] = data.draw(st.sampled_from([0.2, 0.0, -0.3]))
        # PyG's reductions of edge features need a source for each target.
        fills = [0.5, torch.linspace(-1, 1, EDGE_DIM)]
        names = [] if size == TALL else ["mean", "add", "min", "max", "mul"]
        options["fill_value"] = data.draw(st.sampled_from([*fills, *names]))
        options["add_self_loops"] = data.draw(st.booleans())
    if name == "GATv2Conv" and size == SQUARE:
        options["share_weights"] = data.draw(st.booleans())
    widths: Any = 6 if size == SQUARE and data.draw(st.booleans()) else (6, 6 if size == SQUARE else 4)
    ours, theirs = pair(name, widths, 5, **options)
    index = edges(size, seed)
    compare(ours, theirs, index, inputs_for(size, widths, index, edge_dim))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [SQUARE, WIDE, TALL], ids=str)
def test_operands_with_edge_features(name: str, size: tuple[int, int]) -> None:
    """The features are in the order of the edges that the operand was prepared from."""
    index = edges(size, repeats=False)
    operand = gnnsparse.prepare(index, num_nodes=size, reorder="none", cache=False)
    options = {} if name == "TransformerConv" else {"add_self_loops": False}
    ours, theirs = pair(name, (6, 4), 5, heads=2, edge_dim=EDGE_DIM, **options)
    inputs = inputs_for(size, (6, 4), index, EDGE_DIM)
    compare(ours, theirs, index, inputs, operand)
    _, (pairs, weights) = ours(tuple(inputs[:2]), operand, inputs[2], return_attention_weights=True)
    _, (_, in_coo) = ours(tuple(inputs[:2]), index, inputs[2], return_attention_weights=True)
    assert torch.equal(pairs, operand.indices().flip(0))
    assert torch.equal(operand.to_coo_order(weights), in_coo)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("loops", [True, False])
def test_attention_over_no_edges(name: str, loops: bool) -> None:
    options = {} if name == "TransformerConv" else {"add_self_loops": loops}
    ours, theirs = pair(name, 6, 5, heads=2, **options)
    x = torch.randn(9, 6)
    out, (pairs, weights) = ours(x, NONE, return_attention_weights=True)
    theirs_out, (their_pairs, their_weights) = theirs(x, NONE, return_attention_weights=True)
    with in_float64(theirs):
        assert_accurate(out, theirs_out, theirs(x.double(), NONE))
    assert torch.equal(pairs, their_pairs)
    assert weights.shape == their_weights.shape


@pytest.mark.parametrize("fill", ["mean", "add", "min", "max", "mul"])
@pytest.mark.parametrize("name", NAMES[:2])
def test_loops_get_what_is_made_of_the_features_of_edges(name: str, fill: str) -> None:
    """Here edges have one feature, in one dimension, and copies of an edge count as edges of their own."""
    index = edges()
    ours, theirs = pair(name, 6, 5, edge_dim=1, fill_value=fill)
    compare(ours, theirs, index, [torch.randn(SQUARE[0], 6), torch.randn(index.shape[1])])


@pytest.mark.parametrize("name", NAMES)
def test_dropout_drops_as_many_weights_as_pyg(name: str) -> None:
    """A weight is 0 with probability p, or divided by 1 - p; TransformerConv returns those before dropout."""
    index = torch.cartesian_prod(torch.arange(60), torch.arange(60)).T.contiguous()
    ours, theirs = pair(name, 6, 5, heads=2, dropout=0.4)
    x = torch.randn(60, 6)
    _, (pairs, kept) = ours(x, index, return_attention_weights=True)
    _, (their_pairs, their_kept) = theirs(x, index, return_attention_weights=True)
    _, (_, all_of_them) = ours.eval()(x, index, return_attention_weights=True)
    assert torch.equal(pairs, their_pairs)
    dropped = [(weights == 0).float().mean() for weights in (kept, their_kept)]
    if name == "TransformerConv":
        assert dropped == [0, 0]
        assert torch.equal(kept, all_of_them)
        return
    # 7200 draws: five standard deviations of their mean.
    assert all(abs(share - 0.4) < 5 * (0.4 * 0.6 / 7200) ** 0.5 for share in dropped)
    scaled = torch.where(kept == 0, 0.0, all_of_them / 0.6)
    assert_accurate(kept, scaled, scaled.double())
