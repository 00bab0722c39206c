"""Steps on sampled neighbours in `benchmarks.scaling`: each rank draws for its share of a step's nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.scaling_ranks import Place
from benchmarks.scaling_steps import Case, Runs, launched, stored_graph
from gnnsparse.train import SamplerConfig

__all__ = ["BATCH", "sampled"]

FANOUTS, BATCH = [15, 10, 5], 1024


def sampled(
    place: Place,
    folder: Path,
    case: Case,
    scale: float,
    steps: int,
    batch: int = BATCH,
    profile: bool = False,
) -> dict[str, Any]:
    """Trains GraphSAGE on sampled neighbours, see `launched`; each rank has the graph, features and model.

    A step takes `batch` nodes on each rank, and the ranks' gradients are added up: with more ranks an epoch
    has fewer steps. The features are where `sampler.features=auto` puts them.
    """
    dataset, _ = stored_graph(folder, case.graph, scale)
    sampler = SamplerConfig(name="neighbor", fanouts=FANOUTS, batch_size=batch * place.ranks)
    runs, found = launched(place, lambda: Runs(place, case, dataset, steps, folder, sampler), profile)
    return found | {"steps_of_epoch": runs.data.steps_per_epoch, "nodes": dataset.num_nodes}
