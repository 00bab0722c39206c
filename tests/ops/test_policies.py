"""The window kernel's policies on a GPU: every switch of every preset, SDDMM and attention in the blocks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import gnnsparse
from gnnsparse.formats.policy import policy_changes
from gnnsparse.nn import AGNNConv
from gnnsparse.plan import Plan
from gnnsparse.precision import Precision
from gnnsparse.testing import assert_accurate, random_graph
from tests.helpers import dense_matrix, make, plain_product
from tests.ops.test_emulated_policies import PRESETS, policies
from tests.ops.test_sddmm import check as check_scores
from tests.ops.test_spmm import check

pytestmark = pytest.mark.gpu


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(("name", "precision"), PRESETS)
@pytest.mark.parametrize("shape", [(500, 300, 0.05), (61, 200, 0.3), (1, 1, 1.0)])
def test_every_switch_of_every_preset(name: str, precision: str, shape: tuple[int, int, float]) -> None:
    graph = random_graph(*shape, hubs=1, empty_rows=0.1 if shape[0] > 1 else 0.0)
    a = make(graph, "cuda", precision=precision, format=name)
    dense, window = dense_matrix(graph, None), a.kernels.blocked.spec.window
    for width in (1, 45, 128, 600):
        x, plan = torch.randn(shape[1], width), a.plan(width)
        check(a, dense, x)
        for policy in policy_changes(plan.policy, Precision(precision), window).values():
            for limit in (2, 1000):
                check(a, dense, x, plan=replace(plan, tile_limit=limit, policy=policy))


@pytest.mark.parametrize("precision", ["fp16", "tf32"])
@pytest.mark.parametrize("window", [8, 16])
def test_every_combination(precision: str, window: int) -> None:
    """Twice each: the results have the same bits."""
    graph = random_graph(200, 150, 0.06, hubs=2, empty_rows=0.1)
    a = make(graph, "cuda", precision=precision, format="me-bcrs", panel=window)
    dense, x = dense_matrix(graph, None), torch.randn(150, 200)
    for policy in policies(precision, window):
        plan = Plan("window", tile_limit=3, policy=policy)
        check(a, dense, x, plan=plan)
        first = gnnsparse.spmm(a, x.cuda(), plan=plan)
        assert torch.equal(first, gnnsparse.spmm(a, x.cuda(), plan=plan))


@pytest.mark.parametrize("precision", ["fp16", "tf32", "bf16"])
@pytest.mark.parametrize("d", [1, 32, 45, 128, 200])
def test_scores_and_edge_values(precision: str, d: int) -> None:
    graph = random_graph(130, 170, 0.06, hubs=2, empty_rows=0.1)
    a = make(graph, "cuda", precision=precision, format="me-bcrs")
    for limit in (1, 1000):
        plan = Plan("window", tile_limit=limit)
        check_scores(a, torch.randn(130, d), torch.randn(170, d), plan=plan)
    values, dense = torch.randn(a.nnz), torch.zeros(130, 170, dtype=torch.float64)
    row, col = a.indices().cpu()
    dense[row, col] = values.double()
    x = torch.randn(170, d)
    y = gnnsparse.spmm(a, x.cuda(), values.cuda())
    assert_accurate(y.cpu(), plain_product(dense, x, precision), dense @ x.double())


@pytest.mark.parametrize("precision", ["fp16", "tf32"])
def test_agnn_and_its_gradients(precision: str) -> None:
    """The layer in the blocks of me-bcrs beside the layer over CSR rows."""
    graph = random_graph(300, 300, 0.04, weighted=False, hubs=1)
    found = []
    for name in ("me-bcrs", "auto"):
        layer = AGNNConv(precision=precision).cuda()
        x = torch.randn(300, 48, generator=torch.Generator().manual_seed(3)).cuda().requires_grad_()
        y = layer(x, make(graph, "cuda", precision=precision, format=name, values="gcn"))
        y.square().sum().backward()
        found.append((y.detach(), x.grad, layer.beta.grad))
    for ours, rows in zip(*found, strict=True):
        torch.testing.assert_close(ours, rows, rtol=2e-2, atol=2e-2 * float(rows.abs().max()))
