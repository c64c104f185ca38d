"""The jobs of a sweep, or of any folder with runs, as read from their folders."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from psrun.config.topology import CHIEF
from psrun.errors import PsrunError
from psrun.results.event_reader import event_of
from psrun.results.events import Event, Progress
from psrun.results.report import runs
from psrun.results.run_folder import OVER, RESULT
from psrun.results.sweep_record import RECORD
from psrun.results.watch import state
from psrun.results.watch.run import planned

BETWEEN_JOBS_S = 15.0  # without a sweep record, further jobs may start
_END_BYTES = 64 * 1024  # of metrics.jsonl, in which the last epoch is looked for


@dataclass(frozen=True)
class Job:
    """One job, or one run of a folder.

    Attributes:
      status: as in run.json, or waiting, gone (it ended without a word), or unknown.
      doing: the phase that its chief reports, such as 'training'; else the status.
      apart: its distinguishing overrides: those that the jobs do not have in common.
      metrics: the newest of each name.
      written_s: when anything of it was last written, as of `time.time`; 0 where nothing was.
      error: in a line.
    """

    name: str
    overrides: Sequence[str] = ()
    status: str = "waiting"
    doing: str = "waiting"
    apart: str = ""
    progress: Progress | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    written_s: float = 0.0
    error: str = ""

    @property
    def is_over(self) -> bool:
        return self.status in (*OVER, "gone", runs.UNKNOWN)


class Jobs:
    """Reads the folders below `path`; reads finished ones once, unless they are resumed.

    Attributes:
      record: sweep.json; empty where there is none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[Path, tuple[float, Job]] = {}
        self.record: Mapping[str, Any] = {}

    def look(self) -> list[Job]:
        """All there are now, in the order of their names, with numbers in theirs.

        Raises:
          PsrunError: there is no sweep here any more.
        """
        read, problem = runs.loaded(self._path / RECORD, json.loads)
        self.record = read or ({} if problem.startswith("no ") else self.record)
        if not self._path.is_dir():
            raise PsrunError(f"the folder {self._path} was moved or deleted")
        recorded = _recorded(self._path, self.record)
        there = set(runs.below(self._path))
        if not there and not self.record:
            raise PsrunError(f"no run is left in {self._path}: the runs were removed, or none has started")
        found = []
        for path in sorted(there | recorded.keys(), key=lambda each: runs.natural(str(each))):
            name = runs.printable(path.relative_to(self._path))
            job = self._job(path, name) if path in there else Job(name)
            found.append(replace(job, overrides=job.overrides or recorded.get(path, [])))
        overrides = [set(job.overrides) for job in found if job.overrides]
        common = set.intersection(*overrides) if len(overrides) > 1 else set()
        return [replace(job, apart=" ".join(each for each in job.overrides if each not in common)) for job in found]

    def _job(self, path: Path, name: str) -> Job:
        stamp = _changed_s(path / RESULT)
        if not stamp and self._may_begin(path):
            return Job(name, written_s=_changed_s(path))
        before = self._known.get(path)
        if before and before[0] == stamp and before[1].status in OVER:
            return before[1]
        job = _read(path, name, before[1].metrics if before else {})
        self._known[path] = (stamp, job)
        return job

    def _may_begin(self, path: Path) -> bool:
        """Whether a run may still begin in a folder that is made for it."""
        if "status" in self.record:
            return self.record["status"] == "running"
        return time.time() - _changed_s(path) < BETWEEN_JOBS_S


def _read(path: Path, name: str, metrics: Mapping[str, float]) -> Job:
    now = state.look(path)
    beat = now.beats.get(CHIEF)
    status = "gone" if now.gone else now.status
    if status in OVER and not now.ended:
        status = "running"
    epoch = planned(_last_epoch(path))
    progress = Progress(**beat.progress) if beat and beat.progress and not now.gone else epoch
    message = runs.mapping(now.result.get("error")).get("message")
    error = str(message or now.gone or now.problem).partition("\n")[0]
    overrides = now.result.get("overrides")
    return Job(
        name,
        [str(each) for each in overrides] if isinstance(overrides, list) else [],
        status,
        beat.state if beat and status == "running" else status,
        progress=progress,
        metrics={**metrics, **_newest(now.result, progress)},
        written_s=time.time() - now.quiet_s if now.quiet_s else _changed_s(path),
        error=error if status in ("failed", "gone", "interrupted", runs.UNKNOWN) else "",
    )


def _newest(result: Mapping[str, Any], progress: Progress | None) -> dict[str, float]:
    found = {**(progress.metrics if progress else {}), **runs.mapping(result.get("metrics"))}
    if progress and progress.loss is not None and result.get("status") == "running":
        found["loss"] = progress.loss
    return {name: float(value) for name, value in found.items() if runs.number(value) is not None}


def _last_epoch(path: Path) -> Event | None:
    try:
        with (path / runs.METRICS).open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _END_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return None
    events = (event_of(line) for line in reversed(lines) if b'"epoch"' in line)
    return next((event for event in events if event and event.kind == "epoch"), None)


def _recorded(path: Path, record: Mapping[str, Any]) -> dict[Path, list[str]]:
    """The folders of the jobs that a sweep has recorded, also of those that have not begun, and their overrides."""
    jobs = record.get("jobs")
    found = [runs.mapping(job) for job in jobs] if isinstance(jobs, list) else []
    return {
        path / job["folder"]: [str(each) for each in job.get("overrides") or []]
        for job in found
        if isinstance(job.get("folder"), str)
    }


def _changed_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
