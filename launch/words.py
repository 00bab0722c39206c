"""The words of train.py's command line: each names a declared option, and `resume` stands for those of a run.

hydra refuses `modle=gcn` with the advice to write `+modle=gcn`, which it accepts and nobody reads. Here both
are refused, with the nearest name, before hydra sees them. With `resume=last` and `resume=FOLDER` a run or a
sweep goes on with the words that began it, where it was; one that was ended before its first checkpoint
begins anew in its folder.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

__all__ = [
    "ONCE", "UnknownWordError", "check_words", "checkpoint_of", "go_on", "is_begun", "is_sweep", "key_of",
    "mark_of", "names_experiment", "quoted",
]  # fmt: skip

_WORD = re.compile(r"(?:\+\+|\+|~)?([^=@]+)(?:@[^=]*)?(?:=(.*))?", re.DOTALL)
#: Options of hydra that name other configurations than ours, and of completion, which has its own words.
_ELSEWHERE = ("--config", "-cp", "-cn", "-cd", "--experimental-rerun", "-sc", "--shell-completion")
#: Values that only hydra's grammar can read: functions, lists, references.
_GRAMMAR = re.compile(r"[\[{(\$\\]")
#: Folders of configs/ that are no groups of options.
_NO_GROUPS = ("experiment", "tuned")


def names_experiment(arguments: Sequence[str]) -> bool:
    """Return whether a command line asks for a study."""
    return any(argument.lstrip("+").startswith("experiment=") for argument in arguments)


class UnknownWordError(ValueError):
    """A word of the command line names no declared option, or no choice of a group.

    Attributes:
        name: the option or the choice.
    """

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self.name = name


def key_of(word: str) -> str:
    """Return the option that a word such as "+model.dropout=0.5" sets; "" if it sets none."""
    found = None if word.startswith("-") or ("=" not in word and word[:1] != "~") else _WORD.fullmatch(word)
    return "" if found is None else found[1].strip()


def check_words(words: Sequence[str], configs: Path, registered: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse words that name no declared option, or no choice of a group.

    Args:
        words: the command line, without the name of the program.
        configs: the folder of the configuration.
        registered: by group what is registered by name, with or without a file in that folder; entries have
            an attribute `options`.

    Raises:
        UnknownWordError: a word is refused; the message has the nearest name and the accepted ones.
    """
    if any(word.startswith(_ELSEWHERE) for word in words):
        return
    keys = {word: key for word in words if (key := key_of(word)) and not _is_hydras(key)}
    if not keys:
        return
    groups = sorted(path.name for path in configs.iterdir() if path.is_dir() and path.name not in _NO_GROUPS)
    defaults: dict[str, Any] = {}
    content: Any = OmegaConf.to_container(OmegaConf.load(configs / "train.yaml"), resolve=False)
    for item in content.pop("defaults"):
        if isinstance(item, dict):
            defaults |= {name: value for name, value in item.items() if name in groups}
    chosen = {group: [str(defaults[group])] for group in groups if group in defaults}
    for word, key in keys.items():
        value = _value_of(word)
        if key in groups and not word.startswith("~") and not _GRAMMAR.search(value):
            accepted = _choices(configs / key, registered.get(key, {}))
            chosen[key] = [part.strip().strip("'\"") for part in value.split(",")]
            for name in chosen[key]:
                if name not in accepted:
                    nearest = _nearest(name, accepted)
                    raise UnknownWordError(f"{key}: got {name!r}; {nearest}accepted: {_list(accepted)}", name)
        elif key in groups:
            chosen[key] = _choices(configs / key, registered.get(key, {}))
    declared = _declared(configs, chosen, registered)
    top = [name for name in content if name != "hydra"] + groups
    for word, key in keys.items():
        _check_key(word, key, [*top, "experiment"], declared, chosen)


def _is_hydras(key: str) -> bool:
    return re.split(r"[./]", key)[0] == "hydra"


def _value_of(word: str) -> str:
    found = _WORD.fullmatch(word)
    return (found and found[2]) or ""


def _choices(folder: Path, registered: Iterable[str]) -> list[str]:
    files = sorted(path.stem for path in folder.glob("*.yaml"))
    return list(dict.fromkeys([*files, *registered]))


def _declared(
    configs: Path, chosen: Mapping[str, Sequence[str]], registered: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Return the options of all groups, by the names that users type, for the chosen files."""
    found: dict[str, None] = {}
    tuned = [f"{m}_{d}" for m in chosen.get("model", ()) for d in chosen.get("dataset", ())]
    for group, names in {**chosen, "tuned": tuned}.items():
        for name in names:
            if (file := configs / group / f"{name}.yaml").is_file():
                content: Any = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
                is_global = "@package _global_" in file.read_text().partition("\n")[0]
                found |= dict.fromkeys(_flat(content if is_global else {group: content}))
            if (entry := registered.get(group, {}).get(name)) is not None:
                found |= dict.fromkeys(f"{group}.{option}" for option in entry.options)
    return list(found)


def _flat(content: Mapping[Any, Any]) -> Iterable[str]:
    for group, options in content.items():
        if isinstance(options, dict):
            yield from (f"{group}.{name}" for name in options)


def _check_key(
    word: str, key: str, top: Sequence[str], declared: Sequence[str], chosen: Mapping[str, Sequence[str]]
) -> None:
    """Raise an UnknownWordError unless a key is one of the declared ones, or a part of one."""
    parts = key.split(".")
    if key in top or ".".join(parts[:2]) in declared:
        return
    got = f"got {_value_of(word)!r}, and " if "=" in word else ""
    if len(parts) > 1 and parts[0] in chosen:
        mine = [name for name in declared if name.startswith(f"{parts[0]}.")]
        who = (
            f"{' and '.join(chosen[parts[0]])} has"
            if parts[0] in ("model", "dataset", "pattern")
            else "there is"
        )
        text = f"{key}: {got}{who} no such option; {_nearest(key, mine)}accepted: {_list(mine)}"
        raise UnknownWordError(text, parts[-1])
    near = _nearest(key, [*top, *declared])
    raise UnknownWordError(f"{key}: {got}there is no such option; {near}accepted: {_list(sorted(top))}", key)


def _nearest(name: str, accepted: Sequence[str]) -> str:
    found = difflib.get_close_matches(name, accepted, n=2)
    return f"nearest: {_list(found)}; " if found else ""


def _list(names: Sequence[str]) -> str:
    return ", ".join(names)


#: Where a run has its checkpoint, and by what a sweep is known.
LAST, SWEEP = Path("checkpoints", "last.ckpt"), "multirun.yaml"
#: The mark of a run's folder (gnnsparse.train.folders), and the words that hydra has written there.
_MARK, _WORDS = "run.lock", ".hydra*/overrides.yaml"
#: Options of one resumption, which the next one does not take over.
ONCE = ("resume", "resume_data")
_RESUME = re.compile(r"\+{0,2}resume=(.*)", re.DOTALL)
_ACCEPTED = "last, the folder of a run or of a sweep, or a checkpoint last.ckpt"


def is_sweep(folder: Path) -> bool:
    """Return whether a path is the folder of a sweep; of a name that no file can have it is False."""
    try:
        return (folder / SWEEP).is_file()
    except (OSError, ValueError):
        return False


def is_begun(folder: Path) -> bool:
    """Return whether a path is the folder of a run that has neither a checkpoint nor results yet."""
    try:
        left = [(folder / name).exists() for name in (LAST, "result.json")]
        return (folder / _MARK).is_file() and not any(left) and bool(list(folder.glob(_WORDS)))
    except (OSError, ValueError):
        return False


def mark_of(resume: Path) -> Path:
    """Return a file of the run or the sweep that the option `resume` names, by which its folder is known."""
    if is_sweep(resume):
        return resume / SWEEP
    return resume / _MARK if _is_folder(resume) else resume


def _is_folder(path: str | Path) -> bool:
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def quoted(path: Path) -> str:
    """Return a path as a value in hydra's grammar, whatever characters it has."""
    escaped = str(path).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def go_on(words: Sequence[str], outputs: Path = Path("outputs")) -> list[str]:
    """Return a command line in which `resume=last` and `resume=FOLDER` are what they stand for.

    For a run these are the words that began it, its folder, and its checkpoint, or the folder if there is
    none yet. Words that are given beside it win. For a sweep they are those of the sweep, and its folder.

    Args:
        words: the command line, without the name of the program.
        outputs: the folder in which `last` is looked for.

    Raises:
        ValueError: there is nothing to go on with.
    """
    values = [found[1] for word in words if (found := _RESUME.fullmatch(word))]
    if not values:
        return list(words)
    value, rest = values[-1].strip("'\""), [word for word in words if not _RESUME.fullmatch(word)]
    if value == "last":
        folder = _newest(outputs)
    elif not value or not _is_folder(value):
        return list(words)  # a file, or what the check of the option refuses
    else:
        folder = Path(value)
    folder = folder.parent if folder.name == LAST.parts[0] else folder
    if is_sweep(folder):
        return _sweep_words(folder, rest)
    place = folder if is_begun(folder) else folder / LAST
    if place != folder and not place.is_file():
        raise ValueError(f"resume: {folder} has no checkpoint {LAST}; accepted: {_ACCEPTED}")
    given = {key_of(word) for word in rest}
    stored = [word for word in _stored_words(folder) if key_of(word) not in given]
    where = [] if "hydra.run.dir" in given else [f"hydra.run.dir={quoted(folder)}"]
    return [*stored, *rest, *where, f"resume={quoted(place)}"]


def _newest(outputs: Path) -> Path:
    """Return the folder of the run or sweep that was begun, or resumed, last."""
    marks = [mark for mark in outputs.glob(f"*/*/{_MARK}") if not _predicts(mark.parent)]
    if not marks:
        raise ValueError(
            f"resume: got last, but there is no run in {outputs.absolute()}; accepted: {_ACCEPTED}"
        )
    return max(marks, key=lambda mark: mark.stat().st_mtime_ns).parent


def _predicts(folder: Path) -> bool:
    return "mode=predict" in _stored_words(folder)


def _stored_words(folder: Path) -> list[str]:
    """Return the words that a run was begun with, those of the last time if it was resumed before."""
    files = sorted(folder.glob(_WORDS), key=lambda file: file.stat().st_mtime_ns)
    for file in reversed(files):
        words = _read(file)
        if isinstance(words, list):
            return [str(word) for word in words if key_of(str(word)) not in ONCE]
    return []


def _sweep_words(folder: Path, rest: Sequence[str]) -> list[str]:
    once = [word for word in rest if key_of(word) in ONCE]
    if more := [word for word in rest if word not in ("-m", "--multirun", *once)]:
        problem = f"got {folder}, a sweep, with {' '.join(more)}"
        raise ValueError(f"resume: {problem}; accepted: a sweep without other options, as they are its own")
    content = _read(folder / SWEEP)
    words = OmegaConf.select(content, "hydra.overrides.task") if content is not None else None
    if words is None:
        raise ValueError(f"resume: {folder / SWEEP} does not say what was swept; accepted: {_ACCEPTED}")
    kept = [str(word) for word in words if key_of(str(word)) not in ONCE]
    return ["-m", *kept, *once, f"hydra.sweep.dir={quoted(folder)}", f"resume={quoted(folder)}"]


def _read(file: Path) -> Any:
    """Return the content of a YAML file as hydra writes it; None if it can't be read."""
    try:
        content = OmegaConf.load(file)
        return list(content) if OmegaConf.is_list(content) else content
    except Exception:  # whatever a damaged file makes of YAML
        return None


def checkpoint_of(resume: Path, folder: Path) -> Path | None:
    """Return what `resume` means for the run of a folder.

    Args:
        resume: the option, a checkpoint, or the folder of a sweep or of a run without one.
        folder: the run's folder.

    Returns:
        The checkpoint; in a sweep that goes on, that of the run itself; None: there is none yet.
    """
    if not _is_folder(resume):
        return resume
    last = (folder if is_sweep(resume) else resume) / LAST
    return last if last.is_file() else None
