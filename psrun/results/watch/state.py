"""How a run is, seen from outside by what it writes; nothing here changes anything of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from psrun import process
from psrun.config.topology import Task
from psrun.results import task_files
from psrun.results.report import runs
from psrun.results.run_folder import OVER, RESULT
from psrun.results.task_files import Heartbeat, age_s

_FRESH_S = 5.0  # tasks beat twice a second
_SILENT_S = 60.0  # on a shared disk it takes a while until others see what was written


@dataclass(frozen=True)
class State:
    """The state of a run folder at one moment.

    Attributes:
      result: run.json; empty where it cannot be read.
      problem: why it cannot, in a line; else empty.
      beats: of its tasks; a run of one process has none.
      quiet_s: how long nothing was written.
      ended: whether the run is over, with all that its tasks still do at its end.
      gone: why it must be taken to have ended without a word, in a line; else empty.
    """

    result: Mapping[str, Any]
    problem: str
    beats: Mapping[Task, Heartbeat]
    quiet_s: float
    ended: bool
    gone: str

    @property
    def status(self) -> str:
        return str(self.result.get("status") or runs.UNKNOWN)


def look(path: Path) -> State:
    """How the run in the folder `path` is now."""
    result, problem = runs.loaded(path / RESULT, json.loads)
    beats, quiet_s = _beats(path), runs.quiet_s(path)
    over = result.get("status") in OVER
    alive = is_alive(path, result)
    ended = over and not _is_wound_up(path, beats, alive)
    gone = "" if over or problem else _gone(result, beats, quiet_s, alive)
    return State(result, problem, beats, quiet_s, ended, gone)


def is_alive(path: Path, result: Mapping[str, Any]) -> bool | None:
    """Whether the process that the run was started as is there; None where that cannot be seen from here."""
    recorded = runs.mapping(result.get("process"))
    pid = recorded.get("pid")
    if not is_here(result) or not isinstance(pid, int):
        return None
    try:
        found = psutil.Process(pid)
        # It was there before it wrote; who has its number now came later.
        return found.status() != psutil.STATUS_ZOMBIE and found.create_time() <= (path / RESULT).stat().st_mtime + 1
    except psutil.NoSuchProcess:
        return False
    except (psutil.Error, OSError):
        return None


def is_here(result: Mapping[str, Any]) -> bool:
    """Whether the run's process ids mean what they mean to this process."""
    recorded = runs.mapping(result.get("process"))
    return {name: recorded.get(name) for name in ("host", "pid_namespace")} == process.place()


def _beats(path: Path) -> dict[Task, Heartbeat]:
    found = {}
    for name in sorted(task_files.names(task_files.shared(path))):
        job, _, index = name.removesuffix(".json").rpartition("-")
        task = Task(job, int(index)) if name.endswith(".json") and job and index.isdecimal() else None
        beat = task_files.read(path, task) if task else None
        if task and beat:
            found[task] = beat
    return found


def _is_wound_up(path: Path, beats: Mapping[Task, Heartbeat], alive: bool | None) -> bool:
    """Whether tasks still do something, such as the last evaluation, or are about to be started again."""
    return task_files.shared(path).exists() and (
        alive is True or any(age_s(beat) < _FRESH_S for beat in beats.values())
    )


def _gone(result: Mapping[str, Any], beats: Mapping[Task, Heartbeat], quiet_s: float, alive: bool | None) -> str:
    if alive is False and quiet_s > _FRESH_S:
        return f"its process {result['process']['pid']} exited without recording a status"
    if alive is None and beats and quiet_s > _SILENT_S:
        return f"none of its tasks sent a heartbeat for {quiet_s:.0f} s"
    return ""
