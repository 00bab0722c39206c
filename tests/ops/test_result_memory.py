"""Memory of large results on the CPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

import gnnsparse
from gnnsparse.ops import result_memory
from gnnsparse.ops.result_memory import KEPT_BYTES, empty_result

LIKE = torch.zeros(1)
ROWS = 1 << 15  # times 64 columns: 8 MiB in float32


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    gnnsparse.release_memory()
    yield
    gnnsparse.release_memory()


def test_it_is_used_again_when_nothing_refers_to_it() -> None:
    first = empty_result(LIKE, ROWS, 64)
    place, part = first.data_ptr(), first[5:7].t()
    del first
    second = empty_result(LIKE, ROWS, 64)
    assert second.data_ptr() != place
    del part
    third = empty_result(LIKE.half(), ROWS, 128)
    assert third.data_ptr() == place
    assert third.shape == (ROWS, 128)
    assert third.dtype == torch.float16


def test_results_of_other_sizes_do_not_take_it() -> None:
    place = empty_result(LIKE, 4 * ROWS, 64).data_ptr()
    assert empty_result(LIKE, ROWS, 64).data_ptr() != place
    assert empty_result(LIKE, 8 * ROWS, 64).data_ptr() != place
    assert empty_result(LIKE, 4 * ROWS - 9, 64).data_ptr() == place


def test_little_is_kept() -> None:
    results = [empty_result(LIKE, 8 * ROWS, 64) for _ in range(6)]
    assert 6 * results[0].nbytes > KEPT_BYTES
    del results
    kept = sum(map(len, result_memory._free))
    assert 0 < kept <= KEPT_BYTES
    assert empty_result(LIKE, 0, 64).shape == (0, 64)


@pytest.mark.usefixtures("poisoned")
def test_it_can_be_poisoned() -> None:
    empty_result(LIKE, ROWS, 64).zero_()
    assert empty_result(LIKE, ROWS, 64).isnan().all()


def test_products_keep_their_results_apart() -> None:
    graph = gnnsparse.SparseGraph.from_edge_index(torch.randint(ROWS, (2, 4 * ROWS)), ROWS)
    a = gnnsparse.prepare(graph, cache=False)
    x = torch.randn(ROWS, 64)
    results = [gnnsparse.spmm(a, x * i) for i in range(3)]
    copies = [y.clone() for y in results]
    del results[1]
    again = gnnsparse.spmm(a, x)
    for y, copy in zip([results[0], again, results[1]], copies, strict=True):
        assert torch.equal(y, copy)


def test_threads_take_different_memory() -> None:
    places: list[int] = []
    held = []

    def take() -> None:
        for _ in range(20):
            y = empty_result(LIKE, ROWS, 64)
            y[0, 0] = 1.0
        held.append(y)
        places.append(y.data_ptr())

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(places)) == 8


def test_memory_that_is_given_back_while_some_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a garbage collection, which may come at any place of the thread that takes it."""
    small, large = empty_result(LIKE, ROWS, 64), empty_result(LIKE, 4 * ROWS, 64)
    blocks = [result_memory._take(small.nbytes), result_memory._take(KEPT_BYTES)]

    class Free(list):  # type: ignore[type-arg]
        def __getitem__(self, at: int) -> object:  # type: ignore[override]
            found = super().__getitem__(at)
            while blocks:
                result_memory._give_back(blocks.pop())
            return found

    del small, large
    monkeypatch.setattr(result_memory, "_free", Free(result_memory._free))
    taken = empty_result(LIKE, 4 * ROWS, 64)
    assert taken.fill_(1.0).sum() == taken.numel()
    gnnsparse.release_memory()
    assert not result_memory._returned
