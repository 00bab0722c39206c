"""Trains a model on a data set: python train.py model=gcn dataset=cora precision=fp16 device=auto seed=0.

configs/ has the options and their defaults, and `python train.py --help` shows them. With `-m` and lists of
values all combinations run, and with `experiment=NAME` a study of configs/experiment
(docs/precision-study.md). A run writes result.json, logs and checkpoints to its own folder below outputs/,
or to the folder of hydra.run.dir=DIR, which no other run may have. `resume=last` or `resume=FOLDER` goes on
with a run or a sweep. The exit status is 0, or 1 for options that hydra refuses and for a sweep in which a
run failed, 2 for errors that this program reports, 130 after Ctrl-C and 143 after SIGTERM.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from startup import import_task, importing, what_to_install

try:
    import hydra
    from hydra.core.config_store import ConfigStore
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import MISSING, DictConfig, OmegaConf

    from gnnsparse_cli import wait_passively
except ImportError as error:
    if __name__ != "__main__":
        raise
    print(f"train.py: {what_to_install(error) or error}", file=sys.stderr)
    sys.exit(2)

from launch.checks import check_quickly, choices, section, to_dict
from launch.console import PROBLEMS, StoppedError, command_to_resume, exit_status, line_of, raising, refuse
from launch.ranks import Leader, follow, is_follower, leave, ranks_of
from launch.sweeps import Sweep, claimed, resume_of
from launch.words import (
    SWEEP,
    UnknownWordError,
    check_words,
    checkpoint_of,
    go_on,
    is_sweep,
    mark_of,
    names_experiment,
)

if TYPE_CHECKING:
    import torch

    from gnnsparse.train import FitResult, PreparedData, TaskModule
    from gnnsparse.train.tasks import RunOptions, Task
    from gnnsparse.train.trained import ModelRecipe

CONFIGS = Path(__file__).resolve().parent / "configs"
# Options of a run as a part of a folder's name, whatever characters they have.
OmegaConf.register_new_resolver(
    "as_name", lambda *parts: "-".join(re.sub(r"[^\w.]+", "_", str(part)) for part in parts), replace=True
)


def accepted(option: str, usual: str) -> str:
    """Return the names that an option accepts, for --help: those that the library has, if it is imported."""
    return ", ".join(choices()[option]) if "gnnsparse.data" in sys.modules else usual


OmegaConf.register_new_resolver("accepted", accepted, replace=True)


def check_line(words: Sequence[str]) -> None:
    """Refuse words of the command line that name no option and no choice; add registered ones to hydra.

    What configs/ does not declare may be registered all the same. Only where the sources have its name is the
    library imported, which takes seconds, to look.

    Raises:
        ValueError: a word is refused.
    """
    try:
        check_words(words, CONFIGS, {})
        return
    except UnknownWordError as error:
        if "gnnsparse.data" not in sys.modules and not is_in_sources(error.name):
            raise
    offer_registered()
    from gnnsparse.data import CATALOG
    from models import MODELS

    # Words beside `resume` may be options of the run's own model and data set.
    check_words(words, CONFIGS, {"dataset": CATALOG, "model": MODELS})


def sources() -> Iterator[str]:
    """Yield the content of each file in which something is registered that options name."""
    package = importlib.util.find_spec("gnnsparse")
    places = [CONFIGS.parent / "models"]
    for place in (package and package.submodule_search_locations) or ():
        places += [Path(place, folder) for folder in ("data", "formats", "preprocess")]
    return (file.read_text() for place in places for file in place.rglob("*.py"))


def is_in_sources(name: str) -> bool:
    """Return whether one of the files has a name as a word."""
    word = re.compile(rf"\b{re.escape(name)}\b")
    return any(map(word.search, sources()))


def registers_more() -> bool:
    """Return whether something is registered that --help can list after an import of the library alone."""
    if "gnnsparse.data" in sys.modules:
        return True
    known = {file.stem for file in CONFIGS.rglob("*.yaml")}
    known |= {*re.findall(r"[\w-]+", (CONFIGS / "train.yaml").read_text())}
    kinds = "dataset|model|preset|reordering"
    call = re.compile(rf"^@?register_(?:{kinds})\((.+?)\)(?:  #.*)?$", re.MULTILINE | re.DOTALL)
    calls = [found for text in sources() for found in call.findall(text) if "public=False" not in found]
    names = [re.search(r"[\"']([\w-]+)", found) for found in calls]
    return not {name[1] for name in names if name} <= known


def offer_registered() -> None:
    """Add registered data sets and models without a file in configs/ to hydra.

    It imports the library, which takes about two seconds, but no module that only training needs.
    """
    with importing():
        from gnnsparse.data import CATALOG
        from models import MODELS

    for group, entries in (("dataset", CATALOG), ("model", MODELS)):
        for name, entry in entries.items():
            if not (CONFIGS / group / f"{name}.yaml").exists():
                node = {"name": name, **_defaults(entry.options)}
                ConfigStore.instance().store(name, node, group, provider="gnnsparse")


def _defaults(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options in hydra's form, in which those without a default are marked as missing."""
    from models.registry import REQUIRED

    return {name: MISSING if default is REQUIRED else default for name, default in options.items()}


def options_of(group: DictConfig) -> dict[str, Any]:
    """Return the options of a group without its name."""
    return {key: value for key, value in to_dict(group).items() if key != "name"}


def task_name(cfg: DictConfig) -> str:
    """Return the task that the model and the data set are for; raise ValueError if they differ."""
    from gnnsparse.data import CATALOG
    from gnnsparse.errors import naming
    from models import MODELS

    names = [OmegaConf.select(cfg, f"{group}.name") for group in ("dataset", "model")]
    with naming("dataset"):
        entry = CATALOG[CATALOG.check(names[0])]
    accepted = MODELS[MODELS.check(names[1])].tasks
    with naming("dataset"):
        asked = OmegaConf.select(cfg, "dataset.task")
        task = asked if asked in entry.tasks else entry.task
        if entry.also and (task != asked or task not in accepted):  # links may be those of a typed graph
            task = task_of(load_dataset(OmegaConf.to_yaml(cfg.dataset, resolve=True)))
    if task not in accepted:
        fitting = ", ".join(name for name, model in MODELS.items() if task in model.tasks)
        raise ValueError(
            f"model: got {cfg.model.name} for {cfg.dataset.name}, a data set of {task}s; accepted: {fitting}"
        )
    return task


@functools.lru_cache(maxsize=1)
def load_dataset(group: str) -> Any:
    """Load a data set whose files say which task it is for, one time for all that asks; `group` is YAML."""
    from gnnsparse.data.catalog import load_entry

    options: Any = OmegaConf.to_container(OmegaConf.create(group))
    return load_entry(options.pop("name"), options)


def task_of(dataset: Any) -> str:
    """Return the task that a data set is of."""
    from gnnsparse.data import EdgeDataset, GraphDataset, LinkDataset, TypedLinkDataset, TypedNodeDataset

    kinds = {
        GraphDataset: "graph", EdgeDataset: "edge", LinkDataset: "link",
        TypedNodeDataset: "typed_node", TypedLinkDataset: "typed_link",
    }  # fmt: skip
    return next((task for kind, task in kinds.items() if isinstance(dataset, kind)), "node")


def build_model(cfg: DictConfig, in_channels: int, out_channels: int, **more: Any) -> torch.nn.Module:
    """Build the model that the options describe, with more options that the data set decides."""
    from gnnsparse.errors import bad_value, naming
    from models import MODELS

    model, options = MODELS[cfg.model.name].for_task(task_name(cfg)), options_of(cfg.model)
    for name in options:
        if name not in model.options:
            bad_value(
                f"model.{name}", f"{cfg.model.name} has no such option; accepted: {', '.join(model.options)}"
            )
    with naming("model"):
        return model.build(in_channels, out_channels=out_channels, **{**options, **more})


def check_model(cfg: DictConfig, in_channels: int, out_channels: int, **more: Any) -> torch.nn.Module:
    """Refuse wrong options of the model, and a model that does not fit into memory, without making it.

    Returns:
        The model, of tensors without memory.

    Raises:
        TypeError: an option is of another type.
        ValueError: an option is out of range, or there is no such option.
        MemoryError: weights, gradients and the optimiser's moments need more memory than there is.
    """
    import torch

    from gnnsparse.errors import check_memory

    try:
        with torch.device("meta"):  # tensors without memory
            model = build_model(cfg, in_channels, out_channels, **more)
    except NotImplementedError:
        model = build_model(cfg, 1, 1)  # one that computes while it is made
    except (RuntimeError, OverflowError) as error:
        raise ValueError(f"model: {str(error).splitlines()[0]}") from error
    count = sum(parameter.numel() for parameter in model.parameters())
    check_memory("model", 16 * count, f"training {count} parameters in float32")
    return model


def complete_sampler(cfg: DictConfig, model: torch.nn.Module) -> None:
    """Set the fan-outs for a model, and the sampler of a graph on disk, after a line that says so.

    What was chosen stays.
    """
    from gnnsparse.data.large.folder import HEADER
    from gnnsparse.train.settings import SamplerConfig

    path, found = OmegaConf.select(cfg, "dataset.path"), None
    stays = cfg.sampler.name == "none" and not OmegaConf.select(cfg, "dataset.in_memory")
    if stays and isinstance(path, str) and (Path(path).expanduser() / HEADER).is_file():
        cfg.sampler.name, found = "neighbor", path
    settings: SamplerConfig = section(cfg, "sampler", SamplerConfig).with_fanouts(model)
    cfg.sampler.fanouts = None if settings.fanouts is None else list(settings.fanouts)
    cfg.sampler.relations = settings.relations
    if found is not None and settings.fanouts is not None:
        fanouts = ",".join(map(str, settings.fanouts))
        show_line(f"{found} is a graph on disk: sampler=neighbor sampler.fanouts=[{fanouts}]")


def read_settings(cfg: DictConfig) -> RunOptions:
    """Check all options that can be checked without data, and return them."""
    from gnnsparse.train import resolve_device
    from gnnsparse.train.settings import SECTIONS
    from gnnsparse.train.tasks import RunOptions
    from models import MODELS

    task_name(cfg)
    complete_sampler(cfg, check_model(cfg, 1, 1))
    own = {"model", "dataset", *SECTIONS}
    groups = {
        str(name): to_dict(group)
        for name, group in cfg.items()
        if isinstance(group, DictConfig) and name not in own
    }
    return RunOptions(
        device=resolve_device(cfg.device),
        precision=cfg.precision,
        seed=cfg.seed,
        values=MODELS[cfg.model.name].values_with(options_of(cfg.model)),
        groups=groups,
        **{name: section(cfg, name, kind) for name, kind in SECTIONS.items()},
    )


def identity_of(cfg: DictConfig, task: Task[Any, Any], run: RunOptions) -> dict[str, Any]:
    """Return the values that a run and the run whose checkpoint it resumes must share."""
    from gnnsparse.train.tasks import text_of

    data = {key: value for key, value in options_of(cfg.dataset).items() if key not in ("root", "path")}
    identity = {"model": text_of(cfg.model), "dataset": cfg.dataset.name, **data, "precision": cfg.precision}
    # The state of the random numbers is the checkpoint's, so that another seed would do nothing.
    return identity | {"run_seed": cfg.seed} | task.identity(run)


def recipe_of(cfg: DictConfig, task: Task[Any, Any], run: RunOptions, dataset: Any) -> ModelRecipe:
    """Return what the model is made of, by which a checkpoint can be loaded without these options."""
    from models.registry import REGISTRY

    data = to_dict(cfg.dataset)
    data |= {name: value for name, value in task.found_options(dataset).items() if name in data}
    draws = getattr(dataset, "on_disk", False) or getattr(dataset, "has_times", False)
    kept = ("preprocess", "sampler") if draws else ("preprocess",)
    groups = {name: to_dict(cfg[name]) for name in (*kept, *task.groups)}
    options = options_of(cfg.model) | task.model_options(dataset)
    own: dict[str, Any] = {"name": cfg.model.name, "options": options}
    weighted = getattr(getattr(dataset, "graph", None), "values", None) is not None
    own["run"] = {"dataset": data, **groups, "seed": run.seed, "edge_weights": weighted}
    return task.recipe(dataset, run, registry=REGISTRY, **own)


def with_used_edges(cfg: DictConfig, dataset: Any) -> Any:
    """Return the data set without what the model ignores of edges, after a line that says so.

    Raises:
        ValueError: features of edges were asked for, and the model takes none, or it needs some.
    """
    from gnnsparse.data import EdgeDataset, GraphDataset, NodeDataset
    from models import MODELS

    more, takes = getattr(dataset, "edge_features", None), MODELS[cfg.model.name].edge_features
    if more is not None and takes == "none":
        takers = ", ".join(name for name, model in MODELS.items() if model.edge_features != "none")
        problem = f"{cfg.model.name} takes no features of edges"
        if OmegaConf.select(cfg, "dataset.edge_features"):
            columns = ",".join(more.transform["columns"])
            problem = f"dataset.edge_features: got [{columns}], and {problem}"
            raise ValueError(f"{problem}; accepted: null, or model={takers.replace(', ', ' or model=')}")
        print(f"train.py: model: {problem}; these do: {takers}", file=sys.stderr)
        dataset = dataclasses.replace(dataset, edge_features=None)
    if more is None and takes == "required":
        raise ValueError(
            f"model: {cfg.model.name} needs features of edges, and {dataset.name} has none; accepted: "
            "dataset.edge_features=[COLUMN, ...] of your own tables, edge_attr of PyG's graphs, or model=gin"
        )
    kinds = (NodeDataset, GraphDataset, EdgeDataset)
    ignored = isinstance(dataset, kinds) and not MODELS[cfg.model.name].edge_weights
    if not ignored or dataset.graph.values is None:
        return dataset
    problem = f"model: {cfg.model.name} does not use the weights of the edges, or counts of repeated ones"
    print(f"train.py: {problem}", file=sys.stderr)
    return dataset.without_weights()


def set_up(
    cfg: DictConfig, task: Task[Any, Any], run: RunOptions, resume: Path | None = None
) -> tuple[TaskModule, PreparedData]:
    """Load and prepare the data, and build the model; return the Lightning module and data module."""
    import lightning

    from gnnsparse.data import CATALOG
    from gnnsparse.errors import naming
    from gnnsparse.train import check_checkpoint
    from gnnsparse.train.sampled import check_blocks

    task.check(run)
    if resume is not None:
        check_checkpoint(resume, run.trainer, identity_of(cfg, task, run), task.known_steps(run))
    with naming("dataset"):
        if CATALOG[cfg.dataset.name].also:
            dataset = load_dataset(OmegaConf.to_yaml(cfg.dataset, resolve=True))
        else:
            dataset = task.load(cfg.dataset.name, options_of(cfg.dataset))
    dataset = with_used_edges(cfg, dataset)
    more = task.model_options(dataset)
    made = check_model(cfg, *task.model_sizes(dataset), **more)
    if run.sampler.draws:
        check_blocks(made, run.sampler)
    if run.peers is not None:
        run = dataclasses.replace(run, model=build_model(cfg, *task.model_sizes(dataset), **more))
    data = task.make_data(dataset, run)
    lightning.seed_everything(cfg.seed, verbose=False)
    model = build_model(cfg, *task.model_sizes(dataset), **more)
    return task.make_module(model, data, run), data


def report(
    cfg: DictConfig, task: Task[Any, Any], run: RunOptions, data: PreparedData, result: FitResult
) -> dict[str, Any]:
    """Return the content of result.json."""
    from gnnsparse.runtime.environment import describe_environment

    return {
        "model": cfg.model.name,
        "dataset": cfg.dataset.name,
        "task": task.name,
        **task.describe(data, run),
        "precision": cfg.precision,
        "seed": cfg.seed,
        **dataclasses.asdict(result),
        "preprocess_seconds": data.preprocess_seconds,
        "cache_hit": data.cache_hit,
        **describe_environment(data.device),
    }


#: What a run leaves beside result.json, and what it is for.
_LEFT = {
    "classes.csv": "scores of each class",
    "plots": "curves, and of classes a confusion matrix",
    "README.md": "model card",
    "checkpoints/best.ckpt": "for gnnsparse predict {folder}",
}


def left_in(folder: Path) -> list[str]:
    """Return what a run has left in its folder beside result.json, and what it is for."""
    named = shlex.quote(os.path.relpath(folder))
    return [f"{name} ({of.format(folder=named)})" for name, of in _LEFT.items() if (folder / name).exists()]


def show(content: dict[str, Any], task: Task[Any, Any], file: Path) -> None:
    """Print the table of scores, and the time and memory that the run took."""
    from launch.console import make_console

    console = make_console()
    # Not a title of the table, which would be broken where the table is narrow.
    title = "{model} on {dataset}, {precision}, {device_name}, seed {seed}".format(**content)
    console.print(title, highlight=False, markup=False, soft_wrap=True)
    console.print(task.table(content))
    cached = "read from the cache" if content["cache_hit"] else "prepared"
    milliseconds = content["epoch_milliseconds"]  # None: all epochs were trained before
    epoch = "" if milliseconds is None else f"{milliseconds:.2f} ms an epoch (median), "
    console.print(
        f"{epoch}{content['fit_seconds']:.1f} s in all; "
        f"{task.prepared} {cached} in {content['preprocess_seconds']:.3f} s; "
        f"{content['peak_memory_bytes'] / 2**20:.0f} MiB at most\n"
        f"beside {file.name}: {', '.join(left_in(file.parent))}\n{file}",
        highlight=False,
        soft_wrap=True,
    )


@functools.cache
def show_line(text: str) -> None:
    """Print a line about the data, once in a sweep."""
    from launch.console import make_console

    make_console().print(text, highlight=False, markup=False, soft_wrap=True)


def run(cfg: DictConfig, folder: Path) -> float:
    """Train and score a model, write to a folder, and return the test score.

    Raises:
        RefusedError: it is refused, or it failed with an error that is reported in one line, such as that no
            memory is left.
        KeyboardInterrupt: a signal ended it.
    """
    from gnnsparse.errors import is_out_of_memory
    from gnnsparse.train.folders import RunFolder

    own = claimed.pop(folder.resolve(), None)
    leader, Leader.early = Leader.early, None
    try:
        resume = resume_of(cfg)
        # A run may have been ended before its first checkpoint: its folder is known by another file.
        before = None
        if resume is not None:
            before = folder / SWEEP if is_sweep(resume) else mark_of(resume)
        resume = None if resume is None else checkpoint_of(resume, folder)
        own = own or RunFolder.claim(folder, option="hydra.run.dir", resume=before)
        check_quickly(cfg)
        if cfg.mode == "predict":
            from predict import predict

            return predict(cfg, own)
        if cfg.trainer.devices > 1:
            leader = leader or Leader(cfg.trainer.devices)
            leader.listen()
        settings = read_settings(cfg)
        from gnnsparse.data import DatasetUnavailableError
        from gnnsparse.train.tasks import TASKS

        # Importing a task imports Lightning, which takes seconds, so it comes after the checks.
        task = import_task(TASKS, TASKS.check(task_name(cfg)))
        if (ranks := ranks_of(cfg, task)) > 1:
            leader = leader or Leader(ranks)
            leader.begin(OmegaConf.to_yaml(cfg, resolve=True), resume, settings.device.type)
            settings = dataclasses.replace(settings, peers=leader.peers)
        try:
            module, data = set_up(cfg, task, settings, resume)
        except DatasetUnavailableError as error:
            refuse_data(error)
        from gnnsparse.train.checkpoint import DATA, check_data, check_unfinished, contents_of

        identity = identity_of(cfg, task, settings) | {DATA: contents_of(data.dataset)}
        if resume is not None:
            if cfg.resume_data == "same":
                check_data(resume, identity[DATA])
            check_unfinished(resume, settings.trainer, data.steps_per_epoch)
        recipe = recipe_of(cfg, task, settings, data.dataset)
        own.keep_earlier("result.json")
    except BaseException as error:
        if own is not None:
            own.release()  # nothing was trained
        if leader is not None:
            leader.refuse(error)
        if isinstance(error, PROBLEMS):
            refuse(error)
        if is_out_of_memory(error):
            refuse(f"out of memory before training began: {error}")
        raise

    from gnnsparse.inference.card import write_card
    from gnnsparse.train import CheckpointError, RunFolderError, StopRequest, UncapturableError, fit

    options: dict[str, Any] = {"resume": resume, "identity": identity}
    file = own.path / "result.json"
    try:
        with StopRequest() as stop:
            result = fit(module, data, settings.trainer, folder=own, recipe=recipe, stop=stop, **options)
            content = report(cfg, task, settings, data, result)
            groups = {name: to_dict(cfg[name]) for name in ("optimizer", "trainer", *task.groups)}
            finish(content, task, file, lambda: write_card(own.path, recipe, content, groups))
        if stop.signum is not None:
            raise StoppedError(stop.signum, file)
    except (CheckpointError, RunFolderError, UncapturableError, FloatingPointError) as error:
        refuse(error)
    except Exception as error:
        if leader is not None:
            leader.refuse(error)
        if is_out_of_memory(error):
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            where, less = f"out of memory on {data.device} ({reason})", needing_less(cfg, task, data)
            refuse(f"{where}; to need less: {less}; to go on as it is: {command_to_resume(own.path)}")
        raise
    finally:
        if leader is not None:
            leader.end()
        own.finish()
    return result.metrics["test"][module.score_name]


def needing_less(cfg: DictConfig, task: Task[Any, Any], data: PreparedData) -> str:
    """Return what makes a training step need less memory, for a message."""
    from gnnsparse.precision import Precision

    on_gpu, ways = data.device.type == "cuda", []
    if on_gpu and Precision(cfg.precision).storage.itemsize == 4:
        ways.append("precision=bf16")
    if cfg.sampler.name != "none":
        ways.append(f"sampler.batch_size below {cfg.sampler.batch_size}, smaller sampler.fanouts")
    elif (size := getattr(data, "batch_size", None)) is not None:
        ways.append(f"trainer.batch_size below {size}")
    elif task.samples:
        ways.append("sampler=neighbor")
    if on_gpu and task.shared:
        ways.append("more trainer.devices")
    ways.append("a smaller model")
    return ", ".join(ways)


def refuse_data(error: Exception) -> NoReturn:
    """Raise a ValueError for data that can't be loaded; an option is named as the user types it."""
    option = "dataset." if str(error).startswith(("root: ", "split: ")) else ""
    raise ValueError(f"{option}{error}") from error


def finish(content: dict[str, Any], task: Task[Any, Any], file: Path, write_card: Callable[[], Any]) -> None:
    """Write result.json and the model card beside it, and show the table of scores."""
    from gnnsparse.runtime.environment import write_json

    problem = None
    try:
        write_json(file, content)
        write_card()
    except (OSError, ValueError) as error:
        problem = f"hydra.run.dir: {file} can't be written ({error})"
    show(content, task, file)
    if problem is not None:
        refuse(problem)


@hydra.main(version_base="1.3", config_path="configs", config_name="train")
def main(cfg: DictConfig) -> float:
    """Run with the options of the command line; return the test score, which hydra's sweepers use."""
    with importing():
        from gnnsparse.runtime.environment import log_shown

    folder, sweep = Path(HydraConfig.get().runtime.output_dir), Sweep.of_this_run()
    with log_shown("gnnsparse.data", show_line):
        return run(cfg, folder) if sweep is None else sweep.run(cfg, folder, run)


def command() -> int:
    """Run what the command line says; return the exit status.

    Hydra, a refusal, and a rank other than 0 end the process themselves.
    """
    wait_passively()
    if is_follower():
        leave(follow())
    try:
        with raising():
            if names_experiment(sys.argv[1:]):
                offer_registered()
                from launch.study.run import run_study

                return run_study(sys.argv[1:])
            try:
                sys.argv[1:] = go_on(sys.argv[1:])
                check_line(sys.argv[1:])
                if {"-h", "--help"} & {*sys.argv[1:]} and registers_more():
                    offer_registered()
            except ValueError as error:
                refuse(error)
            main()
    except KeyboardInterrupt as stop:
        sweep = Sweep.present
        print(f"train.py: {line_of(stop, None if sweep is None else sweep.folder)}", file=sys.stderr)
        return exit_status(stop)
    return 0


if __name__ == "__main__":
    sys.modules["train"] = sys.modules["__main__"]  # as others import it
    sys.exit(command())
