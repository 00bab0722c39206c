"""docs/api/compile.md: torch.compile does with each operation and layer what the table says."""

from __future__ import annotations

import pytest

from tests.docs.compile_table import CASES, COLUMNS, measure, written


def test_the_page_has_a_row_for_each_case() -> None:
    assert list(written()) == list(CASES)
    assert {len(cells) for cells in written().values()} == {len(COLUMNS)}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_row_is_what_torch_does(name: str) -> None:
    found = dict(zip(COLUMNS, measure(name), strict=True))
    said = dict(zip(COLUMNS, written()[name], strict=True))
    assert found == said, "run python -m tests.docs.compile_table"
