"""The edge to Hydra: composes the configuration and hands it over as plain values. Nothing beyond it sees Hydra."""

from __future__ import annotations

import json
import os
import secrets
import sys
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from psrun.cli import hydra_sweeps
from psrun.config import compose
from psrun.errors import ConfigError, ExitCode, Problem, PsrunError
from psrun.launch.slurm import task_identity
from psrun.results import recorded_config
from psrun.results.recorded_config import key_of
from psrun.results.recorded_groups import RecordedChoices
from psrun.results.run_folder import HYDRA, RunFolder, cannot_be_made
from psrun.results.sweep_record import RECORD as SWEEP
from psrun.roles import run_process

# Options of Hydra's that print something, and start no run.
_PRINT = {"--cfg", "-c", "--info", "-i", "--help", "-h", "--hydra-help", "--shell-completion", "-sc"}


def run(started_s: float) -> ExitCode:
    """Runs what `sys.argv` says in Hydra's grammar: one run, or with -m a sweep of them.

    Raises:
      ConfigError: the configuration cannot be composed; with all that is wrong with it.
      RunFolderError: the disk is full.
      SweepError: a sweep could not go on.
    """
    # Two runs started in the same second do not share a folder.
    OmegaConf.register_new_resolver("short_id", lambda: secrets.token_hex(2), use_cache=True, replace=True)
    OmegaConf.register_new_resolver("run_name", _run_name, use_cache=True, replace=True)
    sys.path.append(os.getcwd())  # where a person's own models and data are named from
    said, codes = sys.argv[1:], []
    errors: list[PsrunError] = []
    arguments = compose.options_first(said)
    if hydra_sweeps.is_asked_for(arguments):
        return hydra_sweeps.run(arguments)

    def job(composed: DictConfig) -> None:
        try:
            codes.append(_job(composed, said, started_s))
        except PsrunError as error:  # kept from Hydra, which would print words of its own
            errors.append(error)

    sys.argv[1:] = resumed(arguments)
    folder = recorded_config.folder_of(arguments)
    undo = None if folder is None else RunFolder(folder).snapshot(HYDRA)  # which Hydra writes before it hands over
    try:
        compose.run(job)
    except compose.HYDRA_ERRORS as error:
        errors.append(ConfigError(compose.all_problems(error, sys.argv[1:])))
    except OSError as error:
        if not _PRINT.isdisjoint(map(key_of, arguments)):  # standard output is what cannot be written
            raise
        errors.append(cannot_be_made(_run_folder(sys.argv[1:], error), error))
    if undo is not None and ExitCode.USAGE in (*codes, *(error.exit_code for error in errors)):
        undo()
    if errors:
        raise errors[0]
    return codes[0] if codes else ExitCode.DONE


def _run_folder(arguments: list[str], error: OSError) -> Path:
    """The folder that Hydra could not make, or write to, before it handed over."""
    named = [a.partition("=")[2] for a in arguments if a.startswith("hydra.run.dir=")]
    return Path(recorded_config.unquoted(named[-1]) if named else error.filename or "runs").absolute()


def _run_name(cluster: str, otherwise: str) -> str:
    """The name of a new run's folder: of a Slurm step, all of whose tasks share one, or a name of its own."""
    return (task_identity.run_name(os.environ) if cluster == "slurm" else None) or otherwise


def _job(composed: DictConfig, said: list[str], started_s: float) -> ExitCode:
    settings = HydraConfig.get()
    if settings.mode == RunMode.MULTIRUN:
        raise ConfigError([Problem("hydra.mode", "is MULTIRUN; ask for a sweep with -m")])
    folder = Path(settings.runtime.output_dir).absolute()
    plain = compose.plain(composed)
    if composed.resume:
        plain = recorded_config.as_recorded(plain, OmegaConf.to_container(composed, resolve=False), folder, said)
    overrides = [override for override in settings.overrides.task if key_of(override) != "resume"]
    # A folder that was asked for by name is kept whatever it holds; all tasks of a Slurm step share theirs.
    named = any(key_of(override) == "hydra.run.dir" for override in settings.overrides.hydra)
    keep = named or plain["cluster"].get("kind") == "slurm"
    return run_process.execute(plain, folder, overrides, started_s=started_s, keep_unrun=keep)


def resumed(arguments: list[str]) -> list[str]:
    """The arguments of a run that goes on: those that it was started with, as far as no other is given now.

    Raises:
      ConfigError: there is no run where `resume` says.
    """
    folder = recorded_config.folder_of(arguments)
    if folder is None:
        return arguments
    if any(a.startswith("hydra.run.dir=") for a in arguments):
        raise ConfigError([Problem("resume", "a run goes on in its own folder: without hydra.run.dir")])
    try:
        said = json.loads((folder / "run.json").read_text(encoding="utf-8"))["overrides"]
    except (OSError, ValueError, KeyError) as error:
        hint = "; it holds a sweep: psrun -m resume=..." if (folder / SWEEP).exists() else ""
        raise ConfigError([Problem("resume", f"there is no run in {folder} ({error}){hint}")]) from error
    now = {key_of(argument) for argument in arguments}
    before = [argument for argument in said if key_of(argument) not in now]
    choices = RecordedChoices(folder, said, {*now, *map(key_of, before)})
    quoted = recorded_config.quoted(folder)
    others = [a for a in arguments if not a.startswith("resume=")]
    others += [f"resume={quoted}", f"hydra.run.dir={quoted}"]
    if any(a.startswith("mode=") and a != "mode=train" for a in arguments):
        others.append("hydra.output_subdir=null")  # what is there of the run stays as it is
    return [*others, *_holding(before, others, choices)]


def _holding(before: list[str], now: list[str], choices: RecordedChoices) -> list[str]:
    """Those of the arguments `before` that go with those given now, with the choices that they need offered to Hydra.

    Another choice of a group may not know the keys of the one before.
    """
    held, tried = [*before], [*now]
    while True:
        composed = compose.compose([*tried, *held])
        failed = composed if isinstance(composed, Exception) else None
        missing = choices.taken_for_a_value(composed) if isinstance(composed, dict) else None
        missing = compose.missing_choice(failed) if failed else missing
        if missing is not None and choices.offer(*missing):
            continue
        culprit = compose.blame(failed, [*held, *tried])[0] if failed else None
        if culprit is None:
            return held
        (held if culprit in held else tried).remove(culprit)  # what is wrong with one given now is told later
