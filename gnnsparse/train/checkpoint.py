"""Reading checkpoints: a file is checked as a whole before anything is restored from it."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from gnnsparse.runtime.hashing import fingerprint
from gnnsparse.sparse.graph import SparseGraph
from gnnsparse.train.settings import TrainerConfig

if TYPE_CHECKING:
    from gnnsparse.train.module import TaskModule

#: Keys of a checkpoint that are ours: what identifies the run, what the model is made of (not in those of
#: earlier versions), and the checksum of the contents.
IDENTITY, MODEL, SUM = "gnnsparse", "gnnsparse_model", "gnnsparse_sum"
#: What the identity of a run calls the contents of its data set (`contents_of`).
DATA = "data"
#: The keys of a checkpoint that have to be there, with their types.
_KEYS: dict[str, type] = {
    "epoch": int,
    "global_step": int,
    "pytorch-lightning_version": str,
    "state_dict": dict,
    "loops": dict,
    "callbacks": dict,
    "optimizer_states": list,
    "lr_schedulers": list,
    IDENTITY: dict,
    SUM: str,
}
#: What Adam keeps of a parameter, in its shape.
_MOMENTS = ("exp_avg", "exp_avg_sq")


class CheckpointError(ValueError):
    """A run can't be resumed from a checkpoint; the message says why."""


class _Unfit(Exception):  # noqa: N818
    """What is wrong with a checkpoint, without its name."""


def _unfit(problem: str) -> NoReturn:
    raise _Unfit(problem)


def checkpoint_sum(checkpoint: Mapping[str, Any]) -> str:
    """Return a checksum of the keys, types and values of last.ckpt, except those that are not ours."""
    more = [checkpoint[MODEL]] if MODEL in checkpoint else []
    return _sum([*(checkpoint[key] for key in _KEYS if key != SUM), *more])


def best_sum(content: Mapping[str, Any]) -> str:
    """Return a checksum of the keys, types and values of best.ckpt, except the checksum."""
    return _sum([[key, content[key]] for key in sorted(content) if key != SUM])


def _sum(content: Any) -> str:
    tensors: list[torch.Tensor] = []
    texts: list[str] = []

    def note(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            texts.append("tensor")
        elif isinstance(value, Mapping):
            texts.append(f"dict of {len(value)}")
            for key, item in value.items():
                texts.append(repr(key))
                note(item)
        elif isinstance(value, (list, tuple)):
            texts.append(f"{type(value).__name__} of {len(value)}")
            for item in value:
                note(item)
        else:
            texts.append(repr(value))

    note(content)
    return fingerprint(tensors, texts)


def read_trained(path: Path) -> tuple[dict[str, torch.Tensor], Any]:
    """Return the weights in a best.ckpt or last.ckpt, and its unchecked recipe; raise CheckpointError."""
    # Reading makes tensors and plain values only: code in a file is not executed.
    with _naming(f"checkpoint: {path} is no checkpoint of a run"):
        content = _typed("the file", _read(path, mmap=False), dict)
        if "loops" in content:
            _check_contents(content)
            ours = (item for item in content["state_dict"].items() if item[0].startswith("model."))
            weights = {name.removeprefix("model."): tensor for name, tensor in ours}
        else:
            weights = _item("the file", content, "state_dict", dict)
            _tensors_by_name("state_dict", weights)
            if MODEL in content and best_sum(content) != content.get(SUM):
                _unfit("its contents do not match their checksum")
    return dict(weights), content.get(MODEL)


@contextlib.contextmanager
def _naming(file: str) -> Iterator[None]:
    """Begin errors about the contents of a file with a text about the file."""
    try:
        yield
    except _Unfit as problem:
        raise CheckpointError(f"{file} ({_short(str(problem))})") from problem.__cause__
    except (RecursionError, TypeError):
        raise CheckpointError(
            f"{file} (its contents are nested too deeply, or have keys of other types)"
        ) from None


def _of_last(path: Path) -> contextlib.AbstractContextManager[None]:
    return _naming(f"resume: {path} is no last.ckpt of a run")


def check_checkpoint(
    path: Path, config: TrainerConfig, identity: dict[str, Any], steps_per_epoch: int | None = 1
) -> dict[str, Any]:
    """Return a checkpoint, mapped from its file; raise CheckpointError if a run can't go on from it."""
    # Code in the file is not executed. `identity` are plain values that both runs share, of which
    # `check_data` compares the data's. Without `steps_per_epoch` the numbers of epochs are not compared.
    if not path.is_file():
        raise CheckpointError(f"resume: there is no file {path}")
    with _of_last(path):
        _check_contents(checkpoint := _read(path))
    written = checkpoint[IDENTITY]
    for name, value in identity.items():
        if name != DATA and _differs(written.get(name), value):
            was = _short(f"{name}={written.get(name)}")
            raise CheckpointError(f"resume: {path} is of a run with {was}, this one has {value}")
    done = 0 if steps_per_epoch is None else checkpoint["global_step"] // steps_per_epoch
    if done > config.max_epochs:
        accepted = f"at least {done}, the epochs of {path}"
        raise CheckpointError(f"trainer.max_epochs: got {config.max_epochs}; accepted: {accepted}")
    return checkpoint


def _read(path: Path, mmap: bool = True) -> Any:
    """Return what torch reads from a file, whatever that is; with `mmap` tensors are mapped from the file."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except Exception as error:  # torch.load raises errors of many types
        raise _Unfit(f"torch can't read it, {type(error).__name__}") from error


def contents_of(dataset: Any) -> dict[str, str]:
    """Return the size and a checksum of each part of a data set by name: edges, features, masks, ..."""
    # Its own name is left out: the same data may lie in another file. What is no dataclass has no parts.
    found: dict[str, str] = {}
    if not dataclasses.is_dataclass(dataset):
        return found
    for item in dataclasses.fields(dataset):
        value = getattr(dataset, item.name)
        if not item.init:  # what was made of the others
            continue
        if isinstance(value, SparseGraph):
            csr = value.csr
            size = f"{csr.nnz} edges of {csr.rows} nodes"
            found["edges"] = _with_sum(size, [csr.indptr, csr.indices])
            count = 0 if value.values is None else csr.nnz
            found["weights of edges"] = _with_sum(str(count), [value.values])
        elif isinstance(value, torch.Tensor):
            found[item.name] = _with_sum(" x ".join(map(str, value.shape)), [value])
        elif dataclasses.is_dataclass(value):
            found |= {f"{item.name}.{name}": text for name, text in contents_of(value).items()}
        elif isinstance(value, Mapping) and any(isinstance(of, torch.Tensor) for of in value.values()):
            sizes = [f"{key}: {' x '.join(map(str, of.shape))}" for key, of in value.items()]
            found[item.name] = _with_sum(", ".join(sizes), list(value.values()), *value)
        elif isinstance(value, (list, tuple)):
            found[item.name] = _with_sum(str(len(value)), [], *value)
        elif item.name != "name":
            found[item.name] = repr(value)
    return found


def _with_sum(size: str, tensors: list[torch.Tensor | None], *parts: object) -> str:
    return f"{size} ({fingerprint(tensors, *parts)})"


def check_data(path: Path, contents: Mapping[str, str]) -> None:
    """Raise a CheckpointError that names what differs if a run was trained on data with other contents."""
    with _of_last(path):
        written = _read(path)[IDENTITY].get(DATA)
    if not isinstance(written, dict) or written == contents:
        return
    changes = []
    for name in dict.fromkeys([*written, *contents]):
        was, now = (str(of.get(name, "none")).partition(" (")[0] for of in (written, contents))
        if written.get(name) != contents.get(name):
            changes.append(f"{name} ({was} before, {now} now)" if was != now else f"{name} (other values)")
    raise CheckpointError(
        f"resume: the data have changed since {path} was written: {_short(', '.join(changes))}; accepted: "
        "the data of before, or resume_data=changed to go on with these"
    )


def is_complete(checkpoint: Mapping[str, Any], config: TrainerConfig, steps_per_epoch: int) -> bool:
    """Return whether the run of a checkpoint has come to its end: to its last epoch, or by early stopping."""
    done, best = checkpoint["global_step"], checkpoint["callbacks"]["BestEpoch"]["epoch"]
    if done >= steps_per_epoch * config.max_epochs:
        return True
    if config.patience is None or best is None:
        return False
    is_validated = done % (steps_per_epoch * config.val_every) == 0
    return bool(is_validated and done - int(best) >= steps_per_epoch * config.patience)


def check_unfinished(path: Path, config: TrainerConfig, steps_per_epoch: int) -> None:
    """Raise a CheckpointError if a run came to its end and has its results."""
    # A run that was killed between its last checkpoint and its results is resumed to be scored.
    results = path.resolve().parent.parent / "result.json"
    with _of_last(path):
        checkpoint = _read(path)
    if not results.exists() or not is_complete(checkpoint, config, steps_per_epoch):
        return
    done = checkpoint["global_step"] // steps_per_epoch
    problem = f"trainer.max_epochs: got {config.max_epochs}; accepted: more than {done}"
    if done < config.max_epochs:
        problem = (
            f"trainer.patience: got {config.patience}; accepted: more, or null: it ended the run at {done}"
        )
    raise CheckpointError(f"{problem}, the epochs of {path}, which are scored in {results}")


def _short(text: str) -> str:
    """Return a text in one line of at most 200 characters, whatever a file has put into it."""
    text = " ".join(text.split())
    return text if len(text) <= 200 else f"{text[:197]}..."


def _differs(written: Any, own: Any) -> bool:
    return type(written) is not type(own) or bool(written != own)


def _check_contents(checkpoint: Any) -> None:
    """Raise an error if keys are missing, or values are of a wrong type or do not match their checksum."""
    for name, kind in _KEYS.items():
        _item("the file", _typed("the file", checkpoint, dict), name, kind)
    steps = checkpoint["global_step"]
    for name in ("epoch", "global_step"):
        if checkpoint[name] < 0:
            _unfit(f"{name} is {checkpoint[name]}")
    for path, tensor in _tensors("", checkpoint):
        if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
            _unfit(f"{path} is no dense tensor")
    _tensors_by_name("state_dict", checkpoint["state_dict"])
    if len(checkpoint["optimizer_states"]) != 1:
        _unfit(f"optimizer_states has {len(checkpoint['optimizer_states'])} elements, not 1")
    _check_loops("loops", checkpoint["loops"])
    # Lightning's counter, from which training goes on.
    where, found = "loops", checkpoint["loops"]
    automatic = "epoch_loop.automatic_optimization.optim_progress"
    for name in ("fit_loop", automatic, "optimizer", "step", "total"):
        where, found = f"{where}.{name}", _item(where, found, name, dict)
    if (made := _item(where, found, "completed", int)) != steps:
        _unfit(f"global_step is {steps}, and its optimiser made {made} steps")
    _check_callbacks(checkpoint["callbacks"], steps)
    if checkpoint_sum(checkpoint) != checkpoint[SUM]:
        _unfit("its contents do not match their checksum")


def _item(where: str, mapping: Any, key: Any, kind: type) -> Any:
    if key not in mapping:
        _unfit(f"{where} lacks {key}")
    return _typed(f"{where}.{key}", mapping[key], kind)


def _typed(name: str, value: Any, kind: type) -> Any:
    # Not isinstance: a bool is an int, and subclasses are not what Lightning writes. state_dict is ordered.
    if type(value) is not kind and not (kind in (dict, object) and isinstance(value, kind)):
        _unfit(f"{name} is a {type(value).__name__}, not a {kind.__name__.lower()}")
    return value


def _tensors(path: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, (dict, list, tuple)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _tensors(f"{path}.{key}" if path else str(key), item)


def _tensors_by_name(where: str, value: Any) -> None:
    for name, tensor in _typed(where, value, dict).items():
        _typed(f"{where}.{name}", tensor, torch.Tensor)
        _typed(f"a key of {where}", name, str)


def _check_loops(where: str, value: Any) -> None:
    """Raise an error unless Lightning's counters are dicts of names, down to counts and flags."""
    for name, item in _typed(where, value, dict).items():
        _typed(f"a key of {where}", name, str)
        if isinstance(item, dict):
            _check_loops(f"{where}.{name}", item)
        elif type(item) not in (int, bool) or item < 0:
            _unfit(f"{where}.{name} is {item!r}, not a count")


def _check_callbacks(callbacks: dict[str, Any], step: int) -> None:
    where = "callbacks.BestEpoch"
    best = _item("callbacks", callbacks, "BestEpoch", dict)
    for name, dtype in (("best", torch.float32), ("epoch", torch.int64)):
        value = _item(where, best, name, object)
        if value is None:
            continue
        if not isinstance(value, torch.Tensor) or value.dtype != dtype or value.shape != ():
            _unfit(f"{where}.{name} is no scalar of {dtype}")
    if (best["best"] is None) != (best["epoch"] is None):
        _unfit(f"{where} has one of best and epoch")
    if best["epoch"] is not None and not 0 <= int(best["epoch"]) <= step:
        _unfit(f"its best epoch came after step {int(best['epoch'])} of {step}")
    _tensors_by_name(f"{where}.weights", _item(where, best, "weights", dict))
    where = "callbacks.Checkpoints"
    random = _item(where, _item("callbacks", callbacks, "Checkpoints", dict), "random", dict)
    _item(f"{where}.random", random, "cpu", torch.Tensor)
    for name, value in random.items():
        try:
            if value.dtype != torch.uint8 or value.dim() != 1:
                raise TypeError
            if name == "cpu":
                torch.Generator().set_state(value.clone())
        except (AttributeError, TypeError, RuntimeError):
            _unfit(f"{where}.random.{name} is no state of a random number generator")


def check_fits(path: Path, checkpoint: dict[str, Any], module: TaskModule) -> None:
    """Raise a CheckpointError if a checkpoint's weights, optimiser or schedule are not those of a module."""
    try:
        _same("state_dict", checkpoint["state_dict"], module.state_dict())
        if weights := checkpoint["callbacks"]["BestEpoch"]["weights"]:
            _same("weights", weights, module.model.state_dict())
        elif checkpoint["callbacks"]["BestEpoch"]["best"] is not None:
            _unfit("it has the score of a best epoch without its weights")
        made = module.configure_optimizers()
        optimizer = made["optimizer"] if isinstance(made, dict) else made
        schedules = [made["lr_scheduler"]["scheduler"]] if isinstance(made, dict) else []
        _same_optimizer(checkpoint["optimizer_states"][0], optimizer, bool(schedules))
        step, own = checkpoint["global_step"], [schedule.state_dict() for schedule in schedules]
        _same("lr_schedulers", checkpoint["lr_schedulers"], own, {*own[0]} - {"base_lrs"} if own else ())
        for state in checkpoint["lr_schedulers"]:
            if state["last_epoch"] != step:
                _unfit(f"its schedule is at step {state['last_epoch']}, its optimiser at step {step}")
    except _Unfit as problem:
        raise CheckpointError(f"resume: {path} does not fit this run: {_short(str(problem))}") from None


def _same(name: str, written: Any, own: Any, free: Collection[str] = ()) -> None:
    """Refuse a value of other types, keys, sizes or, but in tensors and in `free`, contents than `own`."""
    if isinstance(own, torch.Tensor):
        _typed(name, written, torch.Tensor)
        if written.shape != own.shape or written.dtype != own.dtype:
            was, now = (f"{tuple(t.shape)} {str(t.dtype).removeprefix('torch.')}" for t in (written, own))
            _unfit(f"{name} is {was}, here {now}")
    elif isinstance(own, Mapping):
        _typed(name, written, dict)
        if missing := [key for key in own if key not in written]:
            _unfit(f"it lacks {missing[0]}")
        if more := [key for key in written if key not in own]:
            _unfit(f"it has {more[0]}, which this run lacks")
        for key, value in own.items():
            _same(key, written[key], value, free)
    elif isinstance(own, (list, tuple)):
        if len(_typed(name, written, type(own))) != len(own):
            _unfit(f"it was trained with {len(written)} {name}, here {len(own)}")
        for was, now in zip(written, own, strict=True):
            _same(name, was, now, free)
    elif _differs(written, own) and not (name in free and type(written) is type(own)):
        _unfit(f"it was trained with {name}={written}, here {own}")


def _same_optimizer(state: Any, optimizer: torch.optim.Optimizer, scheduled: bool) -> None:
    where = "optimizer_states"
    groups = _item(where, _typed(where, state, dict), "param_groups", list)
    # A schedule has changed the rate, which it goes on to do.
    _same("param_groups", groups, optimizer.state_dict()["param_groups"], ("lr",) if scheduled else ())
    if not all(math.isfinite(group["lr"]) for group in groups):
        _unfit("its learning rate is no finite number")
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    step = torch.zeros((), dtype=torch.float32)
    for number, item in _item(where, state, "state", dict).items():
        if type(number) is not int or not 0 <= number < len(parameters):
            _unfit(f"its optimiser has a parameter {number!r}, here are {len(parameters)}")
        moments = dict.fromkeys(_MOMENTS, parameters[number])
        _same(f"{where}.state.{number}", item, {"step": step, **moments})
        if not 0 <= float(item["step"]) < math.inf:
            _unfit(f"{where}.state.{number}.step is no count")
