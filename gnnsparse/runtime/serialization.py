"""Conversion of dataclasses to plain JSON values and back; reading checks every entry."""

from __future__ import annotations

import dataclasses
import enum
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
    if kind is Any:
        return content
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _member(kind, content, where)
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, content, where)
    if isinstance(kind, types.UnionType):
        (of,) = (part for part in typing.get_args(kind) if part is not types.NoneType)
        return None if content is None else from_plain(of, content, where)
    if kind in (int, float):
        return _number(kind, content, where)
    if kind in (str, bool):
        names = {str: "a text", bool: "true or false"}
        return (
            content
            if isinstance(content, kind)
            else _reject(where, f"got {reprlib.repr(content)}; accepted: {names[kind]}")
        )
    return (
        _tuple(kind, content, where) if typing.get_origin(kind) is tuple else _mapping(kind, content, where)
    )


def _reject(where: str, problem: str) -> typing.NoReturn:
    raise PlainError(f"{where}: {problem}")


def _member(kind: type[enum.Enum], content: Any, where: str) -> enum.Enum:
    try:
        return kind(content)
    except ValueError:
        accepted = ", ".join(str(member.value) for member in kind)
        _reject(where, f"got {reprlib.repr(content)}; accepted: {accepted}")


def _number(kind: type, content: Any, where: str) -> Any:
    if isinstance(content, bool) or not isinstance(content, int if kind is int else (int, float)):
        _reject(
            where, f"got {reprlib.repr(content)}; accepted: {'an integer' if kind is int else 'a number'}"
        )
    # Before the conversion, for which an integer may be too large.
    if not 0 <= content <= (_MAX_INTEGER if isinstance(content, int) else sys.float_info.max):
        _reject(
            where, f"got {reprlib.repr(content)}; accepted: a finite number, 0 or more, integers below 2^63"
        )
    return kind(content)


def _tuple(kind: Any, content: Any, where: str) -> Any:
    arguments = typing.get_args(kind)
    if not isinstance(content, list):
        _reject(where, f"got {type(content).__name__}; accepted: a list")
    if arguments[-1] is Ellipsis:
        return tuple(from_plain(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(content))
    if len(content) != len(arguments):
        _reject(where, f"has {len(content)} entries; accepted: {len(arguments)}")
    pairs = zip(arguments, content, strict=True)
    return tuple(from_plain(of, item, f"{where}[{i}]") for i, (of, item) in enumerate(pairs))


def _mapping(kind: Any, content: Any, where: str) -> Any:
    if not isinstance(content, dict):
        _reject(where, f"got {type(content).__name__}; accepted: an object")
    of_key, of_value = typing.get_args(kind)
    found = {}
    for key, value in content.items():
        if of_key is int and not re.fullmatch(r"[1-9]\d{0,17}", key):
            _reject(where, f"has the entry {reprlib.repr(key)}; accepted: a positive integer")
        found[of_key(key)] = from_plain(of_value, value, f"{where}.{key}")
    return types.MappingProxyType(found)


def _dataclass(kind: Any, content: Any, where: str) -> Any:
    if not isinstance(content, dict):
        _reject(where, f"got {type(content).__name__}; accepted: an object")
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]
    for key in (*names, *content):
        if key not in content:
            _reject(where, f"has no {key}; accepted: {', '.join(names)}")
        if key not in names:
            _reject(where, f"has the entry {reprlib.repr(key)}; accepted: {', '.join(names)}")
    return kind(**{name: from_plain(hints[name], content[name], f"{where}.{name}") for name in names})
