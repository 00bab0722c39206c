"""The CUDA source that gathers rows of features, run on the CPU: every width, place and number of copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnsparse.sampling import FEATURE_DTYPES, FeatureStore
from tests import emulated
from tests.gpu_paths import RunningPath


def features(rows: int, width: int) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(width))


@pytest.mark.parametrize("dtype", FEATURE_DTYPES)
@pytest.mark.parametrize("width", [1, 3, 7, 8, 100, 2100])
def test_every_place_has_the_same_rows(dtype: str, width: int, copyless: RunningPath) -> None:
    x = features(60, width)
    rows = torch.randint(60, (333,), generator=torch.Generator().manual_seed(1))
    want = FeatureStore(x, "device", dtype=dtype)._format
    want = want.decode(want.encode(x))[rows]  # what no kernel has touched
    uses = torch.arange(60) * 7 % 60
    for placement, share in (("device", 0.0), ("pinned", 0.0), ("pinned", 0.25), ("pinned", 1.0)):
        store = FeatureStore(x, placement, dtype=dtype, uses=uses, cache_share=share)
        assert store.cached_rows == int(60 * share)
        copyless.called.clear()
        assert torch.equal(store.gather(rows), want)
        assert copyless.called == {"cuda_gather_rows"}
        assert store.gather(rows[:0]).shape == (0, width)
        assert torch.equal(store.whole()[rows], want)
    if dtype != "fp8":
        assert torch.equal(FeatureStore(x, "host", dtype=dtype).gather(rows), want)


@settings(max_examples=25)
@given(st.data())
def test_rows_of_any_bytes(late: Any, data: st.DataObject) -> None:
    """Also where rows begin at odd addresses, so that vectors are shorter than a row's bytes allow."""
    total, width = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 70))
    shift, kept = data.draw(st.integers(0, 16)), data.draw(st.integers(0, total))
    wanted = torch.tensor(data.draw(st.lists(st.integers(0, total - 1), max_size=50)), dtype=torch.int64)
    rows = torch.randint(256, (total * width + shift,), dtype=torch.uint8)[shift:].view(total, width)
    order = torch.randperm(total)[:kept]
    place = torch.full((total,), -1, dtype=torch.int32)
    place[order] = torch.arange(kept, dtype=torch.int32)
    copies = rows[order].contiguous()
    if kept:
        rows = rows.clone()
        rows[order] = 0  # is not read
    out = torch.zeros(len(wanted), width, dtype=torch.uint8)
    with emulated.running(late) as path:
        path.cuda_gather_rows(rows, copies, place, wanted, out, width, 0)
    right = rows.clone()
    right[order] = copies
    assert torch.equal(out, right[wanted])


def test_a_row_that_is_not_there_is_nan(copyless: RunningPath) -> None:
    for dtype in FEATURE_DTYPES:
        store = FeatureStore(features(5, 9), "pinned", dtype=dtype, uses=torch.ones(5))
        found = store.gather(torch.tensor([4, 5, -1, 0, 2**40]))
        assert found.isnan().all(1).tolist() == [False, True, True, False, True]


def test_it_says_what_the_gpu_keeps(copyless: RunningPath) -> None:
    x = features(100, 4)
    store = FeatureStore(x, "pinned", uses=torch.arange(100), cache_share=0.2)
    assert store.explain().splitlines()[1:] == [
        "placement: pinned, as it was asked for",
        "copies on the GPU: 20 of the rows, with 36.2% of the uses",
    ]
    assert store.device_bytes == 20 * 16 + 100 * 4
    assert FeatureStore(x, "pinned").explain().endswith("copies on the GPU: 0 of the rows")
    assert FeatureStore(x).placement == "device"
    assert FeatureStore(x).device_bytes == x.nbytes


def call(path: RunningPath) -> Callable[..., None]:
    def gather(**changed: Any) -> None:
        given = {
            "rows": torch.zeros(4, 8, dtype=torch.uint8), "kept": None, "place": None,
            "wanted": torch.zeros(3, dtype=torch.int64), "out": torch.zeros(3, 8, dtype=torch.uint8),
            "row_bytes": 8, "stream": 0,
        }  # fmt: skip
        path.cuda_gather_rows(**{**given, **changed})

    return gather


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"row_bytes": 0}, "row_bytes: must be at least 1"),
        ({"row_bytes": 2**31}, r"row_bytes: must be below 2\^31"),
        ({"rows": torch.zeros(4, 8)}, "rows: has float32"),
        ({"wanted": torch.zeros(3, dtype=torch.int32)}, "wanted: has int32"),
        ({"out": torch.zeros(2, 8, dtype=torch.uint8)}, "out: has 16 bytes"),
        ({"place": torch.zeros(3, dtype=torch.int32)}, "place: has 12 bytes"),
        ({"place": torch.zeros(4)}, "place: has float32"),
    ],
)
def test_wrong_arguments_are_named(changed: dict[str, Any], says: str, copyless: RunningPath) -> None:
    call(copyless)()
    with pytest.raises(ValueError, match=says):
        call(copyless)(**changed)
