"""torch.compile of models with patterns."""

from __future__ import annotations

import pytest
import torch

from gnnsparse import masks
from gnnsparse.interop.transformers import sparsify
from gnnsparse.patterns.operands import MOST_OPERANDS
from tests.interop.test_transformers_torch import attention, encoder
from tests.nn.sparsified import LENGTH, WINDOW, assert_same, blocked, tokens, twins

pytestmark = [
    pytest.mark.slow,
    # torch's own tools warn about themselves.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*(TF32|TensorFloat32).*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*AccumulateGrad.*:UserWarning"),
]


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("training", [True, False])
def test_compiles_without_graph_breaks(device: str, training: bool) -> None:
    """The first call of a length may be the compiled one: its operand is made while torch traces."""
    ours, theirs = twins(encoder(1).train(training), WINDOW, device)
    compiled = torch.compile(ours, fullgraph=True, backend="inductor" if training else "aot_eager")
    for length in (LENGTH,) if training else (8, LENGTH):
        mask = blocked(device, length)
        assert_same(
            (compiled, ours), (lambda x, mask=mask: theirs(x, mask), theirs), [tokens(device, length)]
        )
    if not training:
        with torch.no_grad():
            given = tokens(device)
            assert torch.allclose(compiled(given), ours(given), atol=1e-5)


def test_compiled_code_sees_a_new_pattern_and_other_lengths() -> None:
    layer = sparsify(attention(), WINDOW)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for length in (8, 9, 8):
        given = tokens(length=length)
        assert torch.equal(compiled(given, given, given)[0], layer(given, given, given)[0])
    for pattern in ({"name": "window", "radius": 1}, masks.full):
        sparsify(layer, pattern)
        given = tokens(length=9)
        assert torch.equal(compiled(given, given, given)[0], layer(given, given, given)[0])


def test_what_compiled_code_uses_is_not_dropped() -> None:
    """Other lengths come between the forward and the backward pass, which carries the operand's handle."""
    layer = sparsify(attention(), WINDOW)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    given = tokens().requires_grad_()
    out = compiled(given, given, given)[0]
    for length in range(20, 21 + MOST_OPERANDS):
        layer(*[tokens(length=length)] * 3)
    out.sum().backward()
    assert len(layer.gnnsparse_patterns.operands) == MOST_OPERANDS + 1
    assert given.grad is not None
