"""The defaults of every model, data set and sampler in configs/ go together."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

import train
from gnnsparse.train.sampled import check_blocks
from gnnsparse.train.tasks import TASKS
from models import MODELS
from startup import import_task
from tests.configs import CONFIGS, composed


def _names(group: str) -> list[str]:
    return sorted(Path(file).stem for file in (CONFIGS / group).glob("*.yaml"))


#: What a pair may be refused for: it is of different tasks, or steps on samples are not for it.
_LEGITIMATE = ("a data set of", "takes the whole graph alone; accepted: none", "sampler: got 'neighbor' for")


def _problem(cfg: DictConfig) -> str | None:
    """Return why a run is refused before it has data; None: it is not."""
    try:
        run = train.read_settings(cfg)
        import_task(TASKS, train.task_name(cfg)).check(run)
        if run.sampler.draws:
            check_blocks(train.check_model(cfg, 1, 1), run.sampler)
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.slow
@pytest.mark.parametrize("model", _names("model"))
def test_every_model_trains_on_every_data_set_with_every_sampler(model: str) -> None:
    taken, problems, legitimate = 0, [], _LEGITIMATE
    if MODELS[model].edge_features == "required":
        # Data sets with options that it lacks have no features of edges: it is refused with them in any case.
        legitimate += (f"{model} has no such option",)
    for dataset, sampler in itertools.product(_names("dataset"), _names("sampler")):
        if dataset == "custom":  # of which there are no defaults without a file
            continue
        cfg = composed(f"model={model}", f"dataset={dataset}", f"sampler={sampler}", "device=cpu")
        problem = _problem(cfg)
        taken += problem is None
        if problem is not None and not any(text in problem for text in legitimate):
            problems.append(f"{dataset} {sampler}: {problem}")
    assert problems == []
    assert taken


def test_chosen_fanouts_stay() -> None:
    cfg = composed("model=graphsage", "dataset=products_like", "sampler=neighbor", "sampler.fanouts=[3,2,1]")
    assert train.read_settings(cfg).sampler.fanouts == (3, 2, 1)
    assert OmegaConf.select(cfg, "sampler.fanouts") == [3, 2, 1]
