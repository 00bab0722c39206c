"""The rules of the blocked format's arrays: what convert makes meets them, and what differs does not."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from gnnsparse.formats import ARRAYS, BlockedMatrix, check_blocked
from gnnsparse.formats.csr import Csr, check_csr, check_permutation
from gnnsparse.precision import Precision
from gnnsparse.testing import random_graph
from tests.formats.conftest import CASES, converted
from tests.helpers import short_rows

#: Arrays whose content is known by checksums alone; test_packed_formats.py changes records byte by byte.
VALUES = {"values", "residual_values", "zero_ptr", "zero_cols", "packed_blocks"}


def test_every_array_has_a_rule() -> None:
    plain = {"spec", "rows", "cols", "nnz"}
    assert set(ARRAYS) == {field.name for field in fields(BlockedMatrix)} - plain


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16])
def test_a_changed_element_is_found(case: Any, precision: Precision) -> None:
    """Elements of each array in turn, set to other numbers, in and out of range."""
    graph = short_rows()
    blocked = converted(graph, case[0], precision, case[1])
    found = 0
    for name, array in blocked.arrays.items():
        if name in VALUES:
            continue
        for at in range(0, array.numel(), max(1, array.numel() // 40)):
            now = int(array[at])
            others = {now ^ 1 << at % 8} if array.dtype == torch.uint8 else {-2, 1, now + 1, now - 1, 2**30}
            for value in others - {now}:
                changed = array.clone()
                changed[at] = value
                with pytest.raises(ValueError, match=r"x\."):
                    check_blocked("x", replace(blocked, **{name: changed}), graph.csr, precision.storage)
                found += 1
    assert found > 100


@pytest.mark.parametrize("case", CASES, ids=str)
def test_arrays_of_another_matrix_are_found(case: Any) -> None:
    one, other = short_rows(3), short_rows(8)
    blocked = converted(one, case[0], Precision.FP16, case[1])
    check_blocked("x", blocked, one.csr, torch.float16)
    with pytest.raises(ValueError, match=r"x\."):
        check_blocked("x", replace(blocked, nnz=other.nnz), other.csr, torch.float16)


@pytest.mark.parametrize(
    ("precision", "other", "first"), [(Precision.FP16, torch.float32, 1), (Precision.FP32, torch.float16, 32)]
)
def test_entries_have_their_places(precision: Precision, other: torch.dtype, first: int) -> None:
    """`first`: the half word that is the place of the first entry."""
    graph = short_rows()
    blocked = converted(graph, "panel-values", precision, 32)
    assert blocked.spec.encoding == ("entries" if precision is Precision.FP16 else "word_entries")
    assert blocked.values is not None
    size, values = precision.storage.itemsize, blocked.values.clone()
    end = 1024 * size
    places = values.view(torch.int16)
    assert 0 <= int(places[first]) < end
    check_blocked("x", replace(blocked, values=values), graph.csr, precision.storage)
    for place in (end - 1, end + 1, end + size, -1, end):
        places[first] = place
        with pytest.raises(ValueError, match=r"x\.values: are not \d+ entries"):
            check_blocked("x", replace(blocked, values=values), graph.csr, precision.storage)
    with pytest.raises(ValueError, match=r"x\.values: got"):
        check_blocked("x", blocked, graph.csr, other)
    other_values = replace(blocked, values=blocked.values.to(other))
    with pytest.raises(ValueError, match=r"x\.values: are torch\.\w+; accepted in entries"):
        check_blocked("x", other_values, graph.csr, other)
    assert blocked.value_ptr is not None
    moved = blocked.value_ptr.clone()
    moved[1:] += 2
    with pytest.raises(ValueError, match=r"x\.value_ptr: has lists that are not padded to a multiple of"):
        check_blocked("x", replace(blocked, value_ptr=moved), graph.csr, precision.storage)


@pytest.mark.usefixtures("any_threads")
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 200_000])
def test_permutations(threads: int, dtype: torch.dtype, count: int) -> None:
    torch.set_num_threads(threads)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0)).to(dtype)
    check_permutation("order", order, count)
    for value in (-1, count, 2**31 - 1, int(order[0]) if count > 1 else -5) if count else ():
        wrong = order.clone()
        wrong[-1] = value
        with pytest.raises(ValueError, match=r"order: (element|repeats)"):
            check_permutation("order", wrong, count)
    with pytest.raises(ValueError, match="order: got"):
        check_permutation("order", order, count + 1)


def test_a_checked_matrix_of_another_dtype_is_refused() -> None:
    good = random_graph(10, 10, 0.3).csr
    for bad in (
        Csr(good.indptr.int(), good.indices, 10), Csr(good.indptr, good.indices.long(), 10),
        Csr(good.indptr[:0], good.indices, 10), Csr(good.indptr, good.indices.repeat(2)[::2], 10),
        Csr(good.indptr, good.indices.reshape(1, -1), 10), Csr(good.indptr, good.indices, 3),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"x\.ind"):
            check_csr("x", bad)
