"""The arguments GROUP=NAME and KEY=VALUE of a run, parsed by Hydra and checked one by one against groups and keys."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser, create_functions
from hydra.core.override_parser.types import ChoiceSweep, Override, OverrideType, QuotedString
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from psrun import files
from psrun.config import groups, schema
from psrun.config.arguments import key_of, split
from psrun.config.parse import GROUPS, TOP
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
_TYPOGRAPHIC = "\u201c\u201d\u201e\u00ab\u00bb\u2018\u2019\u201a"  # quotes
_DASHES = ("\u2013", "\u2014")
_OF_QUOTES = "has the typographic quote {}; write a plain one, ' or \""
# The blank before a further argument in a value.
_FURTHER = re.compile(rf"\s+(?=(?:{'|'.join((*GROUPS, *TOP, 'experiment', 'hydra'))})(?:\.[\w.]+)?=)")
_FOLDERS = ("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir")
_SET_HERE = (OverrideType.CHANGE, OverrideType.ADD, OverrideType.FORCE_ADD, OverrideType.DEL)


def parsed(arguments: Sequence[str], loader: ConfigLoader | None = None) -> list[Override]:
    """The arguments GROUP=NAME and KEY=VALUE, which have no `problems`, as Hydra reads them."""
    return OverridesParser.create(config_loader=loader).parse_overrides(split(arguments)[1])


def is_of_a_group(override: Override, known: Mapping[str, Any]) -> bool:
    """Whether an override chooses of a group: of one of `known`, of one within a group, or of one of Hydra's."""
    return override.key_or_group in known or "/" in override.key_or_group or override.key_or_group == "hydra"


def is_set_here(override: Override, known: Mapping[str, Any]) -> bool:
    """Whether psrun sets the key in the composed configuration; Hydra composes from all others."""
    is_key = not is_of_a_group(override, known) and not override.is_hydra_override()
    return is_key and override.type in _SET_HERE


def problems(arguments: Sequence[str], *, sweeps: bool) -> dict[str, Problem]:
    """The problem of each argument that has one, of those that are known before the configuration is composed.

    Args:
      sweeps: whether the arguments may have several values, as with -m.
    """
    choices = groups.choices(arguments)
    others = split(arguments)[1]
    found = _torn(others)
    chosen: dict[str, str] = {}
    for argument in _without(found, others):
        override = _parsed(argument)
        if isinstance(override, Problem):
            found[argument] = override
            continue
        key = override.key_or_group
        if override.type == OverrideType.DEL:
            if key in GROUPS:
                found[argument] = Problem(key, f"cannot be left out; choose one of {', '.join(choices[key])}")
            continue
        of_group = is_of_a_group(override, choices)
        problem = None
        may_vary = sweeps and not key.startswith("sweep.")
        if override.is_sweep_override() and not may_vary:
            problem = _several_values(argument, of_group)
        elif key == "hydra.searchpath":
            problem = Problem(key, "would be searched after psrun's own files; use --config-dir FOLDER")
        elif key in _FOLDERS:
            problem = _of_folder(key, override.value())
        elif of_group:
            problem = _of_group(override, arguments, choices, chosen.get(key))
            chosen[key] = argument.partition("=")[2]
        if problem is not None:
            found[argument] = problem
    return found


def _of_folder(key: str, value: Any) -> Problem | None:
    if not value and key != "hydra.sweep.subdir":
        return Problem(key, f"is {_shown(value)}, must be a folder, such as {key}=runs/NAME")
    return files.not_on_disk(key, value)


def without_mistakes(arguments: Sequence[str], refused: Mapping[str, Problem]) -> list[str]:
    """The arguments without those that have a problem, and without the keys of a choice that is left out.

    A mistyped choice is replaced by the one that was meant.
    """
    kept = [*arguments]
    for argument in refused:
        key, _, value = argument.partition("=")
        options = groups.choices_of(key, arguments) if key in groups.ONE_CHOICE else {}
        meant = schema.near(value, options)
        if meant is not None and value not in options:
            kept = [f"{key}={meant}" if each == argument else each for each in kept]
            continue
        is_choice = key_of(argument) in groups.ONE_CHOICE  # also where it is chosen twice
        kept = [
            each
            for each in kept
            if each != argument
            and not key_of(each).startswith(f"{key_of(argument)}.")
            and not (is_choice and key_of(each) == key_of(argument))
        ]
    return kept


def set_key(config: DictConfig, override: Override) -> Problem | None:
    """Sets, adds or deletes a key of a composed configuration in struct mode; the problem if it cannot be done."""
    key = override.key_or_group
    value = override.value()
    if override.package is not None:
        return Problem(key, f"there is no such group, whose place {override.input_line} states")
    try:
        if override.is_delete():
            return _delete(config, key, value)
        if not override.is_add() and not override.is_force_add() and (empty := _null_above(config, key)):
            return Problem(key, f"is below {empty}, which is null; to add the key, write +{override.input_line}")
        if override.is_add() and not isinstance(value, dict | list) and OmegaConf.select(config, key) is not None:
            return Problem(key, f"exists already; write {str(override.input_line).lstrip('+')} without +")
        OmegaConf.update(config, key, value, merge=True, force_add=override.is_add() or override.is_force_add())
    except (ConfigAttributeError, ConfigKeyError):
        return Problem(key, f"no such key or group (value '{str(override.input_line).partition('=')[2]}').")
    except (OmegaConfBaseException, TypeError) as error:
        return Problem(key, f"cannot be set by {override.input_line}: {str(error).splitlines()[0]}")
    return None


def _null_above(config: DictConfig, key: str) -> str | None:
    """The key above `key` that exists and is null; None if there is none."""
    parts = key.split(".")
    node: Any = config
    for index, part in enumerate(parts[:-1]):
        if not isinstance(node, DictConfig) or part not in node:
            return None
        node = OmegaConf.select(node, part, throw_on_missing=False)
        if node is None:
            return ".".join(parts[: index + 1])
    return None


def _delete(config: DictConfig, key: str, value: Any) -> Problem | None:
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    if not isinstance(node, DictConfig) or name not in node:
        return Problem(key, "there is no such key to delete (~).")
    current = OmegaConf.select(config, key, throw_on_missing=False)
    if current is None:
        return Problem(key, "is not set; remove the argument with ~")
    if value is not None and value != current:
        return Problem(key, f"is {current}, not {value}; to delete it, write ~{key}")
    with open_dict(config):
        del node[name]
    return None


def _torn(arguments: Sequence[str]) -> dict[str, Problem]:
    """The problem of each part of an argument that blanks beside = have torn apart."""
    found: dict[str, Problem] = {}
    for at in range(len(arguments)):
        parts = _parts(arguments[at:])
        whole = "".join(parts)
        for part in parts:
            found[part] = Problem(whole.partition("=")[0], f"has blanks beside =; write {whole}")
    return found


def _without(torn: Collection[str], arguments: Sequence[str]) -> list[str]:
    return [each for each in arguments if each not in torn]


def _parts(arguments: Sequence[str]) -> list[str]:
    """The parts of the first argument, as in NAME = VALUE, NAME= VALUE and NAME =VALUE; empty if it is whole."""
    first, second, third = [*arguments, "", ""][:3]
    if "=" not in first and second == "=" and third and "=" not in third:
        return [first, second, third]
    if "=" not in first and second.startswith("=") and second != "=":
        return [first, second]
    if first.endswith("=") and first.count("=") == 1 and len(first) > 1 and second and "=" not in second:
        return [first, second]
    return []


def _parsed(argument: str) -> Override | Problem:
    """The argument as Hydra reads it, or the problem with it."""
    key, equals, value = argument.partition("=")
    if argument.startswith(_DASHES):
        return Problem(argument, f"begins with a typographic dash, {argument[0]}; write the plain one, - or --")
    if not equals and not argument.startswith("~"):
        if mark := _typographic_quote(argument):
            return Problem(argument, _OF_QUOTES.format(mark))
        return Problem(argument, f"is neither GROUP=NAME nor KEY=VALUE; to set a key, write {argument}=VALUE")
    if not key.lstrip("+~"):
        return Problem(argument, "is neither GROUP=NAME nor KEY=VALUE: there is no name before =")
    try:
        return OverridesParser.create().parse_override(argument)
    except HydraException as error:
        plain_key = key.lstrip("+~" + _TYPOGRAPHIC)
        if mark := _typographic_quote(argument):
            return Problem(plain_key or argument, _OF_QUOTES.format(mark))
        if _FURTHER.search(value) and not value.startswith(_NESTED):
            several = " ".join(map(shlex.quote, _FURTHER.split(argument)))
            return Problem(plain_key, f"holds several arguments in one quotation; write {several}")
        return Problem(plain_key or argument, _unreadable(key, value, error))


def _typographic_quote(argument: str) -> str:
    """The typographic quote that an argument or its value begins or ends with; empty without one."""
    for each in (argument[0], argument.partition("=")[2][:1], argument[-1]):
        if each and each in _TYPOGRAPHIC:
            return each
    return ""


def _unreadable(key: str, value: str, error: HydraException) -> str:
    """The message for a value that cannot be read."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    quoted = f'{key}="{escaped}"'
    if not value.startswith(_NESTED) and "(" not in value and not isinstance(_parsed(quoted), Problem):
        return f"contains characters with a special meaning; quote the value: {shlex.quote(quoted)}"
    if call := re.fullmatch(r"(\w+)\(.*\)", value):
        functions = create_functions().functions
        if call[1] not in functions:
            hint = schema.did_you_mean(call[1], functions)
            return f"has the value {value}, but there is no function {call[1]}.{hint}"
        if isinstance(error.__cause__, TypeError):  # of the call
            return f"has the value {value}, which cannot be evaluated: {error.__cause__}"
        if re.search(r"[(,]\s*[,)]", value):
            return f"has the value {value}, in which an argument is missing"
    where = re.search(r"at input '(.*)'|token recognition error at: '(.*)'", str(error))
    place = f" at {(where[1] or where[2])!r}" if where and (where[1] or where[2]) else ""
    return f"has the value {value}, which cannot be read{place}: close each bracket and quote, and quote text"


def _several_values(argument: str, of_group: bool) -> Problem:
    key, _, value = argument.partition("=")
    key = key.lstrip("+~")
    if key.startswith("sweep."):
        return Problem(key, f"has several values, {value}; a sweep has one")
    quoted = shlex.quote(f'{key}="{value}"')
    is_text = re.search(r"[^\W\d_e]", value) and not of_group and "(" not in value
    if re.fullmatch(r"0,\d+", value) and not of_group:
        number = value.replace(",", ".")
        message = f"has several values, {value}; to sweep over them, add -m; for a number with a fraction, write"
        return Problem(key, f"{message} {key}={number}")
    text = f"; for one text with commas, quote it: {quoted}" if is_text else ""
    return Problem(key, f"has several values, {value}; to sweep over them, add -m{text}")


def _of_group(
    override: Override, arguments: Sequence[str], known: Mapping[str, Mapping[str, Path]], before: str | None
) -> Problem | None:
    """The problem of an argument that chooses of a group; `before` is the value of an earlier one."""
    key = override.key_or_group
    given = str(override.input_line).partition("=")[2]  # with -m perhaps several values
    of_hydra = key.partition("/")[0] == "hydra"
    if before is not None and override.type == OverrideType.CHANGE:
        are_names = all(value in known.get(key, ()) and value != "none" for value in (before, given))
        both = f", or write {key}=[{before},{given}]" if key in groups.SEVERAL_CHOICES and are_names else ""
        return Problem(key, f"is chosen twice, as {before} and as {given}; keep one of them{both}")
    if override.type != OverrideType.CHANGE and key in groups.ONE_CHOICE:
        return Problem(key, f"has a choice already; write {key}={given} without +")
    if override.package is not None and key in groups.ONE_CHOICE:
        return Problem(key, f"has a fixed place in the configuration; write {key}=NAME without @")
    options: Mapping[str, Path] = {} if of_hydra else known.get(key) or groups.choices_of(key, arguments)
    has_one = key in groups.ONE_CHOICE or of_hydra  # others are groups of the user's
    problems = (_of_choice(key, value, options, arguments, has_one=has_one) for value in _values(override))
    return next((problem for problem in problems if problem is not None), None)


def _of_choice(
    key: str, value: Any, choices: Mapping[str, Path], arguments: Sequence[str], *, has_one: bool
) -> Problem | None:
    """The problem of a value for a group, of which a run may have one choice or several."""
    text = str(value)
    if isinstance(value, list) and key in groups.SEVERAL_CHOICES:
        return _of_choices(key, value, choices, arguments)
    if isinstance(value, list) and value and has_one:
        names = ",".join(map(_shown, value))
        advice = f"to run each of them, add -m and write {key}={names}" if len(value) > 1 else f"write {key}={names}"
        return Problem(key, f"is [{names}], must be a single choice; {advice}")
    if isinstance(value, list) and not has_one:
        problems = (_of_choice(key, each, choices, arguments, has_one=True) for each in value)
        return next((problem for problem in problems if problem is not None), None)
    if (key, text) in _INSTEAD and text not in choices:
        return Problem(key, f"there is no '{text}': {_INSTEAD[key, text]}. Choose one of {', '.join(choices)}.")
    if not isinstance(value, str) or not text:
        return Problem(key, f"is {_shown(value)}, must be the name of a choice{_named(key, choices)}")
    if text in choices:
        return groups.problem_of_file(key, choices[text], arguments)
    return groups.no_such_choice(key, text, choices, arguments) if choices else None  # Hydra knows its own


def _of_choices(key: str, values: list[Any], choices: Mapping[str, Path], arguments: Sequence[str]) -> Problem | None:
    """The problem of a list of choices for a group of which a run may have several."""
    if not values:
        return Problem(key, f"is [], must name at least one choice{_named(key, choices)}")
    for number, value in enumerate(values):
        if isinstance(value, list):
            return Problem(key, f"has a list within a list, [{', '.join(map(_shown, value))}]; write {key}=[A,B]")
        if value in values[:number]:
            return Problem(key, f"lists {_shown(value)} twice; remove one of them")
        if (problem := _of_choice(key, value, choices, arguments, has_one=True)) is not None:
            return problem
    return None


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
