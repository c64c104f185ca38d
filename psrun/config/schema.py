"""Reads a configuration node into a dataclass and collects all problems instead of raising the first.

OmegaConf's structured configs check the types. psrun adds the list of all problems, ranges and choices (in the
metadata of fields), and suggestions for mistyped keys. `Choice` is the base of the dataclasses that name their code.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import os
import re
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from psrun import parts
from psrun.errors import Problem

_RANGE = re.compile(r"(\d+)(?:\.\.|-|:)(\d+)")
_INTEGERS = ("int", "int | None", "Optional[int]")
_MOST_INTEGERS = 20  # that an advice lists
T = TypeVar("T")
# Common names of keys that have another name here.
ALSO_CALLED = {
    "batch_size": "global_batch_size",
    "lr": "learning_rate",
    "num_epochs": "epochs",
    "num_parameter_servers": "num_ps",
    "ps": "num_ps",
    "workers": "num_workers",
}
MISSING = "???"
AUTO = "auto"  # a value that follows from others, or from the data
_TYPES = {
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "list[str]": "a list of texts",
    "list[int]": "a list of integers",
    "list[float]": "a list of numbers",
    "list[Any]": "a list",
    "dict[int, float]": "numbers by index, such as {0: 0.05},",
    "None": "null",
}


def at_least(
    minimum: float, *, at_most: float = math.inf, or_else: str | None = None, default: Any = dataclasses.MISSING
) -> Any:
    """A field whose value must be in [minimum, at_most], or the word `or_else`; required without a default."""
    metadata = {"at_least": minimum, "at_most": at_most, "or_else": or_else}
    return dataclasses.field(default=default, metadata=metadata)


def one_of(*choices: str | bool | None, default: Any = dataclasses.MISSING) -> Any:
    """A field whose value must be one of `choices`; required without a default."""
    return dataclasses.field(default=default, metadata={"choices": choices})


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """ " Did you mean 'x'?" for the closest match in `known`, or the list of `known` if nothing is close."""
    known = sorted(known)
    if ALSO_CALLED.get(word) in known:
        return f" Did you mean '{ALSO_CALLED[word]}'?"
    lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), lower, n=3)
    if near:
        swapped = [each for each in near if sorted(each) == sorted(word.lower())]  # the most common typo
        return f" Did you mean '{lower[(swapped or near)[0]]}'?"
    return f" Valid names: {', '.join(known)}." if known else ""


def near(word: str, known: Collection[str]) -> str | None:
    """The one of `known` of which `word` is very likely a typo, or another name."""
    if ALSO_CALLED.get(word) in known:
        return ALSO_CALLED[word]
    lower = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), lower, n=1, cutoff=0.8)
    return lower[found[0]] if found else None


def file_meant(path: str) -> str:
    """ " Did you mean 'x'?" for a file that does not exist, if its folder has one of about that name; else empty."""
    folder, name = os.path.split(path)
    try:
        meant = near(name, os.listdir(folder or "."))
    except OSError:
        return ""
    return "" if meant is None else f" Did you mean '{os.path.join(folder, meant)}'?"


def is_near(word: str, known: Collection[str]) -> bool:
    """Whether `word` is very likely a typo, or another name, of one of `known`."""
    return near(word, known) is not None


def read(
    cls: type[T], node: Mapping[str, Any], *, key: str, problems: list[Problem], others: Iterable[str] = ()
) -> T | None:
    """`node` as a `cls`, or None after adding all its problems to `problems`.

    Args:
      cls: a dataclass with annotations that OmegaConf supports.
      node: plain values, as from `OmegaConf.to_container`.
      key: the key of the node in the configuration, for messages.
      problems: receives the problems.
      others: further valid keys beside the fields of `cls`, for suggestions.
    """
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    before = len(problems)
    plain = {name for name in fields if not dataclasses.is_dataclass(hints[name])}
    # All at once is much faster than one by one, which finds out where the types are wrong.
    given = {name: value for name, value in node.items() if name in plain and value != MISSING}
    converted = _converted(cls, given)
    values = {}
    for name, value in node.items():
        where = f"{key}.{name}" if key else name
        if name not in fields:
            problems.append(
                Problem(where, f"no such key (value {value!r}).{did_you_mean(str(name), [*fields, *others])}")
            )
        elif value == MISSING:
            problems.append(Problem(where, f"is required; set {where}=..."))
        elif dataclasses.is_dataclass(hints[name]):
            values[name] = _read_nested(hints[name], value, where, problems)
        else:
            of_type = _converted(cls, {name: value}) if converted is None else converted
            if of_type is None:
                problems.append(_wrong_type(fields[name], value, where))
            else:
                values[name] = of_type[name]
                problems += _not_allowed(fields[name], values[name], where)
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


def _in_words(kind: str, word: str | None) -> str:
    """A type as a message names it: "an integer or null" for `int | None`.

    Args:
      word: the only text that is allowed; None if there is no such.
    """
    kind = re.sub(r"^Optional\[(.*)\]$", r"\1 | None", kind)
    words = _TYPES if word is None else {**_TYPES, "str": word}
    return " or ".join(words.get(part, f"of type {part}") for part in kind.split(" | "))


@functools.cache
def _schema(cls: type) -> Any:
    schema = OmegaConf.structured(cls)
    OmegaConf.set_readonly(schema, False)
    return schema


def _converted(cls: type, values: Mapping[str, Any]) -> dict[str, Any] | None:
    """`values` with the types of the fields of `cls`; None if one has another type."""
    try:
        merged: Any = OmegaConf.to_container(OmegaConf.merge(_schema(cls), values), throw_on_missing=False)
    # A mapping merged into a list is a plain TypeError in OmegaConf 2.4 (2.4.1rc1), not an error of OmegaConf.
    except (OmegaConfBaseException, TypeError):
        return None
    return merged


def _wrong_type(field: dataclasses.Field, value: Any, where: str) -> Problem:
    type_name = field.type.__name__ if isinstance(field.type, type) else str(field.type).replace("typing.", "")
    word = field.metadata.get("or_else")
    if value is None:
        return Problem(where, f"is null; set {where}=... ({_in_words(type_name, word)})")
    return Problem(where, f"is {value!r}, must be {_in_words(type_name, word)}{_several(where, type_name, value)}")


def _several(where: str, type_name: str, value: Any) -> str:
    """How to run each integer of a value such as '1..3'; empty if it is no such range."""
    found = _RANGE.fullmatch(value) if type_name in _INTEGERS and isinstance(value, str) else None
    if found is None:
        return ""
    first, last = map(int, found.groups())
    integers = range(first, last + 1)
    if not 1 < len(integers) <= _MOST_INTEGERS:
        return ""
    return f"; to run each of them, add -m and write {where}={','.join(map(str, integers))}"


def _not_allowed(field: dataclasses.Field, value: Any, where: str) -> Iterator[Problem]:
    minimum = field.metadata.get("at_least")
    choices = field.metadata.get("choices")
    if isinstance(value, str) and minimum is not None:
        word = field.metadata["or_else"]
        if value != word:
            guess = did_you_mean(value, [word]) if is_near(value, [word]) else ""
            yield Problem(where, f"is {value!r}, must be a number of {minimum} or more, or {word}.{guess}".rstrip("."))
    elif minimum is not None and value is not None:
        if math.isnan(value):  # no comparison would refuse it
            yield Problem(where, f"is {value}, must be a number")
        elif value < minimum:
            yield Problem(where, f"is {value}, must be {minimum} or more")
        elif value > field.metadata.get("at_most", math.inf):
            yield Problem(where, f"is {value}, must be at most {field.metadata['at_most']}")
    if choices and value not in choices:
        names = ", ".join("null" if each is None else str(each) for each in choices)
        yield Problem(where, f"is {value!r}, must be one of {names}")


class Choice:
    """One choice of a group: its options, and the answers to what the rest of psrun asks about it.

    Attributes:
      implementation: 'package.module:name' of the code that carries it out; imported when it is needed, because it may
        import TensorFlow.
    """

    implementation: ClassVar[str] = ""

    def load(self) -> Any:
        """Imports and returns the implementation.

        Raises:
          ImportError, AttributeError: it does not exist.
        """
        return parts.load(self.implementation)
