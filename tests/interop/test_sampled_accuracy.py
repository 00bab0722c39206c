"""The benchmark of accuracy on samples, on a small task: both learn it, and a layer computes the same."""

from __future__ import annotations

import pytest
import torch

from benchmarks.sampled_accuracy import (
    Peer,
    Setting,
    measured,
    model_of,
    ours,
    split_of,
    statistics_of,
    theirs,
)
from gnnsparse.interop.dgl import import_dgl
from tests.tasks import toy_task

pytest.importorskip("torch_geometric")
try:
    import_dgl()
except ImportError as error:
    pytest.skip(str(error), allow_module_level=True)

SETTING = Setting(epochs=8, fanouts=(4, 4), batch_size=32, hidden=16, dropout=0.0)


@pytest.mark.filterwarnings("ignore:Dataloader CPU affinity")  # DGL's advice
@pytest.mark.slow
def test_both_learn_a_small_task() -> None:
    dataset = split_of(toy_task(300), 1)
    assert [int(mask.sum()) for mask in (dataset.train_mask, dataset.val_mask)] == [180, 60]
    first, again = (ours(dataset, SETTING, 3, "cpu") for _ in range(2))
    assert first == again > 0.7
    assert theirs(dataset, SETTING, 3, "cpu") > 0.7  # DGL's draws differ from run to run


def test_the_peer_has_equal_weights_and_computes_the_same_on_the_whole_graph() -> None:
    dataset = split_of(toy_task(300), 1)
    peer, model = Peer(dataset, SETTING, 3, "cpu"), model_of(dataset, SETTING, 3).eval()
    peer._model.eval()
    whole = [(peer._edge_index, dataset.num_nodes)] * 2
    with torch.no_grad():
        torch.testing.assert_close(peer._layers(peer._x, whole), model(dataset.x, peer._edge_index))


def test_a_row_has_both_in_per_cent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.sampled_accuracy.load_dataset", lambda name, root: toy_task(300))
    monkeypatch.setattr("benchmarks.sampled_accuracy.SETTINGS", {"toy": SETTING})
    monkeypatch.setattr("benchmarks.sampled_accuracy.ours", lambda *_: 0.5)
    monkeypatch.setattr("benchmarks.sampled_accuracy.theirs", lambda *_: 0.25)
    found = statistics_of([0.5, 0.7])
    assert found == {"mean": 60.0, "standard_deviation": pytest.approx(10.0), "accuracies": [50.0, 70.0]}
    first, row = measured("toy", None, 2, "cpu")
    assert (first["seeds"], row["dataset"], row["seeds"]) == (1, "toy", 2)
    assert (row["ours"]["mean"], row["peer"]["accuracies"]) == (50.0, [25.0, 25.0])
