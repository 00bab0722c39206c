"""FeatureStore: the same rows from every place, what it chooses and why, what it refuses."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnsparse.sampling import FEATURE_DTYPES, FeatureStore, NeighborSampler
from gnnsparse.sampling.features import Choice, Room, cached_rows, choose
from gnnsparse.testing import random_graph
from tests import emulated
from tests.gpu_paths import RunningPath
from tests.sampling.conftest import Place

GB = 10**9
ROWS, WIDTH = 500, 37


def features(dtype: torch.dtype = torch.float32, rows: int = ROWS, width: int = WIDTH) -> torch.Tensor:
    draw = torch.Generator().manual_seed(3)
    scale = torch.logspace(-20, 4, rows, dtype=torch.float64)[:, None]
    return (torch.randn(rows, width, generator=draw) * scale.clamp(min=1e-6)).to(dtype)


def numbers() -> torch.Tensor:
    """Numbers of rows with repeats, in no order."""
    return torch.randint(ROWS, (700,), generator=torch.Generator().manual_seed(4))


def saved(folder: Path, x: torch.Tensor) -> Path:
    np.save(folder / "x.npy", x.numpy())
    return folder / "x.npy"


@pytest.mark.parametrize("dtype", FEATURE_DTYPES)
@pytest.mark.parametrize("width", [1, 3, 7, 8, 100, 602, 2100])
def test_every_place_has_the_same_rows(dtype: str, width: int, place: Place, tmp_path: Path) -> None:
    x, rows, uses = features(rows=60, width=width), numbers() % 60, torch.arange(60) * 7 % 60
    eight = FeatureStore(x, "device", dtype="fp8")._format
    want = eight.decode(eight.encode(x)) if dtype == "fp8" else x.to(FEATURE_DTYPES[dtype])
    file, on_gpu = saved(tmp_path, x), place.device == "cuda"
    with place.running() as path:
        sources: list[tuple[Any, str, float]] = [(x, "device", 0.0)]
        if path is not None or on_gpu:
            sources += [*((x, "pinned", share) for share in (0.0, 0.25, 1.0)), (file, "pinned", 0.0)]
        if dtype != "fp8":
            sources += [(x, "host", 0.0), (file, "host", 0.0)]
        for source, placement, share in sources:
            options: dict[str, Any] = {"device": place.device, "dtype": dtype, "uses": uses}
            store = FeatureStore(source, placement, cache_share=share, **options)
            assert (store.placement, store.shape, store.dtype) == (placement, (60, width), want.dtype)
            assert store.cached_rows == int(60 * share)
            if path is not None:
                path.called.clear()
            with torch.cuda.stream(torch.cuda.Stream()) if on_gpu else nullcontext():
                found = store.gather(rows.to(place.device))
                assert found.device.type == place.device
                assert torch.equal(found.cpu(), want[rows])
            assert path is None or path.called == (set() if placement == "host" else {"cuda_gather_rows"})
            assert store.gather(rows[:0].to(place.device)).shape == (0, width)
            assert torch.equal(store.whole().cpu(), want)
        del store  # while its path is in use


@pytest.mark.gpu
def test_pinned_rows_outlive_a_store_that_is_dropped() -> None:
    x, rows = torch.randn(200_000, 128), torch.randint(200_000, (400_000,), device="cuda")
    store = FeatureStore(x, "pinned", device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        found = store.gather(rows)
        del store
        torch.empty(x.numel(), pin_memory=True).fill_(-1)  # takes the memory that was given back
    torch.cuda.synchronize()
    assert torch.equal(found.cpu(), x[rows.cpu()])


def test_a_file_is_mapped_and_not_read(tmp_path: Path) -> None:
    x, rows = features(torch.float16), numbers()
    file = saved(tmp_path, x)
    for source in (file, str(file), np.load(file, mmap_mode="r"), np.load(file)):
        for placement in ("auto", "device", "host"):
            store = FeatureStore(source, placement)
            assert store.dtype == torch.float16
            assert torch.equal(store.gather(rows), x[rows])
    store, kept = FeatureStore(file, "host"), FeatureStore(file, "device")
    changed = np.load(file, mmap_mode="r+")
    changed[5] = 1
    changed.flush()
    row = torch.tensor([5])
    assert torch.equal(store.gather(row), torch.ones(1, WIDTH).half())
    assert torch.equal(kept.gather(row), x[row])  # was read


def test_eight_bits_are_within_half_a_step_of_each_row() -> None:
    x = torch.cat([features(), torch.zeros(1, WIDTH), torch.full((1, WIDTH), 65504.0)])
    store = FeatureStore(x, dtype="fp8")
    found = store.gather(torch.arange(len(x)))
    assert found.dtype == torch.float16
    peak = x.abs().amax(1, keepdim=True)
    # e4m3 has 3 bits behind the leading one, and steps of 2^-9 below 2^-6; float16 has its own.
    step = torch.maximum(x.abs() * 2.0**-4, peak / 448 * 2.0**-10) + x.abs() * 2.0**-11 + 2.0**-25
    assert bool(((found.float() - x).abs() <= step).all())
    assert torch.equal(store.whole(), found)
    assert torch.equal(found[-1], torch.full((WIDTH,), 65504.0).half())


def test_features_in_memory_are_not_copied() -> None:
    x = features()
    store = FeatureStore(x)
    assert store.whole().data_ptr() == x.data_ptr()
    assert FeatureStore(x.T.contiguous().T).gather(numbers()).equal(x[numbers()])


def test_the_first_place_with_room_is_chosen() -> None:
    def chosen(rows: int, device: int | None, host: int, in_file: bool = False) -> Choice:
        return choose(rows, 1000, Room(device, host), in_file=in_file)

    assert chosen(10**6, 2 * GB, 0).placement == "device"
    assert chosen(10**6 + 1, 2 * GB, 8 * GB).placement == "pinned"
    assert chosen(10**6 + 1, 2 * GB, 2 * GB).placement == "host"  # 2^30 bytes are pinned
    assert chosen(10**6, None, 0).placement == "device"
    assert chosen(10**6, None, 2 * GB, in_file=True).placement == "device"
    assert chosen(10**6 + 1, None, 2 * GB, in_file=True).placement == "host"
    more = "10000000 rows of 1000 bytes, 10.0 GB, are more than 50% of the 4.0 GB that are free on the GPU"
    pinned = "that are free on the host when they are pinned"
    assert chosen(10**7, 4 * GB, 100 * GB).reason == f"{more}, and at most 50% of the 100.0 GB {pinned}"
    right = f"{more}, and more than 50% of the 30.0 GB {pinned}; they are on the host"
    assert chosen(10**7, 4 * GB, 30 * GB).reason == right
    assert cached_rows(1000, 100, 0.1, Room(GB, 0)) == 100
    assert cached_rows(10**9, 100, 0.1, Room(GB, 0)) == GB // 4 // 100
    assert cached_rows(1000, 100, 0.1, Room(None, 0)) == 0


def test_it_says_where_features_are() -> None:
    first, second = FeatureStore(features()).explain().splitlines()
    assert first == "features: 500 x 37 in fp32, 74.0 kB"
    why = "500 rows of 148 bytes, 74.0 kB, are in the memory of the device, the CPU, already"
    assert second == f"placement: device, as {why}"
    assert FeatureStore(features(), "host").explain().endswith("placement: host, as it was asked for")


def test_source_degrees_count_the_rows_of_each_source(device: str) -> None:
    graph = random_graph(60, 60, 0.1, hubs=2, seed=1)
    found = NeighborSampler(graph, [3], device=device).source_degrees
    assert torch.equal(found.cpu(), (torch.from_numpy(graph.to_scipy().toarray()) != 0).sum(0))


@pytest.mark.parametrize(
    ("changed", "error", "says"),
    [
        ({"x": 3}, TypeError, "x: got int"),
        ({"x": torch.zeros(3, 2, dtype=torch.int64)}, TypeError, "x: got a tensor of dtype torch.int64"),
        ({"x": np.zeros((3, 2))}, TypeError, "x: got an array of dtype float64"),
        ({"x": np.zeros((3, 2), dtype=np.float32)[::-1]}, ValueError, "x: is an array with a reversed axis"),
        ({"x": torch.zeros(3)}, ValueError, r"x: has shape \(3,\)"),
        ({"x": torch.zeros(3, 0)}, ValueError, r"x: has shape \(3, 0\)"),
        ({"x": "none.npy"}, ValueError, "x: none.npy can't be mapped"),
        ({"placement": "gpu"}, ValueError, "placement: got 'gpu'; accepted: auto, device, pinned, host"),
        ({"placement": "pinned"}, ValueError, "placement: got 'pinned' on the CPU"),
        ({"dtype": "fp64"}, ValueError, "dtype: got 'fp64'; accepted: fp32, fp16, bf16, fp8"),
        ({"dtype": "fp8", "placement": "host"}, ValueError, "dtype: got 'fp8' with placement 'host'"),
        ({"dtype": "fp8", "x": torch.tensor([[1e5]])}, ValueError, "x: has 100000.0"),
        ({"dtype": "fp8", "x": torch.tensor([[torch.nan]])}, ValueError, "x: has nan"),
        ({"uses": [1, 2]}, TypeError, "uses: got list"),
        ({"uses": torch.ones(3)}, ValueError, r"uses: has shape \(3,\); accepted: \(500,\)"),
        ({"cache_share": 1.5}, ValueError, "cache_share: got 1.5"),
        ({"cache_share": True}, TypeError, "cache_share: got bool"),
    ],
)
def test_wrong_arguments_are_named(changed: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        FeatureStore(**{"x": features(), **changed})


def test_files_that_are_no_arrays_are_refused(tmp_path: Path) -> None:
    for name, content in (("empty.npy", b""), ("text.npy", b"not an array"), ("short.npy", b"\x93NUMPY\x01")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"x: .*{name} can't be mapped"):
            FeatureStore(tmp_path / name)
    np.save(tmp_path / "objects.npy", np.array([[None]]))
    with pytest.raises(ValueError, match="can't be mapped"):
        FeatureStore(tmp_path / "objects.npy")


@pytest.mark.parametrize("placement", ["device", "host"])
def test_wrong_rows_are_refused(placement: str) -> None:
    store, empty = FeatureStore(features(), placement), FeatureStore(torch.zeros(0, 5), placement)
    assert empty.gather(torch.zeros(0, dtype=torch.int64)).shape == (0, 5)
    for of, rows, error, says in (
        (store, torch.zeros(3), TypeError, r"rows: got a tensor of dtype torch\.float32"),
        (store, torch.zeros(1, 3).long(), ValueError, r"rows: has shape \(1, 3\)"),
        (store, torch.zeros(3, device="meta").long(), ValueError, "rows: is on meta; accepted: cpu"),
        (store, torch.tensor([ROWS]), IndexError, None),
        (empty, torch.tensor([0]), IndexError, "rows: got numbers of rows; accepted: none, as the store has"),
    ):
        with pytest.raises(error, match=says):
            of.gather(rows)


# The CUDA source that gathers rows.


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
        store = FeatureStore(features(rows=5, width=9), "pinned", dtype=dtype, uses=torch.ones(5))
        found = store.gather(torch.tensor([4, 5, -1, 0, 2**40]))
        assert found.isnan().all(1).tolist() == [False, True, True, False, True]


def test_it_says_what_the_gpu_keeps(copyless: RunningPath) -> None:
    x = features(rows=100, width=4)
    store = FeatureStore(x, "pinned", uses=torch.arange(100), cache_share=0.2)
    assert store.explain().splitlines()[1:] == [
        "placement: pinned, as it was asked for",
        "copies on the GPU: 20 of the rows, with 36.2% of the uses",
    ]
    assert store.device_bytes == 20 * 16 + 100 * 4
    assert FeatureStore(x, "pinned").explain().endswith("copies on the GPU: 0 of the rows")
    assert FeatureStore(x).placement == "device"
    assert FeatureStore(x).device_bytes == x.nbytes


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
def test_wrong_arguments_of_a_kernel_are_named(
    changed: dict[str, Any], says: str, copyless: RunningPath
) -> None:
    right = {
        "rows": torch.zeros(4, 8, dtype=torch.uint8), "kept": None, "place": None,
        "wanted": torch.zeros(3, dtype=torch.int64), "out": torch.zeros(3, 8, dtype=torch.uint8),
        "row_bytes": 8, "stream": 0,
    }  # fmt: skip
    copyless.cuda_gather_rows(**right)
    with pytest.raises(ValueError, match=says):
        copyless.cuda_gather_rows(**{**right, **changed})
