"""Checks of the jobs that a sweeper proposes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psrun.config import choices
from psrun.config.run_config import RunConfig
from psrun.errors import ConfigError, Problem
from psrun.results import recorded_config
from psrun.results.sweep_record import Sweep


@dataclass(frozen=True)
class Proposed:
    """A job that a sweeper proposes: `raw` has plain values, `unresolved` has references."""

    number: int
    overrides: list[str]
    folder: Path
    raw: dict[str, Any]
    unresolved: Any


def without_sweep_keys(overrides: Sequence[str]) -> list[str]:
    """The overrides that configure a job, sorted, without those that configure the sweep."""
    return sorted(each for each in overrides if not recorded_config.key_of(each).startswith("sweep."))


def require_own_folders(sweep: Sweep, proposed: Sequence[Proposed]) -> None:
    """Raises ConfigError if two jobs have the same folder."""
    owners = {sweep.folder(job): job.number for job in sweep.jobs.values()}
    for each in proposed:
        other = owners.setdefault(each.folder, each.number)
        if other != each.number:
            message = f"is {each.folder} for jobs {other} and {each.number}; give each job its own folder"
            raise ConfigError([Problem("hydra.sweep.subdir", message)])


def require_whole(run: RunConfig) -> RunConfig:
    """The run. Raises ConfigError if a single process cannot start all of its tasks."""
    if isinstance(run.cluster, choices.Slurm | choices.Unsupervised) and run.uses_cluster:
        message = (
            f"is {run.cluster.kind}, whose tasks are started separately, but a sweep starts whole runs; choose "
            "inprocess, local or ray, with hydra/launcher=submitit_slurm for Slurm jobs"
        )
        raise ConfigError([Problem("cluster", message)])
    return run


def of_jobs(problem: Problem, numbers: list[int], apart: Mapping[int, str]) -> Problem:
    """The problem, with the jobs that have it unless all do."""
    if len(numbers) == len(apart):
        return problem
    jobs = ", ".join(f"{number} ({apart[number]})" for number in numbers[:3])
    more = f" and {len(numbers) - 3} more" if len(numbers) > 3 else ""
    return Problem(problem.key, f"{problem.message} [job {jobs}{more}]")
