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

from psrun import composing, execution, multirun, recorded
from psrun.engines.slurm import step
from psrun.errors import ConfigError, ExitCode, Problem, PsrunError
from psrun.recorded import key_of
from psrun.sweeps.record import RECORD as SWEEP


def run(started_s: float) -> ExitCode:
    """Runs what `sys.argv` says in Hydra's grammar: one run, or with -m a sweep of them.

    Raises:
      ConfigError: the configuration cannot be composed; with all that is wrong with it.
      SweepError: a sweep could not go on.
    """
    # Two runs started in the same second do not share a folder.
    OmegaConf.register_new_resolver("short_id", lambda: secrets.token_hex(2), use_cache=True, replace=True)
    OmegaConf.register_new_resolver("run_name", _run_name, use_cache=True, replace=True)
    sys.path.append(os.getcwd())  # where a person's own models and data are named from
    said, codes = sys.argv[1:], []
    errors: list[PsrunError] = []
    arguments = composing.options_first(said)
    if multirun.is_asked_for(arguments):
        return multirun.run(arguments)

    def job(composed: DictConfig) -> None:
        try:
            codes.append(_job(composed, said, started_s))
        except PsrunError as error:  # kept from Hydra, which would print words of its own
            errors.append(error)

    sys.argv[1:] = resumed(arguments)
    try:
        composing.run(job)
    except composing.HYDRA_ERRORS as error:
        raise ConfigError(composing.all_problems(error, sys.argv[1:])) from error
    if errors:
        raise errors[0]
    return codes[0] if codes else ExitCode.DONE


def _run_name(cluster: str, otherwise: str) -> str:
    """The name of a new run's folder: of a Slurm step, all of whose tasks share one, or a name of its own."""
    return (step.run_name(os.environ) if cluster == "slurm" else None) or otherwise


def _job(composed: DictConfig, said: list[str], started_s: float) -> ExitCode:
    settings = HydraConfig.get()
    if settings.mode == RunMode.MULTIRUN:
        raise ConfigError([Problem("hydra.mode", "is MULTIRUN; ask for a sweep with -m")])
    folder = Path(settings.runtime.output_dir).absolute()
    plain = composing.plain(composed)
    if composed.resume:
        plain = recorded.as_recorded(plain, OmegaConf.to_container(composed, resolve=False), folder, said)
    overrides = [override for override in settings.overrides.task if key_of(override) != "resume"]
    return execution.execute(plain, folder, overrides, started_s=started_s)


def resumed(arguments: list[str]) -> list[str]:
    """The arguments of a run that goes on: those that it was started with, as far as no other is given now.

    Raises:
      ConfigError: there is no run where `resume` says.
    """
    folder = recorded.folder_of(arguments)
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
    quoted = recorded.quoted(folder)
    others = [a for a in arguments if not a.startswith("resume=")]
    others += [f"resume={quoted}", f"hydra.run.dir={quoted}"]
    if any(a.startswith("mode=") and a != "mode=train" for a in arguments):
        others.append("hydra.output_subdir=null")  # what is there of the run stays as it is
    for _ in said:  # another choice of a group may not know the keys of the one before
        composed = composing.compose([*others, *before])
        culprit = composing.blame(composed, before)[0] if isinstance(composed, Exception) else None
        if culprit is None:
            break
        before.remove(culprit)
    return [*others, *before]
