"""The jobs of a sweep: how many run at once, one job as a child process, and all of them planned instead of run.

A job is a child of the process that the launcher uses. It ends with that process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from psrun import files, process
from psrun.config import choices
from psrun.config.run_config import RunConfig
from psrun.errors import ConfigError, ExitCode, Problem, SweepError, ended
from psrun.launch.backend import TaskPlan
from psrun.launch.child_processes import ChildProcess, StartProcess, start_alone
from psrun.results import task_files
from psrun.results.run_folder import CONFIG, RESULT, RunFolder, write_config
from psrun.runs.report.table import with_short_keys
from psrun.runs.sweeps.sweep import LOG, Sweep, distinguishing

_POLL_S = 0.1
_ALIVE_EVERY_S = 1.0
_MOST_STARTS = 5
# A process with TensorFlow uses 0.7 GiB without a model; an in-process cluster with two workers and two ps, 0.9.
_PROCESS_BYTES = 2**30


# -- how many at once


def jobs_at_once(runs: Sequence[RunConfig], *, cores: int | None = None, memory_bytes: int | None = None) -> int:
    """The number of jobs, each as large as the largest of `runs`, that can run at once; at least one.

    A job needs a core for each worker and a gibibyte for each process; the size of its tables is not counted.

    Args:
      cores: None for those that this process may use.
      memory_bytes: None for the free memory.
    """
    sizes = [_size(run) for run in runs] or [(1, 1)]
    workers, processes = map(max, zip(*sizes))
    cores = _cores() if cores is None else cores
    memory_bytes = task_files.free_memory_bytes() if memory_bytes is None else memory_bytes
    return max(1, min(cores // workers, memory_bytes // (processes * _PROCESS_BYTES)))


def _size(run: RunConfig) -> tuple[int, int]:
    """The workers and the processes of a run on this machine."""
    if run.cluster.spans_machines:
        return 1, 1
    match run.cluster:
        case choices.Local(num_workers=workers) | choices.MultiWorkerMirrored(num_workers=workers):
            return workers, len(TaskPlan.of(run).tasks())
        case choices.InProcess(num_workers=workers):
            return workers, 1
        case _:
            return 1, 1


def _cores() -> int:
    allowed = len(os.sched_getaffinity(0))
    limit = task_files.cpu_limit()
    return allowed if limit is None else min(allowed, limit)


# -- one job


def run(folder: Path, sweep: Sweep, *, elsewhere: bool, start_process: StartProcess = start_alone) -> float | None:
    """Waits for a free slot and runs the job that is prepared in `folder`, unless it is done already.

    Args:
      elsewhere: whether this is not the sweep's process; then it ends with that process.
      start_process: starts a process of the job.

    Returns:
      The objective, also of a paused job; None if the job failed, or did not run because the sweep is stopping.
    """
    if not sweep.is_done(folder):
        with _slot(sweep, elsewhere) as has_slot:
            if not has_slot:
                return None
            try:
                _run(folder, sweep, elsewhere, start_process)
            except OSError as error:  # such as a full disk; the other jobs continue
                _record(folder, f"the job could not run: {error}", code=1)
    return sweep.value(folder)


@contextlib.contextmanager
def _slot(sweep: Sweep, elsewhere: bool) -> Iterator[bool]:
    """Waits for a free slot among the running jobs; False if the sweep is stopping."""
    if socket.gethostname() != sweep.host:  # the limit applies to another machine
        yield sweep.end_request() is None
        return
    slot = None
    while sweep.end_request() is None and slot is None:
        _end_with(sweep, elsewhere)
        slot = sweep.take_slot()
        if slot is None:
            time.sleep(_POLL_S)
    try:
        yield slot is not None and sweep.end_request() is None
    finally:
        if slot is not None:
            os.close(slot)


def can_resume(raw: Mapping[str, Any], folder: Path) -> bool:
    """Whether the job with the configuration `raw` can resume instead of starting from the beginning."""
    return raw["checkpoint"]["kind"] != "none" and raw["mode"] == "train" and RunFolder(folder).has_run


def _run(folder: Path, sweep: Sweep, elsewhere: bool, start_process: StartProcess) -> None:
    """Runs a job until it ends with another code than RESTART, such as after the loss of a parameter server."""
    for _ in range(_MOST_STARTS):
        code = _run_once(folder, sweep, elsewhere, start_process)
        raw: Any = OmegaConf.to_container(OmegaConf.load(folder / CONFIG))
        if code != ExitCode.RESTART or sweep.end_request() is not None or not can_resume(raw, folder):
            return
        write_config(folder, {**raw, "resume": str(folder)})


def _run_once(folder: Path, sweep: Sweep, elsewhere: bool, start_process: StartProcess) -> int:
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    before_s = files.changed_s(folder / RESULT)
    environment = {**os.environ, process.SWEEP_PID: str(os.getpid())}
    # A job has its own session, which a Ctrl-C at the terminal does not reach: the sweep forwards it.
    child = start_process(folder, environment, RunFolder(folder).log(LOG))
    try:
        code = _await(child, sweep, elsewhere)
    finally:
        child.kill()
        child.wait()
    if code and sweep.end_request() is None and not _has_recorded_its_end(folder, before_s):
        _record(folder, f"the job {ended(code)} (log: {RunFolder(folder).log(LOG)})", code=abs(code))
    return code


def _has_recorded_its_end(folder: Path, before_s: float) -> bool:
    """Whether run.json, which was last written at `before_s` when the job started, now has its end."""
    if files.changed_s(folder / RESULT) == before_s:  # it may have the end of an earlier start
        return False
    return RunFolder(folder).stored().get("status") not in (None, "running")


def _await(child: ChildProcess, sweep: Sweep, elsewhere: bool) -> int:
    """The exit code of a job; forwards the signals of its sweep."""
    forwarded = None
    looked_s = time.monotonic()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(_POLL_S)
        if elsewhere and time.monotonic() - looked_s > _ALIVE_EVERY_S:
            looked_s = time.monotonic()
            _end_with(sweep, elsewhere, child)
        now = sweep.end_request()
        if now is not None and now != forwarded:
            child.send_signal(signal.Signals[now])
            forwarded = now


def _end_with(sweep: Sweep, elsewhere: bool, child: ChildProcess | None = None) -> None:
    """Ends this process and the job if the process that runs the sweep is gone."""
    if elsewhere and not sweep.is_alive():
        if child is not None:
            child.kill()
        process.leave(1)


def _record(folder: Path, message: str, *, code: int) -> None:
    """Records an error that the job could not record itself."""
    error = {"type": SweepError.__name__, "message": message, "task": None}
    with contextlib.suppress(OSError):
        RunFolder(folder).emit("ended", status="failed", exit_code=code, error=error)


# -- plans instead of runs


def plan(sweep: Sweep) -> None:
    """Plans all jobs that are not planned yet into their run folders. Raises SweepError if that fails."""
    log = sweep.path / "plan.log"
    command = process.module_command("psrun.runs.sweeps.plan_jobs", str(sweep.path))
    environment = {**os.environ, process.SWEEP_PID: str(os.getpid())}
    with log.open("ab") as file:
        streams: Any = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file}
        code = subprocess.run(command, env=environment, start_new_session=True, check=False, **streams).returncode
    if code:
        raise SweepError(f"the planning process {ended(code)} (log: {log})")


def show_plans(sweep: Sweep, console: Console) -> None:
    """Prints one row per job. Raises ConfigError if jobs cannot be planned, with the reasons."""
    jobs = [job for _, job in sorted(sweep.jobs.items())]
    problems = []
    table = Table(title="Plans (read, pushed: per step of a worker)", title_justify="left", box=None, pad_edge=False,
                  header_style="bold")  # fmt: skip
    for heading in ("job", "overrides", "steps", "on each ps", "fullest task", "read", "pushed"):
        is_text = heading in ("overrides", "on each ps")
        table.add_column(heading, justify="left" if is_text else "right", overflow="fold")
    differing = distinguishing([job.overrides for job in jobs])
    results = [RunFolder(sweep.folder(job)).stored() for job in jobs]
    has_predictions = any(result.get("prediction") for result in results)
    if has_predictions:
        table.add_column("predicted steps/s", justify="right")
        table.add_column("staleness", justify="right")
    for job, own, text, result in zip(jobs, differing, with_short_keys(differing), results):
        if result.get("status") == "completed":
            table.add_row(str(job.number), Text(text), *_priced(result), *_predicted(result))
            continue
        message = (result.get("error") or {}).get("message", "was not planned")
        table.add_row(str(job.number), Text(text), "[red]refused[/red]")
        problems.append(Problem(f"job {job.number} ({' '.join(own) or 'as given'})", message))
    console.print(table)
    many = "1 job" if len(jobs) == 1 else f"{len(jobs)} jobs"
    console.print(f"{many}, at most {min(len(jobs), sweep.max_parallel)} at once.", soft_wrap=True)
    console.print("Variables only, without TensorFlow itself, the input pipeline and activations.", soft_wrap=True)
    if problems:
        raise ConfigError(problems)


def _priced(result: dict[str, Any]) -> list[str]:
    sizes = Counter[str]()
    for shard in result["placement"]:
        sizes[shard["task"]] += shard["bytes"]
    ps = [size for task, size in sorted(sizes.items()) if task.startswith("ps-")]
    fullest = max(sizes, key=sizes.__getitem__, default="")
    moved = result["bytes_per_step"]
    num_steps = result.get("num_steps")
    return [
        "" if num_steps is None else f"{num_steps:,}",
        _at_most(ps),
        f"{fullest} {decimal(sizes[fullest])}",
        *((decimal(moved[name]) if ps else "") for name in ("read_bytes", "pushed_bytes")),
    ]


def _predicted(result: dict[str, Any]) -> list[str]:
    """The medians of a prediction; empty without one."""
    prediction = result.get("prediction")
    if not prediction:
        return []
    return [f"{prediction['steps_per_s']['median']:.4g}", f"{prediction['staleness']['median']:.1f}"]


def _at_most(sizes: list[int], most: int = 4) -> str:
    if len(sizes) <= most:
        return ", ".join(map(decimal, sizes))
    return f"{decimal(min(sizes))} to {decimal(max(sizes))} on {len(sizes)}"
