"""The trainings of a study: their options, which are those of train.py, and one after another."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import lightning
import torch
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

import train
from benchmarks.pyg import with_pyg_layers
from gnnsparse.data import DatasetUnavailableError, NodeDataset
from gnnsparse.data.sources import SOURCES, Source
from gnnsparse.errors import bad_value
from gnnsparse.nn import AGNNConv, GATConv, GCNConv
from gnnsparse.train import PreparedData, fit
from gnnsparse.train.metrics import make_scores
from gnnsparse.train.tasks import TASKS, RunOptions, Task
from gnnsparse.train.tasks.node import FullGraphData, GraphBatch
from launch.checks import check_quickly
from launch.study.settings import PEERS, REFERENCE, Run, StudyOptions

__all__ = [
    "LAYERS", "DataError", "PeerData", "Trainer", "compose_all", "find_root", "runs_of", "with_dgl_layers",
]  # fmt: skip

#: How many folders below the given one are looked into: DIR/planetoid/cora/raw has three.
_DEPTH = 4


def _folders(base: Path, depth: int) -> Iterator[Path]:
    yield base
    if depth:
        with os.scandir(base) as entries:
            inner = sorted(entry.name for entry in entries if entry.is_dir() and entry.name[0] != ".")
        for name in inner:
            yield from _folders(base / name, depth - 1)


def _is_named(folder: Path, base: Path, source: Source) -> bool:
    """Return whether a folder between `base` and `folder` has the name of the data set."""
    names = {source.name, *(part.lower() for part in PurePosixPath(source.place).parts if part != "raw")}
    return any(part.lower() in names for part in folder.relative_to(base).parts)


def find_root(name: str, base: Path) -> Path | None:
    """Find the folder with all raw files of a published data set, at most four levels below `base`.

    Data sets whose files have equal names (flickr and yelp) are told apart by the name of a folder.

    Args:
        name: name of the data set.
        base: the folder to look in.

    Returns:
        The folder; None if the data set is not a published one.

    Raises:
        ValueError: no folder has all files, or several have them.
        OSError: a folder can't be read.
    """
    source = SOURCES.get(name)
    if source is None:
        return None
    found = [
        folder for folder in _folders(base, _DEPTH) if all((folder / file).is_file() for file in source.files)
    ]
    named = [folder for folder in found if _is_named(folder, base, source)]
    chosen = named or found
    if len(chosen) == 1:
        return chosen[0]
    if chosen:
        where = ", ".join(map(str, chosen))
        raise ValueError(f"data: several folders have the files of {name} ({where}); accepted: one of them")
    raise ValueError(f"data: no folder in {base} has all raw files of {name}: {', '.join(source.files)}")


class PeerData(FullGraphData):
    """FullGraphData in fp32 with a graph of another library in place of the operand.

    Args:
        dataset: the graph with its features, labels and split.
        device: the device for the features, the labels and the graph.
        make_graph: makes the graph of an edge_index, int64 [2, edges], source over target, and the number of
            nodes.
    """

    def __init__(
        self, dataset: NodeDataset, device: torch.device | str, make_graph: Callable[[torch.Tensor, int], Any]
    ) -> None:
        self._make_graph = make_graph
        super().__init__(dataset, values=None, device=device)

    def _on_device(self, adj: Any) -> GraphBatch:
        csr = self.dataset.graph.csr
        edge_index = torch.stack([csr.indices.long(), csr.row_index()]).to(self.device)
        return replace(super()._on_device(adj), adj=self._make_graph(edge_index, self.dataset.num_nodes))


def _edge_index(edge_index: torch.Tensor, nodes: int) -> torch.Tensor:
    return edge_index


def _dgl_graph(edge_index: torch.Tensor, nodes: int) -> Any:
    """Make a DGL graph in which every node has one self-loop, as the layers here and PyG's add them."""
    from gnnsparse.interop.dgl import import_dgl

    dgl = import_dgl()
    graph = dgl.graph((edge_index[0], edge_index[1]), num_nodes=nodes)
    return dgl.add_self_loop(dgl.remove_self_loop(graph))


class _DglGCNConv(torch.nn.Module):
    def __init__(self, conv: GCNConv) -> None:
        super().__init__()
        import dgl.nn.pytorch as dglnn

        self.conv = dglnn.GraphConv(conv.in_channels, conv.out_channels, norm="both")
        ours = conv.state_dict()
        self.conv.load_state_dict({"weight": ours["lin.weight"].T, "bias": ours["bias"]})

    def forward(self, x: torch.Tensor, graph: Any) -> torch.Tensor:
        return self.conv(graph, x)


class _DglAGNNConv(torch.nn.Module):
    def __init__(self, conv: AGNNConv) -> None:
        super().__init__()
        import dgl.nn.pytorch as dglnn

        self.conv = dglnn.AGNNConv(learn_beta=conv.requires_grad)
        with torch.no_grad():
            self.conv.beta.copy_(conv.beta)

    def forward(self, x: torch.Tensor, graph: Any) -> torch.Tensor:
        return self.conv(graph, x)


class _DglGATConv(torch.nn.Module):
    def __init__(self, conv: GATConv) -> None:
        super().__init__()
        import dgl.nn.pytorch as dglnn

        self.concat = conv.concat
        width, heads = conv.out_channels, conv.heads
        self.conv = dglnn.GATConv(
            conv.in_channels, width, heads, attn_drop=conv.dropout, negative_slope=conv.negative_slope,
            bias=False,
        )  # fmt: skip
        ours = conv.state_dict()
        names = {"fc.weight": "lin.weight", "attn_l": "att_src", "attn_r": "att_dst"}
        self.conv.load_state_dict({theirs: ours[name] for theirs, name in names.items()})
        # DGL adds a bias to each head before they are averaged; these layers and PyG's add one afterwards.
        self.bias = torch.nn.Parameter(ours["bias"].clone())

    def forward(self, x: torch.Tensor, graph: Any) -> torch.Tensor:
        out = self.conv(graph, x)
        return (out.flatten(1) if self.concat else out.mean(1)) + self.bias


_DGL_LAYERS: dict[type[torch.nn.Module], Callable[[Any], torch.nn.Module]] = {
    GCNConv: _DglGCNConv,
    AGNNConv: _DglAGNNConv,
    GATConv: _DglGATConv,
}


def with_dgl_layers(model: torch.nn.Module) -> torch.nn.Module:
    """Replace the graph layers of a model by DGL's with the same parameters, in place."""
    with torch.random.fork_rng(devices=[]):  # what DGL draws is replaced
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if type(child) in _DGL_LAYERS:
                    setattr(parent, name, _DGL_LAYERS[type(child)](child))
    return model


#: Peer -> what makes its graph of an edge_index and a number of nodes, and what replaces a model's layers.
LAYERS: dict[
    str,
    tuple[Callable[[torch.Tensor, int], Any], Callable[[torch.nn.Module], torch.nn.Module]],
] = {"pyg": (_edge_index, with_pyg_layers), "dgl": (_dgl_graph, with_dgl_layers)}


#: Options of every run: nothing is written by it, and the study has the progress bar.
_QUIET = ("trainer.progress=false", "trainer.checkpoint=false", "trainer.logger=none")


class DataError(RuntimeError):
    """A data set can't be loaded; the message says why."""


def compose_all(study: StudyOptions) -> dict[tuple[str, str], DictConfig]:
    """Compose and check the options of each (data set, model), in the order of their training.

    Raises:
        TypeError: an option is of another type.
        ValueError: an option is not accepted.
        MemoryError: a model does not fit into memory.
    """
    found = {}
    with initialize_config_dir(str(train.CONFIGS), version_base="1.3"):
        for dataset in study.datasets:
            for model in study.models:
                names = [f"dataset={dataset}", f"model={model}", f"precision={REFERENCE}"]
                try:
                    cfg = compose("train", [*names, *_QUIET, *study.options])
                except (HydraException, OmegaConfBaseException) as error:
                    raise ValueError(f"{model} on {dataset}: {' '.join(str(error).split())}") from error
                check_quickly(cfg)
                task = TASKS[TASKS.check(train.task_name(cfg))]
                task.check(train.read_settings(cfg))
                if study.metric is not None and task.name != "node":
                    bad_value(
                        "metric", f"got {study.metric!r} for {dataset}; accepted: null, as it has no nodes"
                    )
                found[dataset, model] = cfg
    return found


def runs_of(study: StudyOptions) -> Iterator[Run]:
    """Yield the runs in an order in which those with equal data follow one another."""
    for dataset in study.datasets:
        for model in study.models:
            for variant in study.variants:
                for seed in range(study.seeds):
                    yield Run(dataset, model, variant, seed)


class Trainer:
    """Trains the runs of a study; data are kept as long as runs follow that use them.

    Args:
        study: the options of the study.
        configs: what `compose_all` returned.
    """

    def __init__(self, study: StudyOptions, configs: dict[tuple[str, str], DictConfig]) -> None:
        self._study, self._configs = study, configs
        self._dataset: tuple[Any, Any] = (None, None)
        self._data: tuple[Any, PreparedData | None] = (None, None)

    def config(self, run: Run) -> DictConfig:
        """Return the options of a run."""
        cfg = copy.deepcopy(self._configs[run.dataset, run.model])
        cfg.seed = run.seed
        cfg.precision = REFERENCE if run.variant in PEERS else run.variant
        return cfg

    def options(self, run: Run) -> dict[str, Any]:
        """Return the options that a kept result must have been obtained with, as plain values."""
        plain: Any = OmegaConf.to_container(self.config(run), resolve=True)
        data = None if self._study.data is None else str(self._study.data)
        return {**plain, "variant": run.variant, "metric": self._study.metric, "data": data}

    def train(self, run: Run) -> dict[str, Any]:
        """Train a run, and return its scores, times and memory as plain values.

        Besides the errors of `fit` it raises those of memory that is short.

        Raises:
            DataError: the data set can't be loaded.
        """
        cfg = self.config(run)
        options = train.read_settings(cfg)
        task = TASKS[train.task_name(cfg)]
        if run.variant in PEERS and PEERS[run.variant].on_cpu:
            options = dataclasses.replace(options, device=torch.device("cpu"))
        dataset = self._load(cfg, task)
        more = task.model_options(dataset)
        train.check_model(cfg, *task.model_sizes(dataset), **more)
        data = self._prepare(run, task, dataset, options)
        reset_peak_memory()
        lightning.seed_everything(run.seed, verbose=False)
        model = train.build_model(cfg, *task.model_sizes(dataset), **more)
        if run.variant in PEERS:
            model = LAYERS[run.variant][1](model)
        module = task.make_module(model, data, options)
        result = fit(module, data, options.trainer)
        return {
            "dataset": run.dataset, "model": run.model, "variant": run.variant, "seed": run.seed,
            "device": options.device.type, "score": module.score_name, **dataclasses.asdict(result),
        }  # fmt: skip

    def _load(self, cfg: DictConfig, task: Task[Any, Any]) -> Any:
        key = (cfg.dataset.name, train.options_of(cfg.dataset))
        if self._dataset[0] != key:
            self._dataset, self._data = (None, None), (None, None)
            try:
                self._dataset = (key, self._read(*key, task))
            except DatasetUnavailableError as error:
                raise DataError(f"{error} (in a study: data=DIR)") from error
            except (ValueError, TypeError, ImportError, OSError) as error:
                raise DataError(str(error)) from error
        return self._dataset[1]

    def _read(self, name: str, options: dict[str, Any], task: Task[Any, Any]) -> Any:
        if self._study.data is not None and (root := find_root(name, self._study.data)):
            options = {**options, "root": str(root)}
        dataset = task.load(name, options)
        if self._study.metric is not None:
            dataset = dataclasses.replace(dataset, metric=self._study.metric)
            make_scores(dataset)  # raises if the metric does not go with the labels
        return dataset

    def _prepare(self, run: Run, task: Task[Any, Any], dataset: Any, options: RunOptions) -> PreparedData:
        """Return the data module, that of the run before if it differs in the seed of the weights alone."""
        values = (options.values, options.preprocess, options.device, task.identity(options))
        key = (run.dataset, run.variant, values)
        kept, data = self._data
        if data is None or kept != key:
            self._data = (None, None)  # its memory is free before the next one takes some
            if run.variant in PEERS:
                data = PeerData(dataset, options.device, LAYERS[run.variant][0])
            else:
                data = task.make_data(dataset, options)
            self._data = (key, data)
        return data


def reset_peak_memory() -> None:
    """Make the largest resident size of the process that of now, where Linux allows it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass  # the size is then the largest since the process began
