"""The command line: verbs, Hydra's grammar for everything else, exit code."""

from __future__ import annotations

import sys
import time

from rich.console import Console

from psrun import __version__, composition, environment
from psrun.errors import ConfigError, ExitCode, PsrunError


def main() -> None:
    """Runs psrun on `sys.argv` and ends the process."""
    started_s = time.time()
    environment.prepare()
    try:
        code = _dispatch(sys.argv[1:], started_s)
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    except PsrunError as error:
        Console(stderr=True).print(f"psrun: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        code = error.exit_code
    except SystemExit as exit_:  # Hydra's own ends: --help, --cfg, --info
        code = ExitCode(int(exit_.code or 0))
    environment.leave(code)


def _dispatch(arguments: list[str], started_s: float) -> ExitCode:
    if arguments == ["--version"]:
        Console().print(f"psrun {__version__}", highlight=False)
        return ExitCode.DONE
    if arguments and arguments[0].isidentifier():
        raise ConfigError(
            f"'{arguments[0]}' is no verb that psrun knows; a run is GROUP=NAME and KEY=VALUE, see --help"
        )
    return composition.run(started_s)
