"""The runs and sweeps below a folder, and what `psrun list` shows of each, as a row: see `psrun.runs.report.rows`."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from psrun import files
from psrun.config import choices, groups
from psrun.config.clusters import EngineJob
from psrun.errors import PsrunError
from psrun.results import run_folder, run_state
from psrun.results.run_folder import PENDING
from psrun.results.run_state import GONE, UNKNOWN, printable
from psrun.runs.report import rows, runs
from psrun.runs.report.rows import Row
from psrun.runs.report.runs import Run
from psrun.runs.sweeps.sweep import DEFAULT_METRICS, RECORD, Job, Sweep, best_of
from psrun.runs.sweeps.sweep_state import SweepReader, SweepState, has_lost_its_job, ranking_of

_CHOSEN = ("early_stopping.metric", "reduce_lr.metric")  # further keys that name the metric of a run


@dataclass(frozen=True)
class Entry:
    """A run folder at one moment.

    Attributes:
      path: the folder.
      row: what the list shows, with `started_s` (a time as `time.time` gives it) in place of the age.
      overrides: of its command line, by key.
      unanswered: why the engine's job of the run is not known, in one line; else empty.
    """

    path: str
    row: Row
    overrides: Mapping[str, str]
    unanswered: str = ""

    @cached_property
    def everything(self) -> Row:
        """All values of the run by column, as `rows.row` has them, and those of `row`."""
        path = Path(self.path)
        values = rows.row(runs.read(path, path.name))
        for name in ("run", "folder", *self.row, *self.row["metrics"]):
            values.pop(name, None)
        plain = json.loads(json.dumps(values, default=str))  # YAML has dates, JSON has not
        return {**plain, **_flat(self.row)}


@dataclass(frozen=True)
class SweepEntry:
    """A sweep at one moment, with the entries of its jobs that have run folders.

    Attributes:
      overrides: of its command line, by key; with several values where the jobs differ.
    """

    path: str
    row: Row
    jobs: Sequence[Entry]
    overrides: Mapping[str, str]

    @property
    def everything(self) -> Row:
        """`row`, and the values that all jobs have in common."""
        common: Row = {}
        rows_of_jobs = [job.everything for job in self.jobs]
        if rows_of_jobs:
            first, *others = rows_of_jobs
            common = {key: value for key, value in first.items() if all(row.get(key) == value for row in others)}
        return {**common, **_flat(self.row)}


@dataclass
class Listing:
    """The runs and sweeps below a folder at one moment, in the order of their folders.

    Attributes:
      runs: those that belong to no sweep.
    """

    runs: list[Entry]
    sweeps: list[SweepEntry]

    @property
    def all_runs(self) -> list[Entry]:
        """All runs, with the jobs of sweeps."""
        every = list(self.runs)
        for sweep in self.sweeps:
            every += sweep.jobs
        return every


def below(root: Path, on_read: Callable[[int], None] = lambda number: None) -> Listing:
    """The runs and sweeps in and below `root`.

    Args:
      on_read: called for each run folder, with the number of those before.
    """
    alone: list[Entry] = []
    jobs: dict[str, list[Entry]] = {}
    sweep = None
    num_read = 0
    for path, is_sweep in run_state.walk(str(root)):
        if sweep is not None and not path.startswith(sweep + os.sep):
            sweep = None
        if is_sweep:
            sweep = path
            jobs[path] = []
            continue
        on_read(num_read)
        num_read += 1
        entry = of_run(path)
        if not os.path.isdir(path):  # it was removed meanwhile
            continue
        if sweep is None:
            alone.append(entry)
        else:
            jobs[sweep].append(entry)
    return Listing(alone, [of_sweep(path, inside) for path, inside in jobs.items()])


def of_run(folder: str) -> Entry:
    """The entry of a run folder, as its files are now."""
    path = Path(folder)
    state = run_state.look(path)
    run = Run(state, path.name, runs.config_of(state)[0], problem="")
    metrics = rows.metrics(run)
    best = best_of(run.result)
    metric = _metric(run, metrics, best)
    value = None if metric is None else metrics[metric]
    if best and best["metric"] == metric:
        value = best["value"]
    status = state.shown_status
    where = _where(run)
    unanswered = ""
    waiting = None
    try:
        waiting = _waiting_job(state)
    except PsrunError as error:  # the run is shown as it was recorded
        unanswered = str(error)
    if waiting is not None:
        status = PENDING
        where = f"{waiting.title}: {waiting.state}"
    row: Row = {
        "name": run.called, "status": status, "model": rows.choices(run.config).get("model"),
        "metric": metric, "value": value, "metrics": metrics, "best_checkpoint": best,
        "started_s": files.as_number(run.result.get("started_s")) or state.written_s or files.changed_s(run.path),
        "size": size_bytes(folder), "engine": _engine(run), "where": where,
        "written_s": state.written_s,
    }  # fmt: skip
    return Entry(folder, row, run.overrides, unanswered)


def _waiting_job(state: run_state.RunState) -> EngineJob | None:
    """The job of a run that waits to start it, for the first time or again; None if there is none.

    Raises:
      PsrunError: the engine does not answer.
    """
    if state.status == "completed":
        return None
    if state.status == "running" and not state.gone:
        return None
    for job in state.jobs():
        if job.waits:
            return job
    return None


def of_sweep(folder: str, inside: Sequence[Entry]) -> SweepEntry:
    """The entry of a sweep with these jobs that have run folders."""
    path = Path(folder)
    inside = [_without_lost_job(entry, path) for entry in inside]
    record, _ = files.load_mapping(path / RECORD)
    sweep = Sweep.from_record(path, record)
    running = sweep.status == "running"
    state = SweepReader(path).look() if running else _ended(sweep, folder, inside)
    best = state.best
    own = [entry for entry in run_state.folder_entries(folder) or () if entry.is_file(follow_symlinks=False)]
    own_bytes = sum(map(_blocks_bytes, own))
    status = state.status or UNKNOWN
    if status == "completed" and {*state.counts} == {run_folder.PLANNED}:
        status = run_folder.PLANNED
    row: Row = {
        "name": run_folder.read_name(path), "status": status, "jobs": dict(state.counts),
        "model": _shared(inside, "model"),
        "metric": state.metric if best else None,
        "value": state.value(best) if best else None,
        "best_checkpoint": dict(best.best) if best else {},
        "best": None if best is None else best.folder,
        "started_s": min([sweep.started_s or files.changed_s(path), *(entry.row["started_s"] for entry in inside)]),
        "size": own_bytes + sum(entry.row["size"] for entry in inside),
        "engine": _common(inside, "engine"), "where": sweep.host or _common(inside, "where"),
        "written_s": max([files.changed_s(path / RECORD), *(entry.row["written_s"] for entry in inside)]),
        "metrics": dict(best.metrics) if best else {},
    }  # fmt: skip
    not_started = {os.path.join(folder, job.folder): job.status for job in state.jobs if not job.has_started}
    jobs = [
        replace(entry, row={**entry.row, "status": not_started.get(entry.path, entry.row["status"])})
        for entry in inside
    ]
    _, overrides = groups.split_arguments(sweep.arguments)
    return SweepEntry(folder, row, jobs, runs.by_key(overrides))


def _without_lost_job(entry: Entry, sweep: Path) -> Entry:
    """The entry of a job of a sweep; gone if Slurm lost it."""
    if entry.row["status"] == "running" and has_lost_its_job(run_state.look(Path(entry.path)), sweep):
        return replace(entry, row={**entry.row, "status": GONE})
    return entry


def size_bytes(folder: str) -> int:
    """What a folder takes on the disk."""
    total = 0
    for entry in run_state.folder_entries(folder) or ():
        total += _blocks_bytes(entry)
        if entry.is_dir(follow_symlinks=False):
            total += size_bytes(entry.path)
    return total


def shown(row: Row, name: str, folder: str) -> Row:
    """A row of the list: with the name and the path of the folder, and the age in seconds."""
    row = {"run": printable(name), "folder": printable(groups.with_url(Path(folder))), **row}
    row["age"] = max(0.0, time.time() - row.pop("started_s"))
    del row["written_s"]
    return row


def _flat(row: Row) -> Row:
    """The row with its metrics as columns."""
    return {**row["metrics"], **{key: value for key, value in row.items() if key != "metrics"}}


def _blocks_bytes(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_blocks * 512
    except OSError:
        return 0


def _metric(run: Run, metrics: Mapping[str, float | None], best: Mapping[str, Any]) -> str | None:
    """The metric that the run is about: the one that it names, else val_loss or loss, else the first.

    Args:
      best: the evaluation of its best checkpoint.
    """
    names = [run.config.get("sweep.metric"), best.get("metric")]
    names += [run.config.get(key) for key in _CHOSEN]
    for name in (*names, *DEFAULT_METRICS, *metrics):
        if metrics.get(str(name)) is not None:
            return str(name)
    return None


def _engine(run: Run) -> str | None:
    topology = files.as_mapping(run.result.get("cluster")).get("topology")
    return run.config.get("cluster.kind") or topology or rows.choices(run.config).get("cluster")


def _where(run: Run) -> str | None:
    """Where the run was started, such as a host."""
    process = files.as_mapping(run.result.get("process"))
    return choices.cluster_of_kind(_engine(run)).where(process, run.config)


def _ended(sweep: Sweep, folder: str, inside: Sequence[Entry]) -> SweepState:
    """The state of a sweep whose process has ended, by the entries of its jobs."""
    by_path = {entry.path: entry for entry in inside}
    jobs = [
        job if sweep.was_removed(job) else _job(job, by_path.get(os.path.join(folder, job.folder)))
        for _, job in sorted(sweep.jobs.items())
    ]
    return SweepState(jobs, sweep.status, *ranking_of(sweep, jobs))


def _job(job: Job, entry: Entry | None) -> Job:
    if entry is None or not run_state.result_changed_s(Path(entry.path)):  # it has not started
        return Job(job.number, job.overrides, job.folder)
    row = entry.row
    best = row["best_checkpoint"]
    return Job(job.number, job.overrides, job.folder, status=row["status"], metrics=row["metrics"], best=best)


def _shared(entries: Sequence[Entry], column: str) -> str | None:
    """The value of all entries; None if they have several, or none."""
    values = {entry.row[column] for entry in entries}
    if len(values) != 1:
        return None
    return values.pop()


def _common(entries: Sequence[Entry], column: str) -> str | None:
    """The value that most of the entries have."""
    values = Counter(entry.row[column] for entry in entries if entry.row[column] is not None)
    return values.most_common(1)[0][0] if values else None
