"""The Slurm jobs of a sweep that submitit has submitted (`hydra/launcher=submitit_slurm`)."""

from __future__ import annotations

import os
from pathlib import Path

from psrun.engines.slurm import commands
from psrun.engines.slurm.commands import QueuedJob
from psrun.errors import ClusterError

_SUBMITIT = ".submitit"  # in the folder of the sweep, as the launcher's key submitit_folder has it


def queued(sweep: Path) -> list[QueuedJob]:
    """The jobs of a sweep that wait or run, the waiting ones first. Raises ClusterError if Slurm does not answer."""
    folder = sweep / _SUBMITIT
    if not folder.is_dir():
        return []
    scripts = os.path.realpath(folder) + os.sep
    found = []
    for job in commands.QUEUE.read():
        if os.path.realpath(job.script).startswith(scripts):
            found.append(job)
    return sorted(found, key=lambda job: not job.waits)


def were_submitted(sweep: Path) -> bool:
    """Whether the jobs of a sweep are, or were, on Slurm."""
    return (sweep / _SUBMITIT).is_dir()


def have_left(sweep: Path) -> bool:
    """Whether the jobs of a sweep were on Slurm, and Slurm has none any more."""
    if not were_submitted(sweep) or not commands.has_queue():
        return False
    try:
        return not queued(sweep)
    except ClusterError:
        return False


def cancel(sweep: Path, *, running: bool) -> None:
    """Cancels the waiting jobs of a sweep, and those that run if wanted. Raises ClusterError if Slurm does not."""
    for job in queued(sweep):
        if job.waits or running:
            commands.cancel(job.id)
