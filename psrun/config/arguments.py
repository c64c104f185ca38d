"""The arguments of a command line as text: options, and GROUP=NAME and KEY=VALUE. Imports no Hydra."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from psrun.config import groups
from psrun.config.schema import did_you_mean
from psrun.errors import ConfigError

_OF_FILES = (*groups.OPTIONS, *groups.NAME_OPTIONS)
_SWEEP = ("-m", "--multirun")
_PRINT = ("--cfg", "-c", "--info", "-i", "--help", "-h", "--hydra-help", "--shell-completion", "-sc", "--version")
_FLAGS = (*_SWEEP, "-r", "--run")
_OF_CFG = ("--package", "-p")
_WITH_VALUE = (*_OF_FILES, *_OF_CFG, "--cfg", "-c", "--info", "-i", "--shell-completion", "-sc")
# Options of Hydra's that would start another run than they say.
_INSTEAD = {
    "--resolve": "is an option of --cfg: add --cfg job",
    **dict.fromkeys(("--config-path", "-cp"), "would replace psrun's own files; use --config-dir FOLDER"),
    "--experimental-rerun": "is not supported; use resume=RUN_FOLDER",
}
ASKS = "?"  # the value of a group whose choices the user asks for


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options, such as --config-dir FOLDER, and the arguments GROUP=NAME and KEY=VALUE."""
    options: list[str] = []
    others: list[str] = []
    value = False
    for argument in arguments:
        option = argument.startswith("-")
        (options if option or (value and "=" not in argument) else others).append(argument)
        value = argument in _WITH_VALUE
    return options, others


def require_options_of_a_run(arguments: Sequence[str], advise: Callable[[str, str], str]) -> None:
    """Checks the options of a run or a sweep.

    Args:
      advise: gives what to write instead of an unknown option and its value; empty without advice.

    Raises:
      ConfigError: there is no such option, or one has no value.
    """
    options, _ = split(arguments)
    lacking = ""  # the option whose value comes next
    for each in [*options, "-"]:
        if lacking and each.startswith("-"):
            raise ConfigError(f"{lacking} has no value; write {lacking} VALUE")
        name, equals, _ = each.partition("=")
        if not lacking and each not in (*_FLAGS, "-") and name not in (*_OF_FILES, *_OF_CFG):
            known = (*_FLAGS, *_OF_FILES, *(option for option in _PRINT if option.startswith("--")))
            if instead := advise(name, _value_of(each, arguments)):
                raise ConfigError(f"{name} is no option of psrun; {instead}")
            advice = _INSTEAD.get(name) or f"is no option of psrun.{did_you_mean(name, known)} See psrun --help"
            raise ConfigError(f"{name} {advice}")
        lacking = "" if lacking or equals or each not in _WITH_VALUE else each


def _value_of(option: str, arguments: Sequence[str]) -> str:
    """The value of an option that psrun does not have: after =, or the next argument."""
    _, equals, value = option.partition("=")
    if equals:
        return value
    following = arguments[arguments.index(option) + 1 :][:1]
    is_value = bool(following) and "=" not in following[0] and not following[0].startswith("-")
    return following[0] if is_value else "VALUE"


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
    return not {*_SWEEP}.isdisjoint(arguments)


def print_something(arguments: Sequence[str]) -> bool:
    """Whether an option of Hydra's asks to print something, and to start no run."""
    return not {*_PRINT}.isdisjoint(map(key_of, arguments))


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
