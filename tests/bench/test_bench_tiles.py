"""`gnnsparse bench fit --tiles` with kernels whose times are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gnnsparse.bench import fit_command, tiles
from gnnsparse.cli.main import main
from gnnsparse.plan.gpu_records.record import load_record, record_for, using
from gnnsparse.runtime import device as device_module
from gnnsparse.runtime.timing import Timing
from gnnsparse.sparse.operand import SparseOperand
from tests.gpu_paths import H200, StandInPath

#: Microseconds of a full and a partial tile, forward and backward.
COSTS = {"panels": ((2.0, 1.0), (6.0, 2.0)), "fa4": ((1.0, 1.5), (3.0, 3.0))}


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that take the time of their tiles, of 64 heads, and one that is not there."""
    took: list[float] = []

    def attention(a: SparseOperand, q: Any, k: Any, v: Any, impl: str) -> torch.Tensor:
        if impl not in COSTS:
            raise ValueError(f"impl: {impl!r} can't run: it is not there")
        counts = a.kernels.tiles
        passes = COSTS[impl] if torch.is_grad_enabled() else COSTS[impl][:1]
        took.append(64 * sum(full * counts.full + partial * counts.partial for full, partial in passes))
        return q + k + v

    def measure(call: Any, device: Any, **options: Any) -> Timing:
        call()
        return Timing.of([took[-1] / 1000])

    monkeypatch.setattr(tiles, "attention", attention)
    monkeypatch.setattr(tiles, "measure", measure)


def test_rates_are_those_of_the_tiles(kernels: None) -> None:
    told: list[str] = []
    found = tiles.measure_tiles(torch.device("cpu"), told.append, length=640)
    assert list(found) == list(COSTS)
    for name, costs in COSTS.items():
        assert found[name].forward == pytest.approx(costs[0])
        assert found[name].backward == pytest.approx(costs[1])
    assert "blocks: impl: 'blocks' can't run: it is not there" in told


def test_the_record_keeps_the_rest(
    kernels: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = tiles.measure_tiles
    here = lambda device, tell, names: measured(torch.device("cpu"), tell, names, 640)  # noqa: E731
    monkeypatch.setattr(fit_command, "measure_tiles", here)
    monkeypatch.setattr(fit_command, "device_option", lambda name: name)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    out = tmp_path / "record.json"
    with device_module.use(StandInPath(None)):
        assert main(["bench", "fit", "--tiles", "--out", str(out)]) == 0
    found, before = load_record(out), record_for(H200)
    assert found.attention.tiles["fa4"].backward == pytest.approx((3.0, 3.0))
    assert (found.name, found.panel, found.attention.slot) == (
        before.name,
        before.panel,
        before.attention.slot,
    )
    assert "panels forward" in capsys.readouterr().out
    with device_module.use(StandInPath(None)), using(found):
        assert main(["bench", "fit", "--tiles", "panels", "--out", str(out)]) == 0
    assert load_record(out) == found  # with the rates of fa4


def test_tiles_do_not_go_with_measurements(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "fit", "--tiles", "--measured", "x.json"])
    assert "argument --tiles: it measures" in capsys.readouterr().err


def test_tiles_do_not_go_with_other_matrices(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fit_command, "device_option", lambda name: name)
    monkeypatch.setattr(fit_command, "_run_tiles", lambda *arguments: 0)
    with pytest.raises(SystemExit):
        main(["bench", "fit", "--tiles", "--keep", str(tmp_path / "x.json")])
    assert "argument --tiles: --matrix and --keep" in capsys.readouterr().err
