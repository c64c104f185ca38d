"""Runs the command that the first argument names; everything else is Hydra's and runs an experiment."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from rich.console import Console

import psrun
from psrun import parts
from psrun.cli import commands, hydra_app
from psrun.config import groups
from psrun.config.run_config import MODES, OF_A_RUN
from psrun.config.schema import did_you_mean
from psrun.errors import ConfigError, ExitCode
from psrun.roles import run_process

_TRAINING = ("fit", "run", "train")  # words for what psrun does without a command


def run() -> None:
    """Runs psrun on `sys.argv` and ends the process."""
    run_process.to_the_end(_dispatch)


def _dispatch(started_s: float) -> ExitCode:
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        Console().print(f"psrun {psrun.__version__}", highlight=False)
        return ExitCode.DONE
    if arguments and arguments[0] == "help":
        sys.argv[1:] = [*arguments[1:], "--help"]
        return _dispatch(started_s)
    if arguments and arguments[0] in ("-sc", commands.COMPLETION):
        return _completion(arguments[1:])
    is_torn = len(arguments) > 1 and arguments[1].startswith("=")  # NAME = VALUE
    if arguments and arguments[0].isidentifier() and not is_torn:
        return _command(arguments[0], arguments[1:])
    return hydra_app.run(started_s)


def _completion(arguments: list[str]) -> ExitCode:
    complete = commands.find(commands.COMPLETION)
    if complete is None:
        raise ConfigError(parts.with_missing("-sc: completion is not installed"))
    return complete(arguments)


def _command(word: str, arguments: list[str]) -> ExitCode:
    command = commands.find(word)
    if command is None:
        raise ConfigError(_no_command(word, arguments))
    return command(arguments)


def _no_command(word: str, others: Sequence[str]) -> str:
    """The message for a first argument that is no command."""
    keys = [each for each in others if "=" in each or each.startswith("-")]
    names = [each for each in others if each not in keys]
    resumed = f"resume={shlex.quote(names[0])}" if names else "resume=RUN"
    if word in _TRAINING:
        command = _line(keys or ["model=NAME"])
        return f"{word} is no command: psrun trains without one; write {command}"
    if word == "resume":
        command = _line([resumed, *keys])
        return f"resume is a key; write {command}"
    if word in OF_A_RUN:
        command = _line([f"mode={word}", resumed, *keys])
        return f"{word} is a mode; write {command}"
    if word in MODES:
        command = _line([f"mode={word}", *keys])
        return f"{word} is a mode; write {command}"
    if word in groups.ONE_CHOICE:
        choice = names[0] if names else "NAME"
        command = _line([f"{word}={choice}", *keys])
        message = f"{word} is a group; write {command}. psrun {word}=? lists its choices"
        return message if choice in groups.choices_of(word, keys) else parts.with_missing(message)
    guess = did_you_mean(word, commands.words())
    return parts.with_missing(f"unknown command '{word}'.{guess} A run takes GROUP=NAME and KEY=VALUE: see --help")


def _line(arguments: Sequence[str]) -> str:
    return " ".join(["psrun", *arguments])
