"""The command line: verbs, Hydra's grammar for everything else, exit code."""

from __future__ import annotations

import importlib
import sys

from rich.console import Console

from psrun import __version__, completion, composition, execution
from psrun.errors import ConfigError, ExitCode

VERBS = {
    "checkpoint": "psrun.checkpoint.commands",
    "data": "psrun.data.commands",
    "init": "psrun.project.commands",
    "report": "psrun.reports.commands",
    "submit": "psrun.engines.commands",
    "watch": "psrun.watching.commands",
}


def main() -> None:
    """Runs psrun on `sys.argv` and ends the process."""
    execution.to_the_end(_dispatch)


def _dispatch(started_s: float) -> ExitCode:
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        Console().print(f"psrun {__version__}", highlight=False)
        return ExitCode.DONE
    if arguments and arguments[0] in completion.OPTIONS:
        return completion.main(VERBS, arguments[1:], started_s)
    if arguments and arguments[0] in VERBS:
        return importlib.import_module(VERBS[arguments[0]]).main(arguments[1:])
    if arguments and arguments[0].isidentifier():
        raise ConfigError(
            f"'{arguments[0]}' is no verb that psrun knows ({', '.join(VERBS)}); a run is GROUP=NAME and KEY=VALUE, "
            "see --help"
        )
    return composition.run(started_s)
