"""The arguments GROUP=NAME and KEY=VALUE of a run, checked one by one before a configuration is composed from them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, OverrideType, QuotedString
from hydra.errors import HydraException

from psrun.config import groups
from psrun.config.parse import GROUPS
from psrun.errors import Problem

_NESTED = ("[", "{", "'", '"', "$")  # values with their own grammar, which quoting would turn into plain text
# Choices that users may expect, and what to choose instead.
_INSTEAD = {
    ("cluster", "tpu"): "TensorFlow's TPUStrategy is synchronous, without parameter servers and coordinator; psrun "
    "does not support it",
    **{
        ("data", name): "data=table reads such files: data=table data.path=FILE data.label=COLUMN"
        for name in ("arrow", "csv", "feather", "file", "files", "json", "jsonl", "npz", "parquet", "tfrecord", "tsv")
    },
}
_FOLDERS = ("hydra.run.dir", "hydra.sweep.dir")
_OF_FILES = (*groups.OPTIONS, "--config-name", "-cn", "--config-path", "-cp")
ASKS = "?"  # the value of a group whose choices the user asks for


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options, such as --config-dir FOLDER, and the arguments GROUP=NAME and KEY=VALUE."""
    options: list[str] = []
    others: list[str] = []
    value = False
    for argument in arguments:
        option = argument.startswith("-")
        (options if option or (value and "=" not in argument) else others).append(argument)
        value = option
    return options, others


def options_first(arguments: Sequence[str]) -> list[str]:
    """Moves options, such as --config-dir FOLDER, before all KEY=VALUE, as Hydra's parser requires."""
    options, others = split(arguments)
    return [*options, *others]


def of_the_configuration(arguments: Sequence[str]) -> list[str]:
    """The arguments without the options that do not choose files, such as -m, or --cfg with its value."""
    options, others = split(arguments)
    before = ["", *options]
    kept = [
        option
        for option, previous in zip(options, before)
        if option.partition("=")[0] in _OF_FILES or previous in _OF_FILES
    ]
    return [*kept, *others]


def key_of(argument: str) -> str:
    """The key or group that an argument sets, without the place where a group goes."""
    return argument.partition("=")[0].lstrip("+~").partition("@")[0]


def are_of_a_sweep(arguments: Sequence[str]) -> bool:
    """Whether the arguments start or resume a sweep."""
    return any(argument in ("-m", "--multirun") for argument in arguments)


def asked_for(arguments: Sequence[str]) -> list[str]:
    """The groups whose choices the arguments ask for, as in `model=?`."""
    return [argument.partition("=")[0] for argument in arguments if argument.endswith(f"={ASKS}")]


def problems(arguments: Sequence[str], *, sweeps: bool) -> dict[str, Problem]:
    """The problem of each argument that has one.

    Args:
      sweeps: whether the arguments may have several values, as with -m.
    """
    choices = groups.choices(arguments)
    found: dict[str, Problem] = {}
    chosen: dict[str, str] = {}
    for argument in split(arguments)[1]:
        override = _parsed(argument)
        if isinstance(override, Problem):
            found[argument] = override
            continue
        key = override.key_or_group
        if override.type == OverrideType.DEL:
            if key in GROUPS:
                found[argument] = Problem(key, f"cannot be left out; choose one of {', '.join(choices[key])}")
            continue
        of_group = key in choices or key.partition("/")[0] == "hydra"
        problem = None
        if override.is_sweep_override() and not sweeps:
            problem = _several_values(argument, of_group)
        elif key == "hydra.searchpath":
            problem = Problem(key, "would be searched after psrun's own files; use --config-dir FOLDER")
        elif key in _FOLDERS and not override.value():
            problem = Problem(key, f"is {_shown(override.value())}, must be a folder, such as {key}=runs/NAME")
        elif of_group:
            problem = _of_group(override, choices.get(key, {}), chosen.get(key))
            chosen[key] = argument.partition("=")[2]
        if problem is not None:
            found[argument] = problem
    return found


def _parsed(argument: str) -> Override | Problem:
    """The argument as Hydra reads it, or the problem with it."""
    key, equals, value = argument.partition("=")
    if not equals and not argument.startswith("~"):
        return Problem(argument, f"is neither GROUP=NAME nor KEY=VALUE; to set a key, write {argument}=VALUE")
    if not key.lstrip("+~"):
        return Problem(argument, "is neither GROUP=NAME nor KEY=VALUE: there is no name before =")
    try:
        return OverridesParser.create().parse_override(argument)
    except HydraException as error:
        return Problem(key.lstrip("+~") or argument, _unreadable(key, value, error))


def _unreadable(key: str, value: str, error: HydraException) -> str:
    """The message for a value that cannot be read."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    quoted = f'{key}="{escaped}"'
    if not value.startswith(_NESTED) and "(" not in value and _is_readable(quoted):
        return f"contains characters with a special meaning; quote the value: {shlex.quote(quoted)}"
    where = re.search(r"at input '(.*)'|token recognition error at: '(.*)'", str(error))
    place = f" at {(where[1] or where[2])!r}" if where and (where[1] or where[2]) else ""
    return f"has the value {value}, which cannot be read{place}: close each bracket and quote, and quote text"


def _is_readable(argument: str) -> bool:
    try:
        OverridesParser.create().parse_override(argument)
    except HydraException:
        return False
    return True


def _several_values(argument: str, of_group: bool) -> Problem:
    key, _, value = argument.partition("=")
    key = key.lstrip("+~")
    quoted = shlex.quote(f'{key}="{value}"')
    is_text = re.search(r"[^\W\d_e]", value) and not of_group and "(" not in value
    text = f"; for one text with commas, quote it: {quoted}" if is_text else ""
    return Problem(key, f"has several values, {value}; to sweep over them, add -m{text}")


def _of_group(override: Override, choices: Mapping[str, Path], before: str | None) -> Problem | None:
    """The problem of an argument that chooses of a group; `before` is the value of an earlier one."""
    key = override.key_or_group
    has_one = key in groups.ONE_CHOICE or key.partition("/")[0] == "hydra"  # others are groups of the user's
    if before is not None and override.type == OverrideType.CHANGE:
        message = f"is chosen twice, as {before} and as {override.get_value_element_as_str()}; keep one of them"
        return Problem(key, message)
    if override.type != OverrideType.CHANGE and key in groups.ONE_CHOICE:
        return Problem(key, f"has a choice already; write {key}={override.get_value_element_as_str()} without +")
    if override.package is not None and key in groups.ONE_CHOICE:
        return Problem(key, f"has a fixed place in the configuration; write {key}=NAME without @")
    problems = (_of_choice(key, value, choices, has_one=has_one) for value in _values(override))
    return next((problem for problem in problems if problem is not None), None)


def _of_choice(key: str, value: Any, choices: Mapping[str, Path], *, has_one: bool) -> Problem | None:
    """The problem of a value for a group, of which a run may have one choice or several."""
    text = str(value)
    if isinstance(value, list) and value and has_one:
        names = ",".join(map(_shown, value))
        advice = f"to run each of them, add -m and write {key}={names}" if len(value) > 1 else f"write {key}={names}"
        return Problem(key, f"is [{names}], must be a single choice; {advice}")
    if isinstance(value, list) and not has_one:
        problems = (_of_choice(key, each, choices, has_one=True) for each in value)
        return next((problem for problem in problems if problem is not None), None)
    if (key, text) in _INSTEAD and text not in choices:
        return Problem(key, f"there is no '{text}': {_INSTEAD[key, text]}. Choose one of {', '.join(choices)}.")
    if not isinstance(value, str) or not text:
        return Problem(key, f"is {_shown(value)}, must be the name of a choice{_named(key, choices)}")
    file = choices.get(text)
    return None if file is None or file.is_relative_to(groups.CONF) else groups.mistaken_defaults_of(file)


def _values(override: Override) -> Iterator[Any]:
    """The values of an argument, with -m all of them; none where they are not listed, as with `glob(*)`."""
    value: Any = override.value()
    if not override.is_sweep_override():
        yield value
    elif isinstance(value, ChoiceSweep):
        yield from (each.text if isinstance(each, QuotedString) else each for each in value.list)


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) or "empty"


def _named(key: str, choices: Mapping[str, Any]) -> str:
    return f": {', '.join(choices)}" if choices else f", such as {key}=NAME"
