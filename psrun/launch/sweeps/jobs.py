"""A job of a sweep: a child of the process that the launcher uses. It ends with that process."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from psrun import process
from psrun.errors import ExitCode, SweepError, ended
from psrun.launch.child_processes import ChildProcess, StartProcess, start_alone
from psrun.results.run_folder import CONFIG, RESULT, RunFolder, write_config
from psrun.results.sweep import KILL, LOG, Sweep

_POLL_S = 0.1
_ALIVE_EVERY_S = 1.0
_MOST_STARTS = 5


def run(folder: Path, sweep: Sweep, *, elsewhere: bool, start_process: StartProcess = start_alone) -> float | None:
    """Waits for a free slot and runs the job that is prepared in `folder`, unless it is done already.

    Args:
      elsewhere: whether this is not the sweep's process; then it ends with that process.
      start_process: starts a process of the job.

    Returns:
      The objective; None if the job failed, or did not run because the sweep is stopping.
    """
    if not sweep.is_done(folder):
        with _slot(sweep, elsewhere) as has_slot:
            if not has_slot:
                return None
            try:
                _run(folder, sweep, elsewhere, start_process)
            except OSError as error:  # such as a full disk; the other jobs continue
                _record(folder, f"the job could not run: {error}", code=1)
    result = RunFolder(folder).stored()
    return sweep.measured(result.get("metrics") or {}) if result.get("status") == "completed" else None


def ignore_interrupts() -> None:
    """Ignores Ctrl-C, which reaches every process of the terminal: the sweep forwards it."""
    signal.signal(signal.SIGINT, lambda signum, frame: None)  # not SIG_IGN, which children would inherit


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
    return raw["checkpoint"]["kind"] != "none" and raw["mode"] == "train" and (folder / RESULT).exists()


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
    environment = {**os.environ, process.SWEEP_PID: str(os.getpid())}
    # A job has its own session, which a Ctrl-C at the terminal does not reach: the sweep forwards it.
    child = start_process(folder, environment, RunFolder(folder).log(LOG))
    try:
        code = _await(child, sweep, elsewhere)
    finally:
        child.kill()
        child.wait()
    if code and sweep.end_request() is None and RunFolder(folder).stored().get("status") in (None, "running"):
        _record(folder, f"the job {ended(code)} (log: {RunFolder(folder).log(LOG)})", code=abs(code))
    return code


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
            child.send_signal(signal.SIGKILL if now == KILL else signal.SIGINT)
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
        RunFolder(folder).record("ended", status="failed", exit_code=code, error=error)
