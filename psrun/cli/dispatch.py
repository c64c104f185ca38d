"""Runs the command that the first argument names; everything else is Hydra's and runs an experiment."""

from __future__ import annotations

import importlib
import sys

from rich.console import Console

import psrun
from psrun.cli import completion, hydra_app
from psrun.cli.main import COMMANDS
from psrun.config.schema import did_you_mean
from psrun.errors import ConfigError, ExitCode
from psrun.roles import run_process


def run() -> None:
    """Runs psrun on `sys.argv` and ends the process."""
    run_process.to_the_end(_dispatch)


def _dispatch(started_s: float) -> ExitCode:
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        Console().print(f"psrun {psrun.__version__}", highlight=False)
        return ExitCode.DONE
    if arguments and arguments[0] in completion.OPTIONS:
        return completion.main(COMMANDS, arguments[1:], started_s)
    if arguments and arguments[0] in COMMANDS:
        return importlib.import_module(COMMANDS[arguments[0]]).main(arguments[1:])
    if arguments and arguments[0].isidentifier():
        guess = did_you_mean(arguments[0], COMMANDS)
        raise ConfigError(f"unknown command '{arguments[0]}'.{guess} A run takes GROUP=NAME and KEY=VALUE: see --help")
    return hydra_app.run(started_s)
