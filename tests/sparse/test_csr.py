"""What is counted in CSR arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnnsparse.formats import csr as csr_module
from gnnsparse.testing import random_graph


@given(
    rows=st.integers(1, 60),
    cols=st.integers(1, 60),
    density=st.sampled_from([0.0, 0.05, 0.5]),
    reach=st.integers(0, 70),
    part=st.sampled_from([1, 7, 1 << 24]),
    seed=st.integers(0, 2**20),
)
def test_nonzeros_near_the_diagonal(
    rows: int, cols: int, density: float, reach: int, part: int, seed: int
) -> None:
    csr = random_graph(rows, cols, density, seed=seed, empty_rows=0.3, hubs=1).csr
    found = zip(csr.row_index().tolist(), csr.indices.tolist(), strict=True)
    near = sum(abs(column - row * cols // rows) <= reach for row, column in found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csr_module, "_NEAR_PART", part)
        assert csr.count_near(reach) == near


@pytest.mark.gpu
def test_nonzeros_near_the_diagonal_on_a_gpu() -> None:
    graph = random_graph(3000, 2000, 0.02)
    assert graph.to("cuda").csr.count_near(200) == graph.csr.count_near(200)


def test_the_diagonal_of_a_large_matrix_does_not_overflow() -> None:
    """Row times columns needs more than 32 bits."""
    size = 100_000
    at = torch.arange(size, dtype=torch.int64)
    csr, _ = csr_module.coo_to_csr(at, at, size, size)
    assert csr.count_near(0) == size
    assert np.iinfo(np.int32).max < size * size
