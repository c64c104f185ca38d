"""Sweeps under random schedules: jobs that complete, fail, die and hang; signals; kills of the sweep; resumes.

The code of the sweep is the real one, and so are its files; `simulated_machine` has the rest. A schedule that once
failed is kept as an example.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from simulated_machine import Killed, Machine, Process

from psrun.results.run_folder import OVER
from psrun.runs.sweeps import jobs, runner
from psrun.runs.sweeps.runner import Proposal, SweepRunner, SweepSignal
from psrun.runs.sweeps.sweep import Sweep
from psrun.runs.sweeps.sweep_state import SweepReader
from psrun.runs.watch import sweep as watch

KINDS = ("completes", "fails", "restarts", "killed", "never begins", "hangs", "deaf")
MOST_STARTS = 5
PATIENCE_S = 5.0  # then the user sends a signal, and after another one a second signal
RESUMES_AFTER_S = 3.0
LOOKS_EVERY_S = 0.5


@dataclass(frozen=True)
class Attempt:
    """One process of the sweep.

    Attributes:
      signals: Ctrl-C (2) or SIGTERM (15), and after how many seconds.
      killed_s: when it is killed; None: it is not.
      killed_at_write: the number of the write of a file with which it is killed.
      is_written: whether this file is replaced before that.
    """

    signals: tuple[tuple[float, int], ...] = ()
    killed_s: float | None = None
    killed_at_write: int | None = None
    is_written: bool = True


@dataclass(frozen=True)
class Schedule:
    """What happens to a sweep.

    Attributes:
      scripts: by job, what each of its starts does; later ones complete.
      attempts: the processes of the sweep, each of which resumes it. One more follows, to which nothing happens.
      workers: the number of jobs that the launcher offers at once.
      elsewhere: whether the launcher runs jobs in processes of its own.
    """

    scripts: tuple[tuple[tuple[str, float], ...], ...]
    attempts: tuple[Attempt, ...] = (Attempt(),)
    max_parallel: int = 2
    workers: int = 2
    elsewhere: bool = False
    search: bool = False
    checkpoint: str = "epoch"
    seed: int = 0


times_s = st.floats(0, 4).map(lambda seconds: round(seconds, 2))
outcomes = st.tuples(st.sampled_from(KINDS), times_s)
attempts = st.builds(
    Attempt,
    signals=st.lists(st.tuples(times_s, st.sampled_from([2, 15])), max_size=2).map(tuple),
    killed_s=st.none() | times_s,
    killed_at_write=st.none() | st.integers(0, 12),
    is_written=st.booleans(),
)
schedules = st.builds(
    Schedule,
    scripts=st.lists(st.lists(outcomes, max_size=3).map(tuple), min_size=1, max_size=4).map(tuple),
    attempts=st.lists(attempts, max_size=3).map(tuple),
    max_parallel=st.integers(1, 3),
    workers=st.integers(1, 4),
    elsewhere=st.booleans(),
    search=st.booleans(),
    checkpoint=st.sampled_from(["epoch", "none"]),
    seed=st.integers(0, 9),
)


class Screen:
    """Instead of a terminal."""

    def __init__(self, console: object) -> None:
        self._console = console

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: None


@dataclass
class Simulation:
    """A schedule under way in a folder, and what must hold at each moment."""

    schedule: Schedule
    folder: Path

    def __post_init__(self) -> None:
        scripts = {str(number): [*script] for number, script in enumerate(self.schedule.scripts)}
        self.machine = Machine(scripts, seed=self.schedule.seed)
        self.machine.check = self.check
        self.machine.before_write = lambda path: self._count_write(path, written=False)
        self.machine.after_write = lambda path: self._count_write(path, written=True)

    def run(self) -> None:
        for attempt in (*self.schedule.attempts, None):
            self._try(attempt)

    def check(self) -> None:
        """What holds at each moment."""
        running = [job.name for job in self.machine.running]
        assert len(running) <= self.schedule.max_parallel
        assert len(running) == len(set(running)), "two processes of a job"
        if self._process.is_over and self.machine.now_s > self._process.over_s + RESUMES_AFTER_S:
            assert running == [], "a job outlives the sweep"

    # -- one process of the sweep

    def _try(self, attempt: Attempt | None) -> None:
        machine = self.machine
        machine.started.clear()
        machine.errors.clear()
        done = {name for name, status in self._statuses().items() if self._is_final(status)}
        self._process = Process(machine)
        self._attempt = attempt or Attempt()
        self._writes = count()
        self._runner: SweepRunner | None = None
        self._main = machine.thread(self._process, self._sweep)
        for at_s, signum in (*self._attempt.signals, (PATIENCE_S, 2), (1.5 * PATIENCE_S, 2)):
            machine.at(at_s, lambda signum=signum: self._main.send_signal(signum))
        if self._attempt.killed_s is not None:
            machine.at(self._attempt.killed_s, self._process.end)
        machine.run()
        self._process.end(0)
        machine.now_s += RESUMES_AFTER_S
        assert machine.errors == []
        assert machine.running == []
        assert not done & {*machine.started}, "a job that is done ran again"
        for name, times in Counter(machine.started).items():
            assert times <= MOST_STARTS, name
        self._check_record()
        if attempt is None:
            self._check_end()

    def _sweep(self) -> None:
        """As `psrun.runs.sweeps.hydra_sweeps.run` does with Hydra's sweeper and launcher."""
        self._process.end(self._run())

    def _run(self) -> int:
        before = Sweep.read(self.folder) if (self.folder / "sweep.json").exists() else None
        running = SweepRunner([], before)
        if running.has_nothing_to_do():
            return 0
        schedule = self.schedule
        search = "random" if schedule.search else None
        keys = {"max_parallel": schedule.max_parallel, "metric": "loss", "mode": "min", "search": search}
        running.begin(self.folder, keys=keys)
        raw = {"mode": "train", "checkpoint": {"kind": schedule.checkpoint}, "resume": None}
        numbers = range(len(schedule.scripts))
        running.prepare([Proposal(number, [], self.folder / str(number), raw, raw) for number in numbers])
        self._runner = running
        self._main.handle = running._signals._handle
        waiting = [self.folder / str(number) for number in numbers]
        each_has_a_process = schedule.elsewhere
        workers = []
        for _ in range(schedule.workers):
            process = Process(self.machine) if each_has_a_process else self._process
            workers.append(self.machine.thread(process, lambda: self._work(waiting, running.sweep)))
        try:
            try:
                self._wait(lambda: all(worker.is_over for worker in workers))
            except SweepSignal:
                self._wait(lambda: all(worker.is_over for worker in workers))
                raise
            running.look()
        except SweepSignal as ended:
            return running.end(ended.signum)
        return running.end(None)

    def _work(self, waiting: list[Path], sweep: Sweep) -> None:
        """A worker of the launcher."""
        if self.schedule.elsewhere:
            sweep = Sweep.read(self.folder)
        while waiting:
            folder = waiting.pop(0)
            jobs.run(folder, sweep, elsewhere=self.schedule.elsewhere, start_process=self.machine.start_job)

    def _wait(self, condition: Callable[[], bool]) -> None:
        """The main thread: a signal interrupts it, and it shows the state of the jobs meanwhile."""
        assert self._runner is not None
        while not condition():
            self.machine.sleep(LOOKS_EVERY_S)
            self._runner._monitor.look()

    def _count_write(self, path: Path, *, written: bool) -> None:
        counts = self.machine.process is self._process and written == self._attempt.is_written
        if counts and next(self._writes) == self._attempt.killed_at_write:
            self._process.end()
            raise Killed
        if written and path.name == "sweep.json":
            self._check_record()

    # -- what must hold

    def _statuses(self) -> dict[str, str | None]:
        """The status of each job, as its run.json has it."""
        numbers = range(len(self.schedule.scripts))
        files = {str(number): self.folder / str(number) / "run.json" for number in numbers}
        return {name: json.loads(file.read_text())["status"] if file.exists() else None for name, file in files.items()}

    def _is_final(self, status: str | None) -> bool:
        return status == "completed" or (self.schedule.search and status == "failed")

    def _record(self) -> dict[str, Any]:
        return json.loads((self.folder / "sweep.json").read_text())

    def _check_record(self) -> None:
        """What sweep.json says of jobs is not ahead of their folders."""
        if not (self.folder / "sweep.json").exists():
            return
        statuses = self._statuses()
        for job in self._record()["jobs"]:
            if job["status"] == "completed":
                assert statuses[job["folder"]] == "completed"
                assert job["metric"] == 0.5
            else:
                assert job["metric"] is None
        if self._process.is_over and self._record()["status"] == "running":
            assert SweepReader(self.folder).look().status == "gone"

    def _check_end(self) -> None:
        """After a process to which nothing happened no job is forgotten."""
        statuses = self._statuses()
        record = self._record()
        if record["status"] == "running":  # the user gave up, and the second signal ends it without a record
            assert self._process.code in (130, 175)
            return
        recorded = {job["folder"]: job["status"] for job in record["jobs"]}
        counted = {name for name, status in statuses.items() if self._is_final(status) or name in self.machine.started}
        assert recorded == {name: (name in counted and status) or "waiting" for name, status in statuses.items()}
        assert {job.folder: job.status for job in SweepReader(self.folder).look().jobs} == recorded
        cannot_resume = self.schedule.checkpoint == "none"
        if self._process.code in (130, 175):  # a job hangs, and the user gave up
            assert record["status"] == "interrupted"
            return
        assert set(statuses.values()) <= {*OVER}
        for name, status in statuses.items():
            if status == "interrupted":  # each of its starts requested a restart
                assert cannot_resume or self.machine.started.count(name) == MOST_STARTS
        all_completed = set(statuses.values()) == {"completed"}
        had_nothing_to_do = self._runner is None
        assert (self._process.code == 0) == (all_completed or had_nothing_to_do)
        assert record["status"] == ("completed" if all_completed or self.schedule.search else "failed")


@pytest.fixture(scope="module", autouse=True)
def quiet():
    """No terminal, and no configurations: these have tests of their own."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(watch, "SweepScreen", Screen)
        patched.setattr(jobs, "_POLL_S", 0.3)  # a third of the turns
        patched.setattr(watch.SweepMonitor, "start", lambda self: None)
        patched.setattr(runner.SignalHandler, "install", lambda self: None)
        patched.setattr(runner.SweepRunner, "_checked", lambda self, proposals, raws: {})
        patched.setattr(runner.recorded_config, "as_recorded", lambda raw, *others: dict(raw))
        patched.setattr(runner.process, "outlive_stdout", lambda terminal: None)
        yield


ANY_MACHINE: dict[str, Any] = {
    "deadline": None, "derandomize": True, "database": None, "suppress_health_check": [HealthCheck.too_slow]
}  # fmt: skip


def simulate(schedule: Schedule, folders: pytest.TempPathFactory) -> None:
    simulation = Simulation(schedule, folders.mktemp("sweep"))
    with simulation.machine.installed():
        simulation.run()


@settings(max_examples=30, **ANY_MACHINE)
@given(schedule=schedules)
# A job that failed is resumed, and then ends before it records anything.
@example(Schedule(scripts=((("killed", 1.0), ("never begins", 0.0)),)))
# A job that no longer ends in good order is killed by the second signal; the next process goes on with it.
@example(Schedule(scripts=((("deaf", 0.0),), ()), attempts=(Attempt(signals=((1.0, 2), (2.0, 2))),)))
# A job is restarted in a process of the launcher, and its sweep is killed.
@example(Schedule(scripts=((("restarts", 0.5),) * 2,), attempts=(Attempt(killed_s=1.0),), elsewhere=True))
# A resumed sweep is interrupted before it comes to a job that had failed: the job waits again.
@example(
    Schedule(
        scripts=((), (("completes", 2.0), ("hangs", 0.0)), (("completes", 3.0),), (("fails", 0.0),)),
        attempts=(Attempt(is_written=False),),
        max_parallel=1,
        checkpoint="epoch",
    )
)
# It is interrupted before a job that it has started records anything.
@example(
    Schedule(
        scripts=((("completes", 1.25),), (("completes", 2.5),), (("never begins", 0.0),)),
        attempts=(),
        max_parallel=1,
        workers=3,
    )
)
def test_a_sweep_under_any_schedule(tmp_path_factory, schedule):
    simulate(schedule, tmp_path_factory)


@pytest.mark.thorough
@settings(max_examples=200, **ANY_MACHINE)
@given(schedule=schedules)
def test_a_sweep_under_many_schedules(tmp_path_factory, schedule):
    simulate(schedule, tmp_path_factory)
