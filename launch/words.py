"""The words of train.py's command line: each names an option or a choice that is declared somewhere.

hydra refuses `modle=gcn` with the advice to write `+modle=gcn`, which it accepts and nobody reads. Here both
are refused, with the nearest name, before hydra sees them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

__all__ = ["check_words", "key_of"]

_WORD = re.compile(r"(?:\+\+|\+|~)?([^=@]+)(?:@[^=]*)?(?:=(.*))?", re.DOTALL)
#: Options of hydra that name other configurations than ours, in which other options are declared.
_ELSEWHERE = ("--config", "-cp", "-cn", "-cd", "--experimental-rerun")
#: Values that only hydra's grammar can read: functions, lists, references.
_GRAMMAR = re.compile(r"[\[{(\$\\]")
#: Folders of configs/ that are no groups of options.
_NO_GROUPS = ("experiment", "tuned")


def key_of(word: str) -> str:
    """Returns the option that a word such as "+model.dropout=0.5" sets; "" if it sets none."""
    found = None if word.startswith("-") or ("=" not in word and word[:1] != "~") else _WORD.fullmatch(word)
    return "" if found is None else found[1].strip()


def check_words(words: Sequence[str], configs: Path, registered: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuses words that name no declared option, or no choice of a group.

    Args:
        words: the command line, without the name of the program.
        configs: the folder of the configuration.
        registered: by group what is registered by name, with or without a file in that folder; entries have
            an attribute `options`.

    Raises:
        ValueError: a word is refused; the message has the nearest name and the accepted ones.
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
                    raise ValueError(
                        f"{key}: got {name!r}; {_nearest(name, accepted)}accepted: {_list(accepted)}"
                    )
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
    """Returns the options of all groups, by the names that users type, for the chosen files."""
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
    """Raises a ValueError unless a key is one of the declared ones, or a part of one."""
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
        raise ValueError(f"{key}: {got}{who} no such option; {_nearest(key, mine)}accepted: {_list(mine)}")
    near = _nearest(key, [*top, *declared])
    raise ValueError(f"{key}: {got}there is no such option; {near}accepted: {_list(sorted(top))}")


def _nearest(name: str, accepted: Sequence[str]) -> str:
    found = difflib.get_close_matches(name, accepted, n=2)
    return f"nearest: {_list(found)}; " if found else ""


def _list(names: Sequence[str]) -> str:
    return ", ".join(names)
