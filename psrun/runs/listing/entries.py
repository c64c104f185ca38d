"""What `psrun list` shows of a run or a sweep, as a row: see `psrun.runs.report.rows`."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from psrun.results import found, reading, run_name
from psrun.results.run_folder import OVER, RESULT
from psrun.results.run_state import UNKNOWN, printable
from psrun.runs.report import rows, runs
from psrun.runs.report.rows import Row
from psrun.runs.report.runs import Run
from psrun.runs.sweeps.sweep import DEFAULT_METRICS, RECORD, Job, Sweep
from psrun.runs.sweeps.sweep_state import SweepReader, SweepState, ranking_of

_CHOSEN = ("sweep.metric", "early_stopping.metric", "reduce_lr.metric")  # keys that name the metric of a run


@dataclass(frozen=True)
class Entry:
    """A run folder at one moment.

    Attributes:
      path: the folder.
      row: what the list shows, with `started_s` (as of `time.time`) in place of the age.
      text: all values of the run by column, as `rows.row` has them, as JSON.
      is_lasting: whether the run is over, so that both hold until one of its files changes.
    """

    path: str
    row: Row
    text: str
    is_lasting: bool

    @cached_property
    def everything(self) -> Row:
        """The values of `text` and of `row`."""
        return {**json.loads(self.text), **_flat(self.row)}


@dataclass(frozen=True)
class SweepEntry:
    """A sweep at one moment, with the entries of its jobs that have run folders."""

    path: str
    row: Row
    jobs: Sequence[Entry]

    @property
    def everything(self) -> Row:
        """`row`, and the values that all jobs have in common."""
        common: Row = {}
        rows_of_jobs = [job.everything for job in self.jobs]
        if rows_of_jobs:
            first, *others = rows_of_jobs
            common = {key: value for key, value in first.items() if all(row.get(key) == value for row in others)}
        return {**common, **_flat(self.row)}


def of_run(folder: str) -> Entry:
    """The entry of a run folder, as its files are now."""
    run = runs.read(Path(folder), Path(folder).name)
    state = run.state
    everything = rows.row(run)
    metrics = rows.metrics(run)
    metric = _metric(run, metrics)
    row: Row = {
        "name": run.called, "status": everything["status"],
        "metric": metric, "value": None if metric is None else metrics[metric], "metrics": metrics,
        "started_s": reading.number(run.result.get("started_s")) or state.written_s or reading.changed_s(run.path),
        "size": size_bytes(folder), "engine": _engine(run), "where": _where(run),
        "written_s": state.written_s,
    }  # fmt: skip
    lasting = state.status in OVER and state.ended and not state.problem
    skipped = ("run", "folder", *row, *metrics)  # a folder may be moved
    others = {key: value for key, value in everything.items() if key not in skipped}
    return Entry(folder, row, json.dumps(others, default=str), lasting)


def of_sweep(folder: str, inside: Sequence[Entry]) -> SweepEntry:
    """The entry of a sweep with these jobs that have run folders."""
    path = Path(folder)
    record, _ = reading.loaded(path / RECORD)
    sweep = Sweep.from_record(path, record)
    running = sweep.status == "running"
    state = SweepReader(path).look() if running else _ended(sweep, folder, inside)
    best = state.best
    own = [entry for entry in found.entries(folder) or () if entry.is_file(follow_symlinks=False)]
    own_bytes = sum(map(_blocks_bytes, own))
    row: Row = {
        "name": run_name.read(path), "status": state.status or UNKNOWN, "jobs": dict(state.counts),
        "metric": state.metric if best else None,
        "value": best.metrics[str(state.metric)] if best else None,
        "best": None if best is None else best.folder,
        "started_s": sweep.started_s or reading.changed_s(path),
        "size": own_bytes + sum(entry.row["size"] for entry in inside),
        "engine": _common(inside, "engine"), "where": sweep.host or _common(inside, "where"),
        "written_s": max([reading.changed_s(path / RECORD), *(entry.row["written_s"] for entry in inside)]),
        "metrics": dict(best.metrics) if best else {},
    }  # fmt: skip
    not_started = {os.path.join(folder, job.folder): job.status for job in state.jobs if not job.has_started}
    jobs = [
        replace(entry, row={**entry.row, "status": not_started.get(entry.path, entry.row["status"])})
        for entry in inside
    ]
    return SweepEntry(folder, row, jobs)


def size_bytes(folder: str) -> int:
    """What a folder takes on the disk."""
    total = 0
    for entry in found.entries(folder) or ():
        total += _blocks_bytes(entry)
        if entry.is_dir(follow_symlinks=False):
            total += size_bytes(entry.path)
    return total


def shown(row: Row, name: str, folder: str) -> Row:
    """A row of the list: with the name and the path of the folder, and the age in seconds."""
    row = {"run": printable(name), "folder": printable(folder), **row}
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


def _metric(run: Run, metrics: Mapping[str, float | None]) -> str | None:
    """The metric that the run is about: the one that it names, else val_loss or loss, else the first."""
    names = [*(str(run.config.get(key)) for key in _CHOSEN), *DEFAULT_METRICS, *metrics]
    return next((name for name in names if metrics.get(name) is not None), None)


def _engine(run: Run) -> str | None:
    topology = reading.mapping(run.result.get("cluster")).get("topology")
    return run.config.get("cluster.kind") or topology or rows.choices(run.config).get("cluster")


def _where(run: Run) -> str | None:
    """Where the run was started: a Slurm job, a Ray cluster, or a host."""
    process = reading.mapping(run.result.get("process"))
    host = process.get("host")
    if "slurm_job" in process:
        return f"job {process['slurm_job']} on {host}" if host else f"job {process['slurm_job']}"
    address = run.config.get("cluster.address") if _engine(run) == "ray" else None
    return str(address) if address not in (None, "auto") else host


def _ended(sweep: Sweep, folder: str, inside: Sequence[Entry]) -> SweepState:
    """The state of a sweep whose process has ended, by the entries of its jobs."""
    by_path = {entry.path: entry for entry in inside}
    jobs = [
        job if sweep.was_removed(job) else _job(job, by_path.get(os.path.join(folder, job.folder)))
        for _, job in sorted(sweep.jobs.items())
    ]
    return SweepState(jobs, sweep.status, *ranking_of(sweep, jobs))


def _job(job: Job, entry: Entry | None) -> Job:
    if entry is None or not os.path.exists(os.path.join(entry.path, RESULT)):  # it has not started
        return Job(job.number, job.overrides, job.folder)
    return Job(job.number, job.overrides, job.folder, status=entry.row["status"], metrics=entry.row["metrics"])


def _common(entries: Sequence[Entry], column: str) -> str | None:
    """The value that most of the entries have."""
    values = Counter(entry.row[column] for entry in entries if entry.row[column] is not None)
    return values.most_common(1)[0][0] if values else None
