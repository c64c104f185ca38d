"""`psrun submit ENGINE GROUP=NAME KEY=VALUE...`: hands an experiment, unchanged, to an engine that runs it."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path

from rich.console import Console

from psrun.cli import hydra_app
from psrun.config import compose, parse
from psrun.errors import ConfigError, ExitCode
from psrun.launch.submission import Submission

# The module of each engine: `submit(Submission, Console) -> ExitCode`, imported only where it is asked for.
ENGINES: dict[str, str] = {"kubernetes": "psrun.launch.kubernetes.submission", "slurm": "psrun.launch.slurm.submission"}
_WITH_FILES_OF_THEIR_OWN = ("kubernetes",)  # whose hosts see none of the files that are here


def main(arguments: list[str]) -> ExitCode:
    """Does what `psrun submit ARGUMENTS` asks for.

    Returns:
      The exit code of the run where it is followed, else 0.

    Raises:
      ConfigError: the experiment cannot be run, or not there; with every problem found.
      PsrunError: the engine refuses it, or cannot be reached.
      SystemExit: as argparse ends: help, or arguments that it does not know.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors to us instead of printing them and ending with 1
    sys.path.append(os.getcwd())  # where a person's own models and data are named from
    given = _parser().parse_intermixed_args(arguments)
    said = [*([] if given.config_dir is None else ["--config-dir", given.config_dir]), *given.overrides]
    if given.multirun:
        example = "psrun -m hydra/launcher=submitit_slurm ..."
        raise ConfigError(f"submit takes one run; one of Hydra's launchers hands over a sweep, such as {example}")
    chosen = [each for each in said if each.partition("=")[0] == "cluster"]
    if any(each != f"cluster={given.engine}" for each in chosen):
        raise ConfigError(f"{chosen[0]} does not go with submit {given.engine}: leave it out")
    said = [*(each for each in said if each not in chosen), f"cluster={given.engine}"]
    apart = given.engine in _WITH_FILES_OF_THEIR_OWN
    whole = said if apart else hydra_app.resumed(said)  # with what a run that goes on was started with
    composed = compose.compose(whole)
    if isinstance(composed, Exception):
        raise ConfigError(compose.all_problems(composed, whole)) from composed
    run = parse.load(composed, elsewhere=apart)
    submission = Submission(run, said, Path.cwd(), given.dry_run, given.follow)
    return importlib.import_module(ENGINES[given.engine]).submit(submission, Console(highlight=False))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="psrun submit", description=__doc__.partition(": ")[2])
    parser.add_argument("engine", choices=tuple(ENGINES), help="what runs it")
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="GROUP=NAME or KEY=VALUE, as for a run")
    parser.add_argument("--config-dir", metavar="FOLDER", help="of your own pieces, as for a run")
    parser.add_argument("-m", "--multirun", action="store_true", help=argparse.SUPPRESS)  # refused by name
    parser.add_argument("--dry-run", action="store_true", help="shows what would be handed over; does nothing")
    parser.add_argument("--no-follow", dest="follow", action="store_false", help="ends once it is handed over")
    return parser
