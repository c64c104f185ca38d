"""Reads arguments GROUP=NAME and KEY=VALUE; for those that Hydra cannot read, what to write instead."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser, create_functions
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from psrun.config import groups, schema
from psrun.config.groups import key_of
from psrun.config.parse import GROUPS, TOP
from psrun.errors import Problem

_NESTED = ("[", "{", "'", '"', "$")  # values with their own grammar, which quoting would turn into plain text
_TYPOGRAPHIC = "\u201c\u201d\u201e\u00ab\u00bb\u2018\u2019\u201a"  # quotes
_DASHES = ("\u2013", "\u2014")
_OF_QUOTES = "has the typographic quote {}; write a plain one, ' or \""
# The blank before a further argument in a value.
_NAMES = (*GROUPS, *TOP, "experiment", "hydra")
_FURTHER = re.compile(rf"\s+(?=(?:{'|'.join(_NAMES)})(?:\.[\w.]+)?=)")


def torn(arguments: Sequence[str]) -> dict[str, Problem]:
    """The problem of each part of an argument KEY=VALUE that is written as several arguments."""
    found: dict[str, Problem] = {}
    for at in range(len(arguments)):
        parts = _torn_parts(arguments[at:])
        whole = "".join(parts)
        message = f"has blanks beside =; write {whole}"
        if "=" not in whole:
            whole = "=".join(parts)
            message = f"has no = before its value; write {whole}"
        for part in parts:
            found[part] = Problem(whole.partition("=")[0], message)
        parts = _parts_in_brackets(arguments[at:])
        whole = " ".join(parts)
        for part in parts:
            found[part] = Problem(key_of(whole), f"has blanks, but no quotes around it; write {shlex.quote(whole)}")
        parts = _parts_after_commas(arguments[at:])
        for part in parts:
            found[part] = Problem(key_of(parts[0]), f"has a blank between its values; write {''.join(parts)}")
    return found


def _torn_parts(arguments: Sequence[str]) -> list[str]:
    """The parts of the first argument: NAME = VALUE, NAME= VALUE, NAME =VALUE or NAME VALUE; empty if it is whole."""
    first, second, third = [*arguments, "", ""][:3]
    if "=" not in first and second == "=" and third and "=" not in third:
        return [first, second, third]
    if "=" not in first and second.startswith("=") and second != "=":
        return [first, second]
    if first.endswith("=") and first.count("=") == 1 and len(first) > 1 and second and "=" not in second:
        return [first, second]
    is_value = bool(second) and "=" not in second and not _is_name(second)
    if is_value and _is_name(first):
        return [first, second]
    return []


def _parts_in_brackets(arguments: Sequence[str]) -> list[str]:
    """The parts of the first argument: KEY={0: 1} or KEY=[a, b] without quotes; empty if it is whole."""
    if not arguments or not arguments[0].partition("=")[2].startswith(("{", "[")):
        return []
    num_open = 0
    for at, argument in enumerate(arguments):
        num_open += argument.count("{") + argument.count("[") - argument.count("}") - argument.count("]")
        if num_open <= 0:
            return [*arguments[: at + 1]] if at else []
    return []


def _parts_after_commas(arguments: Sequence[str]) -> list[str]:
    """The parts of the first argument: KEY=A, B without quotes; empty if it is whole."""
    if not arguments or "=" not in arguments[0] or "[" in arguments[0] or "{" in arguments[0]:
        return []
    parts = [arguments[0]]
    for argument in arguments[1:]:
        if not parts[-1].endswith(",") or "=" in argument or argument.startswith("-"):
            break
        parts.append(argument)
    return parts if len(parts) > 1 else []


def _is_name(argument: str) -> bool:
    """Whether an argument is the name of a group or a key, without a value."""
    above, dot, _ = argument.partition(".")
    if dot:
        return above in _NAMES and re.fullmatch(r"[\w.]+", argument) is not None
    return argument in groups.ONE_CHOICE or argument in groups.SINGLE_KEYS


def parsed(argument: str) -> Override | Problem:
    """The argument as Hydra reads it, or the problem with it."""
    key, equals, value = argument.partition("=")
    if not argument.strip():
        return Problem("", "an argument is empty; remove it, or the quotes around nothing")
    if argument.startswith(_DASHES):
        return Problem(argument, f"begins with a typographic dash, {argument[0]}; write the plain one, - or --")
    if not equals and not argument.startswith("~"):
        if mark := _typographic_quote(argument):
            return Problem(argument, _OF_QUOTES.format(mark))
        return Problem(argument, f"is neither GROUP=NAME nor KEY=VALUE; {_with_equals(argument)}")
    if not key.lstrip("+~"):
        return Problem(argument, "is neither GROUP=NAME nor KEY=VALUE: there is no name before =")
    try:
        return OverridesParser.create().parse_override(argument)
    except HydraException as error:
        plain_key = key.lstrip("+~" + _TYPOGRAPHIC)
        if mark := _typographic_quote(argument):
            return Problem(plain_key or argument, _OF_QUOTES.format(mark))
        if not value.startswith(_NESTED) and (instead := _in_one_quotation(argument)):
            return Problem(plain_key.strip().partition(" ")[0], instead)
        return Problem(plain_key or argument, _unreadable_value(key, value, error))


def _with_equals(argument: str) -> str:
    """What to write instead of an argument without =."""
    name = re.split(r"[:\s]", argument, maxsplit=1)[0]
    value = argument.removeprefix(name).lstrip(": ")
    if value and _is_name(name):
        return f"write {name}={shlex.quote(value)}"
    if "/" in argument and not argument.startswith("hydra/"):
        return f"to continue a run, write psrun resume {shlex.quote(argument)}"
    return f"to set a key, write {argument}=VALUE"


def _in_one_quotation(argument: str) -> str:
    """What to write instead of an argument that blanks make unreadable; empty without such blanks."""
    without = re.sub(r"\s*=\s*", "=", argument.strip())
    several = _FURTHER.split(without)
    several[:1] = several[0].split(maxsplit=_words_before_key(several[0]))
    if len(several) > 1:
        return f"holds several arguments in one quotation; write {' '.join(map(shlex.quote, several))}"
    if without != argument and re.search(r"\s", argument.partition("=")[0]):
        return f"has blanks beside =; write {shlex.quote(without)}"
    return ""


def _words_before_key(argument: str) -> int:
    """How many words stand before the key in an argument, as in `train model=dense`."""
    return len(argument.partition("=")[0].split()) - 1


def _typographic_quote(argument: str) -> str:
    """The typographic quote that an argument or its value begins or ends with; empty without one."""
    for each in (argument[0], argument.partition("=")[2][:1], argument[-1]):
        if each and each in _TYPOGRAPHIC:
            return each
    return ""


def _unreadable_value(key: str, value: str, error: HydraException) -> str:
    """The message for a value that cannot be read."""
    if value.startswith("="):
        return f"has two =; write {key}={value.lstrip('=')}"
    if value.endswith(","):
        return f"ends with a comma; add the value after it, or write {key}={value.rstrip(',')}"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    quoted = f'{key}="{escaped}"'
    if not value.startswith(_NESTED) and "(" not in value and not isinstance(parsed(quoted), Problem):
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
    texts = _quoted_texts(value)
    if texts and not isinstance(parsed(f"{key}={texts}"), Problem):
        return f'has texts with special characters in its list; quote each of them: "{key}={texts}"'
    where = re.search(r"at input '(.*)'|token recognition error at: '(.*)'", str(error))
    place = f" at {(where[1] or where[2])!r}" if where and (where[1] or where[2]) else ""
    return f"has the value {value}, which cannot be read{place}: close each bracket and quote, and quote text"


def _quoted_texts(value: str) -> str:
    """A list of plain texts with each of them in single quotes; empty for another value, or text for a shell."""
    items = re.fullmatch(r"""\[([^][{}()'"$`\\!]+)\]""", value)
    if items is None:
        return ""
    quoted = [f"'{item.strip()}'" for item in items[1].split(",")]
    return f"[{','.join(quoted)}]"
