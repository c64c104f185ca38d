"""Reads a configuration node into a dataclass and collects all problems instead of raising the first.

OmegaConf's structured configs check the types. psrun adds the list of all problems, ranges and choices (in the
metadata of fields), and suggestions for mistyped keys.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from psrun.errors import Problem

T = TypeVar("T")
MISSING = "???"
_TYPES = {"int": "an integer", "float": "a number", "bool": "true or false", "str": "text", "None": "null"}


def at_least(minimum: float, *, or_else: str | None = None, default: Any = dataclasses.MISSING) -> Any:
    """A field whose value must be at least `minimum`, or the word `or_else`; required without a default."""
    return dataclasses.field(default=default, metadata={"at_least": minimum, "or_else": or_else})


def one_of(*choices: str | bool | None, default: Any = dataclasses.MISSING) -> Any:
    """A field whose value must be one of `choices`; required without a default."""
    return dataclasses.field(default=default, metadata={"choices": choices})


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """ " Did you mean 'x'?" for the closest match in `known`, or the list of `known` if nothing is close."""
    known = sorted(known)
    lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), lower, n=3)
    if near:
        swapped = [each for each in near if sorted(each) == sorted(word.lower())]  # the most common typo
        return f" Did you mean '{lower[(swapped or near)[0]]}'?"
    return f" Valid names: {', '.join(known)}." if known else ""


def is_near(word: str, known: Iterable[str]) -> bool:
    """Whether `word` is very likely a typo of one of `known`."""
    return bool(difflib.get_close_matches(word, known, n=1, cutoff=0.8))


def read(
    cls: type[T], node: Mapping[str, Any], *, key: str, problems: list[Problem], others: Iterable[str] = ()
) -> T | None:
    """`node` as a `cls`, or None after adding all its problems to `problems`.

    Args:
      cls: a dataclass with annotations that OmegaConf supports.
      node: plain values, as from `OmegaConf.to_container`.
      key: the key of the node in the configuration, for messages.
      problems: receives the problems.
      others: further valid keys beside those of `cls`, for suggestions.
    """
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    before = len(problems)
    values = {}
    for name, value in node.items():
        where = f"{key}.{name}" if key else name
        if name not in fields:
            problems.append(Problem(where, f"no such key (value {value!r}).{did_you_mean(name, [*fields, *others])}"))
        elif value == MISSING:
            problems.append(Problem(where, f"is required; set {where}=..."))
        elif dataclasses.is_dataclass(hints[name]):
            values[name] = _read_nested(hints[name], value, where, problems)
        else:
            values[name] = _checked(cls, fields[name], value, where=where, problems=problems)
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in node:
            where = f"{key}.{name}" if key else name
            problems.append(Problem(where, f"is missing; set it with +{where}=..."))
    return cls(**values) if len(problems) == before else None


def _read_nested(cls: Any, value: Any, where: str, problems: list[Problem]) -> Any:
    if isinstance(value, Mapping):
        return read(cls, value, key=where, problems=problems)
    keys = ", ".join(f.name for f in dataclasses.fields(cls))
    problems.append(Problem(where, f"is {value!r}, must be a mapping with the keys {keys}"))
    return None


def _in_words(kind: str) -> str:
    """A type as a message names it: "an integer or null" for `int | None`."""
    kind = re.sub(r"^Optional\[(.*)\]$", r"\1 | None", kind)
    return " or ".join(_TYPES.get(part, f"of type {part}") for part in kind.split(" | "))


def _checked(cls: type, field: dataclasses.Field, value: Any, *, where: str, problems: list[Problem]) -> Any:
    schema = OmegaConf.structured(cls)
    OmegaConf.set_readonly(schema, False)
    try:
        merged: Any = OmegaConf.to_container(OmegaConf.merge(schema, {field.name: value}), throw_on_missing=False)
        value = merged[field.name]
    except OmegaConfBaseException:
        type_name = field.type.__name__ if isinstance(field.type, type) else str(field.type).replace("typing.", "")
        if value is None:
            problems.append(Problem(where, f"is null; set {where}=... ({type_name})"))
        else:
            problems.append(Problem(where, f"is {value!r}, must be {_in_words(type_name)}"))
        return None
    minimum, choices = field.metadata.get("at_least"), field.metadata.get("choices")
    if isinstance(value, str) and minimum is not None:
        word = field.metadata["or_else"]
        if value != word:
            problems.append(Problem(where, f"is {value!r}, must be a number of {minimum} or more, or {word}"))
    elif minimum is not None and value is not None and value < minimum:
        problems.append(Problem(where, f"is {value}, must be {minimum} or more"))
    if choices and value not in choices:
        problems.append(Problem(where, f"is {value!r}, must be one of {', '.join(map(str, choices))}"))
    return value
