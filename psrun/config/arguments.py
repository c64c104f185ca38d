"""The arguments of a command line as text: options, and GROUP=NAME and KEY=VALUE. Imports no Hydra."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from psrun.config import groups

_OF_FILES = (*groups.OPTIONS, *groups.NAME_OPTIONS)
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


def folder_of(arguments: Sequence[str]) -> Path | None:
    """The folder that `resume` names in the arguments; None without one."""
    value = next((a.partition("=")[2] for a in arguments if a.startswith("resume=")), "null")
    return None if value == "null" else Path(unquoted(value)).expanduser().absolute()


def unquoted(value: str) -> str:
    """The text of a value in Hydra's grammar, as `quoted` or a user writes it."""
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return re.sub(r"\\(.)", r"\1", value[1:-1])
    return value


def quoted(folder: Path) -> str:
    """A folder as a value in Hydra's grammar."""
    escaped = str(folder).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
