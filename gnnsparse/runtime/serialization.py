"""Conversion of dataclasses to plain JSON values and back; reading checks every entry."""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
import reprlib
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any

_MAX_INTEGER = 2**63 - 1


class PlainError(ValueError):
    """The plain values do not fit the type that was asked for; the message names the entry."""


def to_plain(value: Any) -> Any:
    """Convert dataclasses, mappings, enumerations and tuples to the objects, strings and lists of JSON."""
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    return [to_plain(item) for item in value] if isinstance(value, tuple) else value


def from_plain(kind: Any, content: Any, where: str) -> Any:
    """Convert plain values, as `to_plain` makes them, to a dataclass or another type that JSON can hold.

    Raises a PlainError that names the value, from `where` on, if it is of another type, a number is negative,
    not finite or too large, or a key is missing or unknown.
    """
    arguments = typing.get_args(kind)
    if kind is Any:
        return content
    if isinstance(kind, types.UnionType):
        (of,) = (part for part in arguments if part is not types.NoneType)
        return None if content is None else from_plain(of, content, where)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        if content not in (accepted := [member.value for member in kind]):
            _reject(where, content, ", ".join(map(str, accepted)))
        return kind(content)
    if kind in (str, bool):
        if not isinstance(content, kind):
            _reject(where, content, "a text" if kind is str else "true or false")
        return content
    if kind in (int, float):
        if isinstance(content, bool) or not isinstance(content, int if kind is int else (int, float)):
            _reject(where, content, "an integer" if kind is int else "a number")
        # Before the conversion, for which an integer may be too large.
        if not 0 <= content <= (_MAX_INTEGER if isinstance(content, int) else sys.float_info.max):
            _reject(where, content, "a finite number, 0 or more, integers below 2^63")
        return kind(content)
    if typing.get_origin(kind) is tuple:
        if not isinstance(content, list):
            _reject(where, content, "a list")
        kinds = [arguments[0]] * len(content) if arguments[-1] is Ellipsis else arguments
        if len(content) != len(kinds):
            raise PlainError(f"{where}: has {len(content)} entries; accepted: {len(kinds)}")
        pairs = zip(kinds, content, strict=True)
        return tuple(from_plain(of, item, f"{where}[{i}]") for i, (of, item) in enumerate(pairs))
    if not isinstance(content, dict):
        _reject(where, content, "an object")
    read = _dataclass if dataclasses.is_dataclass(kind) else _mapping
    return read(kind, content, where)


def _reject(where: str, content: Any, accepted: str) -> typing.NoReturn:
    got = type(content).__name__ if accepted in ("a list", "an object") else reprlib.repr(content)
    raise PlainError(f"{where}: got {got}; accepted: {accepted}")


def _mapping(kind: Any, content: dict[str, Any], where: str) -> Any:
    of_key, of_value = typing.get_args(kind)
    found = {}
    for key, value in content.items():
        if of_key is int and not re.fullmatch(r"[1-9]\d{0,17}", key):
            raise PlainError(f"{where}: has the entry {reprlib.repr(key)}; accepted: a positive integer")
        found[of_key(key)] = from_plain(of_value, value, f"{where}.{key}")
    return types.MappingProxyType(found)


#: The types of a dataclass's fields, from text that has to be compiled.
_hints = functools.cache(typing.get_type_hints)


def _dataclass(kind: Any, content: dict[str, Any], where: str) -> Any:
    hints = _hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]
    for key in (*names, *content):
        if key not in content or key not in names:
            problem = f"has the entry {reprlib.repr(key)}" if key in content else f"has no {key}"
            raise PlainError(f"{where}: {problem}; accepted: {', '.join(names)}")
    return kind(**{name: from_plain(hints[name], content[name], f"{where}.{name}") for name in names})
