"""What the `gnnsparse` command says of what it does not accept."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gnnsparse.cli import main as cli


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Returns the one line that the command says of words that it refuses with status 2."""

    def line(words: str, main: Callable[[list[str]], object] = cli.main) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main(words.split())
        said = capsys.readouterr().err
        assert (stopped.value.code, said.count("\n")) == (2, 1)
        return said

    return line
