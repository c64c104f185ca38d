"""`psrun submit ENGINE GROUP=NAME KEY=VALUE...`: submits an experiment to Slurm, or prints its Kubernetes manifests."""

from __future__ import annotations

import argparse
import importlib
import shlex
from pathlib import Path

from psrun.cli import command_line
from psrun.config import composition, parse, schema, targets
from psrun.engines.submission import Submission
from psrun.errors import ConfigError, ExitCode, Problem

# The module of each engine: `submit(Submission) -> ExitCode`, imported on demand.
ENGINES: dict[str, str] = {
    "kubernetes": "psrun.engines.kubernetes.submission",
    "slurm": "psrun.engines.slurm.batch_job",
}
_WITHOUT_LOCAL_FILES = ("kubernetes",)  # their hosts cannot access the files of this machine

_SWEEP = "psrun -m hydra/launcher=submitit_slurm KEY=VALUE,VALUE"
_OPTIONS = ("--dry-run", "--no-follow", "--config-dir")
# Options of sbatch that have a key.
_KEYS = {"--time": "time", "-t": "time", "--partition": "partition", "-p": "partition", "--account": "account",
         "-A": "account", "--qos": "qos", "-q": "qos", "--nodes": "nodes", "-N": "nodes",
         "--cpus-per-task": "cpus_per_task", "-c": "cpus_per_task", "--mem-per-cpu": "memory_per_cpu"}  # fmt: skip


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
    words = [each for each in arguments if not each.startswith("-")]
    if words and "=" in words[0]:
        given = shlex.join(each for each in arguments if each not in ENGINES)
        raise ConfigError(f"submit needs an engine, {' or '.join(ENGINES)}: write psrun submit slurm {given}")
    parser = _parser()
    options, unknown = parser.parse_known_intermixed_args(arguments)
    if unknown and options.engine == "slurm":
        raise ConfigError(_option_of_sbatch(unknown[0]))
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    overrides = [
        *([] if options.config_dir is None else ["--config-dir", options.config_dir]),
        *command_line.with_resume_folder(options.overrides),
    ]
    if options.multirun:
        raise ConfigError(
            f"submit takes one run: submit each run of a sweep by itself, or use one of Hydra's launchers: {_SWEEP}"
        )
    cluster_overrides = [each for each in overrides if each.partition("=")[0] == "cluster"]
    if any(each != f"cluster={options.engine}" for each in cluster_overrides):
        raise ConfigError(f"{cluster_overrides[0]} contradicts submit {options.engine}; remove it")
    overrides = [*(each for each in overrides if each not in cluster_overrides), f"cluster={options.engine}"]
    apart = options.engine in _WITHOUT_LOCAL_FILES
    try:
        composed = composition.compose(overrides) if apart else command_line.composed(overrides)
    except ConfigError as error:
        raise ConfigError([_without_sweeps(problem) for problem in error.problems]) from error
    run = parse.load(composition.values(composed), elsewhere=apart)
    submission = Submission(run, overrides, Path.cwd(), options.dry_run, options.follow)
    return importlib.import_module(ENGINES[options.engine]).submit(submission)


def _option_of_sbatch(given: str) -> str:
    """The message for an option that `psrun submit` does not have: it may be one of sbatch."""
    name, _, value = given.partition("=")
    meant = schema.near(name, _OPTIONS)
    if meant is not None:
        return f"submit has no option {given}; did you mean {meant}?"
    if name in _KEYS:
        return f"submit has no option {given}; use slurm.{_KEYS[name]}={value or 'VALUE'}"
    return f"submit has no option {given}; options of sbatch are given as \"slurm.options=['{given}']\""


def _without_sweeps(problem: Problem) -> Problem:
    """A problem of which -m is the remedy, which submit does not have."""
    return Problem(problem.key, problem.message.replace("to sweep over them, add -m", f"to sweep over them: {_SWEEP}"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="psrun submit", description=__doc__.partition(": ")[2])
    parser.add_argument("engine", choices=tuple(ENGINES), help="engine that runs the experiment")
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="GROUP=NAME or KEY=VALUE, as for a run")
    parser.add_argument("--config-dir", metavar="FOLDER", help="folder of your own pieces, as for a run")
    parser.add_argument("-m", "--multirun", action="store_true", help=argparse.SUPPRESS)  # for its own error message
    parser.add_argument("--dry-run", action="store_true", help="slurm: print the batch script; submit nothing")
    parser.add_argument("--no-follow", dest="follow", action="store_false", help="slurm: exit after submitting the run")
    return parser
