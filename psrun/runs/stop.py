"""`psrun stop RUN...`: the runs, or sweeps, save and end; with --now they end at once."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from psrun import files, process
from psrun.config import choices
from psrun.config.clusters import EngineJob
from psrun.engines.slurm import sweep_jobs
from psrun.errors import ClusterError, ExitCode, PsrunError
from psrun.results import run_folder, run_state
from psrun.results.run_state import GONE
from psrun.runs import states
from psrun.runs.report import runs
from psrun.runs.sweeps.sweep import RECORD
from psrun.runs.sweeps.sweep_state import LOST, SweepReader, counted, is_lost_from_sweep

_SAVED_WITHIN_S = 60.0  # a run saves and ends within 25 s, its tasks within 10 s, and other hosts see it later
_NOW_WITHIN_S = 15.0
_HANDLED_WITHIN_S = 0.5  # a first signal
_KILLED_AFTER_S = 10.0  # with --now
_EVERY_S = 0.2


def main(arguments: list[str]) -> ExitCode:
    """Runs `psrun stop ARGUMENTS`.

    Returns:
      0 if all runs have ended, else 1.

    Raises:
      ConfigError: there is no such run.
      KeyboardInterrupt: Ctrl-C; the runs end nevertheless.
      SystemExit: from argparse, for --help and for invalid arguments.
    """
    options = _parser().parse_args(arguments)
    console = Console(highlight=False)
    code = ExitCode.DONE
    ending: list[_Stopped] = []
    for folder in dict.fromkeys(run_state.resolve_run(word).absolute() for word in options.run):
        try:
            target = _Stopped.of(folder)
            if end := target.end():
                _print(console, f"{run_state.shown_path(folder)}: {end}; there is nothing to stop{target.hint(end)}")
                continue
            target.ask(now=options.now)
            ending.append(target)
        except PsrunError as error:
            code = ExitCode.FAILED
            _print(console, f"{run_state.shown_path(folder)}: {error}", style="red")
    deadline_s = time.monotonic() + (_NOW_WITHIN_S if options.now else _SAVED_WITHIN_S)
    for target in ending:
        with console.status(f"{run_state.shown_path(target.folder)} is ending"):
            end = target.await_end(deadline_s, kill=options.now)
        if not end:
            code = ExitCode.FAILED
            text = "has not ended yet; psrun stop --now ends it at once" if not options.now else "has not ended"
            _print(console, f"{run_state.shown_path(target.folder)}: {text}", style="red")
        else:
            _print(console, f"{run_state.shown_path(target.folder)}: {end}{target.hint(end)}")
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="psrun stop", description=__doc__.partition(": ")[2])
    parser.add_argument("run", nargs="+", metavar="RUN", help=run_state.WORD_HELP)
    parser.add_argument("--now", action="store_true", help="end at once, without a last checkpoint")
    return parser


@dataclass
class _Stopped:
    """A run or a sweep that is to end.

    Attributes:
      record: the content of run.json or sweep.json when it was asked to end.
    """

    folder: Path
    is_sweep: bool
    record: Mapping[str, Any]

    @classmethod
    def of(cls, folder: Path) -> _Stopped:
        """Raises PsrunError if nothing is known of the run."""
        is_sweep = os.path.exists(folder / RECORD)
        record, problem = files.load_mapping(folder / RECORD) if is_sweep else _result(folder)
        if problem and not record:
            raise PsrunError(f"{problem}: the run has not started, or its folder is damaged")
        return cls(folder, is_sweep, record)

    def end(self) -> str:
        """How it has ended, in words; empty while it runs, or its engine has a job of it.

        Raises:
          PsrunError: the engine does not answer.
        """
        if self.is_sweep:
            state = SweepReader(self.folder).look()
            if state.status != "running" and sweep_jobs.queued(self.folder):
                return ""
            if state.status == GONE:
                return f"{GONE}: its process was killed"
            if state.status == "running":
                return ""
            return f"{state.status} ({counted(state.counts)})"
        now = run_state.look(self.folder)
        if now.jobs():  # also one that is ending, or would start the run again
            return ""
        if now.gone:
            return f"{GONE}: {now.gone}"
        if is_lost_from_sweep(now):
            return f"{GONE}: {LOST}"
        if now.status == run_folder.NOT_RUN:
            return f"{now.status}: {states.state(now.status).means}"
        if not now.ended:
            return ""
        saved = [row.get("step") for row in files.as_mappings(now.result.get("checkpoints")) if row.get("good")]
        at = f", checkpoint of step {saved[-1]}" if saved else ""
        return f"{now.outcome}{at}"

    def hint(self, end: str) -> str:
        """How to continue what was stopped or killed, and has ended as `end` says."""
        if self.is_sweep:
            now, _ = files.load_mapping(self.folder / RECORD)
        else:
            now, _ = _result(self.folder)
        if now.get("status") != "interrupted" and not end.startswith(GONE):
            return ""
        command = run_state.resume_command(self.folder)
        return f"; to resume: {command}" if command else ""

    def ask(self, *, now: bool) -> None:
        """Asks the engine, or the process on this host, to end. Raises PsrunError if that is not possible from here."""
        if not self.is_sweep and self._engine_is_asked(now=now):
            return
        if self.is_sweep and SweepReader(self.folder).look().status != "running":
            sweep_jobs.cancel(self.folder, running=True)  # they outlived the process of the sweep
            return
        running = self._process()
        with contextlib.suppress(psutil.NoSuchProcess):
            if running is None:
                return
            running.send_signal(signal.SIGINT)
            if now:  # the second signal ends it at once; a sweep would start a job again that SIGTERM ends
                with contextlib.suppress(psutil.TimeoutExpired):
                    running.wait(_HANDLED_WITHIN_S)  # two of the same kind may arrive as one
                running.send_signal(signal.SIGINT)

    def _engine_is_asked(self, *, now: bool) -> bool:
        """Whether the engine ends all jobs of the run, the waiting ones first. Raises PsrunError if it cannot."""
        # The chief records the cluster a while after the start.
        cluster = files.as_mapping(self.record.get("cluster")).get("topology")
        cluster = cluster or runs.read(self.folder, self.folder.name).config.get("cluster.kind")
        process_of_run = files.as_mapping(self.record.get("process"))
        has_not_begun = self.record.get("status") == run_folder.PENDING
        is_here = run_state.is_here(self.record)
        jobs = run_state.look(self.folder).jobs()
        if not jobs:  # the engine's queue cannot be seen from here, or has none
            jobs = [EngineJob(choices.cluster_of_kind(cluster), "", "", has_not_begun, process_of_run)]
        is_asked = False
        for job in jobs:
            is_asked |= job.engine.stop(job.recorded, waits=job.waits or has_not_begun, is_here=is_here, now=now)
        if is_asked and has_not_begun:
            status = run_folder.NOT_RUN
            run_folder.record_submission(self.folder, cluster=str(cluster), job=process_of_run, status=status)
        return is_asked

    def await_end(self, deadline_s: float, *, kill: bool) -> str:
        """How it has ended, in words; empty if it has not until the deadline, as of `time.monotonic`.

        Args:
          kill: whether to kill a process on this host that does not end.
        """
        kill_s = time.monotonic() + _KILLED_AFTER_S
        while not (end := self._end_if_known()) and time.monotonic() < deadline_s:
            if kill and time.monotonic() > kill_s and run_state.is_here(self.record):
                kill = False
                with contextlib.suppress(psutil.Error, PsrunError):
                    if running := self._process():
                        running.kill()  # its tasks end with it
            time.sleep(_EVERY_S)
        return end

    def _end_if_known(self) -> str:
        """How it has ended, in words; empty also while its engine does not answer."""
        try:
            return self.end()
        except ClusterError:
            return ""

    def _process(self) -> psutil.Process | None:
        """The process on this host; None if it has ended. Raises PsrunError if it is elsewhere."""
        recorded = files.as_mapping(self.record.get("process"))
        host = recorded.get("host")
        if not recorded:
            raise PsrunError("its process is not recorded; end it with Ctrl-C where it was started")
        if not run_state.is_here(self.record):
            here = "in another container of this host" if host == process.place()["host"] else f"on host {host}"
            raise PsrunError(f"it runs {here}, as process {recorded.get('pid')}; there: psrun stop {self.folder}")
        try:
            return run_state.process_of(self.folder, self.record)
        except (psutil.Error, OSError) as error:
            raise PsrunError(f"process {recorded.get('pid')} cannot be seen: {error}") from error


def _result(folder: Path) -> tuple[Mapping[str, Any], str]:
    state = run_state.look(folder)
    return state.result, state.problem


def _print(console: Console, text: str, *, style: str | None = None) -> None:
    console.print(text, style=style, markup=False, soft_wrap=True)
