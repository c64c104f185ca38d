"""`psrun submit ENGINE GROUP=NAME KEY=VALUE...`: submits an experiment to Slurm, or prints its Kubernetes manifests."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from psrun.cli import command_line
from psrun.config import composition, parse, targets
from psrun.engines.submission import Submission
from psrun.errors import ConfigError, ExitCode

# The module of each engine: `submit(Submission) -> ExitCode`, imported on demand.
ENGINES: dict[str, str] = {
    "kubernetes": "psrun.engines.kubernetes.submission",
    "slurm": "psrun.engines.slurm.batch_job",
}
_WITHOUT_LOCAL_FILES = ("kubernetes",)  # their hosts cannot access the files of this machine


def main(arguments: list[str]) -> ExitCode:
    """Runs `psrun submit ARGUMENTS`.

    Returns:
      The exit code of the run if it is followed, else 0.

    Raises:
      ConfigError: the configuration is invalid, or the engine cannot run it; lists all problems.
      PsrunError: the engine rejects the run, or cannot be reached.
      SystemExit: from argparse, for --help and for invalid arguments.
    """
    targets.search_modules()
    options = _parser().parse_intermixed_args(arguments)
    overrides = [
        *([] if options.config_dir is None else ["--config-dir", options.config_dir]),
        *command_line.with_resume_folder(options.overrides),
    ]
    if options.multirun:
        raise ConfigError(
            "submit takes one run: submit each run of a sweep by itself, "
            "or use one of Hydra's launchers, such as psrun -m hydra/launcher=submitit_slurm ..."
        )
    cluster_overrides = [each for each in overrides if each.partition("=")[0] == "cluster"]
    if any(each != f"cluster={options.engine}" for each in cluster_overrides):
        raise ConfigError(f"{cluster_overrides[0]} contradicts submit {options.engine}; remove it")
    overrides = [*(each for each in overrides if each not in cluster_overrides), f"cluster={options.engine}"]
    apart = options.engine in _WITHOUT_LOCAL_FILES
    composed = composition.compose(overrides) if apart else command_line.composed(overrides)
    run = parse.load(composition.values(composed), elsewhere=apart)
    submission = Submission(run, overrides, Path.cwd(), options.dry_run, options.follow)
    return importlib.import_module(ENGINES[options.engine]).submit(submission)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="psrun submit", description=__doc__.partition(": ")[2])
    parser.add_argument("engine", choices=tuple(ENGINES), help="engine that runs the experiment")
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="GROUP=NAME or KEY=VALUE, as for a run")
    parser.add_argument("--config-dir", metavar="FOLDER", help="folder of your own pieces, as for a run")
    parser.add_argument("-m", "--multirun", action="store_true", help=argparse.SUPPRESS)  # for its own error message
    parser.add_argument("--dry-run", action="store_true", help="slurm: print the batch script; submit nothing")
    parser.add_argument("--no-follow", dest="follow", action="store_false", help="slurm: exit after submitting the run")
    return parser
