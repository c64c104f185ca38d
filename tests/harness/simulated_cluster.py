"""A cluster in simulated time: scripted tasks and machines for the real supervisor. Nothing sleeps or is written.

A schedule says what happens when. The world keeps its own record of what happened, by which `violations` judges what
the supervisor did and reported.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
import io
import itertools
import random
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from support import run_config

from psrun.config.run_config import RunConfig
from psrun.config.topology import CHIEF, EVALUATOR, Task
from psrun.errors import BudgetSpentError, ConfigError, ExitCode, Interrupted, PsrunError, ended
from psrun.launch.backend import Backend, Clock, Launch, TaskHandle, TaskPlan
from psrun.launch.supervisor import Supervisor
from psrun.process import Stop
from psrun.results.events import Event, Reporter, Sink
from psrun.results.task_files import Heartbeat

# Limits of the simulated runs, in seconds. A wait of the supervisor is prolonged to at most `LONGEST_WAIT_S`, which is
# less than the time after which it would count as held up.
HEARTBEAT_S = 4.0
PROGRESS_S = 8.0
START_S = 10.0
STOP_S = 3.0
BACKOFF_S = 1.0
MAX_BACKOFF_S = 3.0
EVALUATOR_S = 20.0
LONGEST_WAIT_S = 1.0
BEAT_S = 0.5  # between two heartbeats
READ_S = 0.001  # what it takes to look at a task; others go on meanwhile
STEPS_PER_S = 10.0
CHECKPOINT_EVERY = 20  # steps
END_S = 2000.0
LIMITS = {
    "heartbeat_timeout_s": HEARTBEAT_S,
    "progress_timeout_s": PROGRESS_S,
    "start_timeout_s": START_S,
    "stop_timeout_s": STOP_S,
    "backoff_s": BACKOFF_S,
    "max_backoff_s": MAX_BACKOFF_S,
}
RUNS = {
    "parameter servers": ("cluster=local", "evaluation=none", "cluster.num_workers=1", "cluster.num_ps=2"),
    "two workers": ("cluster=local", "evaluation=none", "cluster.num_workers=2", "cluster.num_ps=1"),
    "sidecar": ("cluster=local", "evaluation=sidecar", "cluster.num_workers=1", "cluster.num_ps=1"),
    "synchronous": ("cluster=multi_worker_mirrored", "trainer=fit", "evaluation=none"),
}


@dataclass(frozen=True)
class Fault:
    """Something that happens to a task.

    Attributes:
      kind: of `FAULTS`.
      task: its name.
      detail: the exit code of an exit, negative for a signal; the seconds of a slow start or of a suspension; the
        number of a signal; whether the chief is silent as long as a task that hangs.
    """

    at_s: float
    kind: str
    task: str = "chief-0"
    detail: float = 0


@dataclass(frozen=True)
class Schedule:
    """A run and what happens to it.

    Attributes:
      run: of `RUNS`.
      steps: of the training.
      chief_ends_with: once all steps are done.
      seed: of how long starts take, and of when tasks are looked at.
    """

    run: str
    faults: tuple[Fault, ...] = ()
    budget: int = 3
    steps: int = 40
    chief_ends_with: int = ExitCode.DONE
    seed: int = 0


FAULTS = ("exit", "hang", "stall", "machine", "stop", "slow start", "reported by the chief", "suspended")


def random_schedule(seed: int) -> Schedule:
    draw = random.Random(seed)
    run = draw.choice(list(RUNS))
    names = [str(task) for task in plan_of(run).tasks()]
    details: dict[str, Callable[[], float]] = {
        "exit": lambda: draw.choices((-9, -15, 0, 1, 2, 137, 175), (8, 2, 2, 2, 1, 2, 4))[0],
        "slow start": lambda: draw.choice((3.0, 8.0, END_S)),
        "stop": lambda: draw.choice((signal.SIGINT, signal.SIGTERM)),
        "suspended": lambda: draw.choice((5.0, 500.0)),
        "hang": lambda: draw.choice((0, 1)),
    }
    faults = []
    for _ in range(draw.choice((0, 1, 1, 2, 2, 3, 4))):
        kind = draw.choices(FAULTS, (8, 4, 1, 2, 1, 2, 2, 1))[0]
        detail = details[kind]() if kind in details else 0
        faults.append(Fault(round(draw.uniform(0, 12), 3), kind, draw.choice(names), detail))
    code = draw.choices((ExitCode.DONE, ExitCode.FAILED, ExitCode.USAGE), (8, 1, 1))[0]
    return Schedule(run, tuple(sorted(faults, key=lambda fault: fault.at_s)), draw.randrange(4), 40, code, seed)


@functools.cache
def config_of(run: str, budget: int) -> RunConfig:
    config = run_config(*RUNS[run])
    restart = dataclasses.replace(config.cluster.restart, budget=budget, **LIMITS)
    changed = dataclasses.replace(config, cluster=dataclasses.replace(config.cluster, restart=restart))
    if config.sidecar is not None:
        changed = dataclasses.replace(changed, evaluation=dataclasses.replace(config.sidecar, wait_s=EVALUATOR_S))
    return changed


@functools.cache
def plan_of(run: str) -> TaskPlan:
    return TaskPlan.of(run_config(*RUNS[run]))


class Folder:
    """What the supervisor knows of a run folder."""

    path = Path("/nonexistent/run")

    def __init__(self) -> None:
        self.result: dict[str, Any] = {"status": "running"}
        self._new: list[Event] = []

    def stored(self) -> dict[str, Any]:
        return self.result

    def emit(self, kind: str, /, *, rows: list[dict[str, Any]]) -> None:
        self.result = {**self.result, kind: rows}

    def log(self, task: str) -> Path:
        return self.path / task

    def new_events(self) -> Folder:
        return self

    def read(self) -> list[Event]:
        new = self._new
        self._new = []
        return new

    def add(self, kind: str, step: int) -> None:
        self._new.append(Event(kind, step, 0.0, {"path": "checkpoint"}))


@dataclass
class Process:
    """A process of a task.

    Attributes:
      up_s: when it has its first heartbeat.
      silent_s: since when its heartbeat does not change.
      fault: what has happened to it that a supervisor must see.
      fault_s: when.
      holds_up: the chief's process, which is silent as long as this one is.
      is_leaving: whether it has removed its heartbeat to exit.
    """

    task: Task
    number: int
    began_s: float
    up_s: float
    silent_s: float | None = None
    code: int | None = None
    how: str = ""
    fault: str = ""
    fault_s: float = END_S
    holds_up: Process | None = None
    is_leaving: bool = False

    @property
    def runs(self) -> bool:
        return self.code is None

    def suffers(self, fault: str, now_s: float) -> None:
        if not self.fault:
            self.fault = fault
            self.fault_s = now_s


class SimulatedTask(TaskHandle):
    """A task, and its processes so far."""

    def __init__(self, task: Task, world: World) -> None:
        super().__init__(task, world.folder.path)
        self._world = world
        self.processes: list[Process] = []

    @property
    def process(self) -> Process:
        return self.processes[-1]

    def start(self) -> None:
        assert not self.processes or not self.process.runs, f"{self.task} has two processes"
        self.start_at_s = None
        self._world.start(self)

    @property
    def started(self) -> bool:
        return bool(self.processes)

    @property
    def pid(self) -> int | None:
        return self.process.number if self.processes else None

    @property
    def code(self) -> int | None:
        self._world.advance(self._world.now_s + READ_S)
        return self.process.code if self.processes else None

    @property
    def how_it_ended(self) -> str:
        return self.process.how or ended(self.process.code)

    def send(self, signum: int) -> None:
        if self.processes and self.process.runs:
            self._world.signaled(self.process, signum)

    def kill(self) -> None:
        if self.processes and self.process.runs:
            self._world.end(self.process, -signal.SIGKILL)

    def heartbeat(self) -> Heartbeat | None:
        return self._world.heartbeat(self.process) if self.processes else None


class SimulatedBackend(Backend):
    """An engine of machines with one task each. It finds a lost one when it is asked, or after a while."""

    def __init__(self, world: World, tasks: Mapping[Task, SimulatedTask]) -> None:
        super().__init__(tasks, {})
        self._world = world
        self.looks_s: list[float] = []

    def look(self) -> None:
        self.looks_s.append(self._world.now_s)

    def find_lost_machines(self) -> None:
        self._world.find_lost_machines()

    def must_move(self, tasks: Sequence[TaskHandle]) -> bool:
        if not any(each.task in self._world.found_machines for each in tasks):
            return False
        self._world.found_machines.clear()
        self._world.moves_s.append(self._world.now_s)
        return True


class Requested(threading.Event):
    """The event of a `Stop`, whose waits take simulated time."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def wait(self, timeout: float | None = None) -> bool:
        if not self.is_set():
            self._world.wait(timeout or 0.0)
        return self.is_set()


class World(Sink):
    """The machines, the training and the time.

    Attributes:
      events: what the supervisor has reported, with the time.
      lost_machines: the tasks on them, until the engine has found that out.
      found_machines: the tasks that have to move.
      moves_s: when tasks had to move.
      done_s: when the chief has recorded the end of the training.
      changes: when the training began to go on, and when it ceased to.
      chief_ended_s: when the chief has ended for good.
      over_s: that, or when a signal has arrived.
      undone: steps that restarts of the chief have undone.
      raised: by the supervisor.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.now_s = 0.0
        self.folder = Folder()
        self.events: list[tuple[float, Event]] = []
        self.lost_machines: set[Task] = set()
        self.found_machines: set[Task] = set()
        self.moves_s: list[float] = []
        self.done_s: list[float] = []
        self.undone = 0
        self.raised: BaseException | None = None
        self.code: int | None = None
        self.over_s: float | None = None
        self.chief_ended_s: float | None = None
        self.stop = Stop()
        self.stop.requested = Requested(self)
        self.plan = plan_of(schedule.run)
        self.tasks = {task: SimulatedTask(task, self) for task in self.plan.tasks()}
        self.chief = self.tasks[CHIEF]
        self.backend = SimulatedBackend(self, self.tasks)
        self.suspended_s: list[tuple[float, float]] = []
        self._draw = random.Random(schedule.seed)
        self._timeline: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._slow_starts: dict[Task, float] = {}
        self._stalled = False
        # The training: `_step` steps were done at `_since_s`, and more are, if it goes on.
        self._step = 0
        self._since_s = 0.0
        self._goes_on = False
        self._stretch = 0
        self._saved = 0
        self.changes: list[tuple[float, bool]] = []
        for fault in schedule.faults:
            self.at(fault.at_s, functools.partial(self._happen, fault))

    def run(self) -> World:
        run = config_of(self.schedule.run, self.schedule.budget)
        reporter = SimulatedReporter([self], started_s=0.0)
        reporter.world = self
        quiet = Console(file=io.StringIO(), quiet=True, force_terminal=False)
        launch = Launch(run, self.plan, self.folder, self.stop, quiet, reporter)  # type: ignore[arg-type]
        supervisor = Supervisor(launch, self.backend, Clock(lambda: self.now_s, self.wait))
        try:
            self.code = supervisor.run()
        except (PsrunError, Interrupted) as error:
            self.raised = error
            self.over_s = self.over_s or self.now_s
            self.code = error.exit_code
        return self

    def event(self, event: Event) -> None:
        self.events.append((self.now_s, event))

    # -- time

    def at(self, at_s: float, action: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._timeline, (at_s, self._number, action))

    def advance(self, to_s: float) -> None:
        while self._timeline and self._timeline[0][0] <= to_s:
            at_s, _, action = heapq.heappop(self._timeline)
            self.now_s = max(self.now_s, at_s)
            action()
        self.now_s = max(self.now_s, to_s)

    def wait(self, seconds: float) -> None:
        """Passes the time until shortly before something happens, or longer than that."""
        assert self.now_s < END_S, "the supervisor does not return"
        until_s = self.now_s + LONGEST_WAIT_S
        if self._timeline:
            until_s = min(until_s, self._timeline[0][0] - self._draw.random() * 6 * READ_S)
        self.advance(max(until_s, self.now_s + seconds))

    # -- processes

    def start(self, task: SimulatedTask) -> None:
        starts_s = self._slow_starts.pop(task.task, 0.0) or self._draw.uniform(0.2, 1.5)
        self._number += 1
        process = Process(task.task, self._number, self.now_s, self.now_s + starts_s)
        if starts_s > START_S:
            process.suffers("never comes up", self.now_s)
        if task.task in self.lost_machines:
            process.suffers("machine", self.now_s)
            process.silent_s = self.now_s
        task.processes.append(process)
        if task is self.chief:
            self._stalled = False
            self.undone += self.step - self._saved
            self._step = self._saved
            self.folder.result = {"status": "running"}
        if starts_s < END_S:
            self.at(process.up_s, functools.partial(self._is_up, process))
        self.changed()

    def _is_up(self, process: Process) -> None:
        if process.runs and process.task == CHIEF:
            self.folder.add("restored", self._saved)
        self.changed()

    def end(self, process: Process, code: int, how: str = "") -> None:
        if process.runs:
            process.code = code
            process.how = how
            if process.task == CHIEF and code in (ExitCode.DONE, ExitCode.FAILED, ExitCode.USAGE):
                self.over_s = self.over_s or self.now_s
                self.chief_ended_s = self.now_s
            if process.holds_up is not None:
                self.at(self.now_s + BEAT_S, functools.partial(self._released, process.holds_up))
            self.changed()

    def _released(self, process: Process) -> None:
        if not process.fault:
            process.silent_s = None
            self.changed()

    def signaled(self, process: Process, signum: int) -> None:
        if process.silent_s is not None:
            return
        if process.task == CHIEF:
            code = ExitCode.INTERRUPTED if signum == signal.SIGINT else ExitCode.RESTART
            self.at(self.now_s + 0.5, functools.partial(self._interrupted, process, code))
        else:
            self.at(self.now_s + 0.1, functools.partial(self.end, process, ExitCode.DONE))

    def _interrupted(self, process: Process, code: int) -> None:
        if process.runs:
            self.folder.result |= {"status": "interrupted", "exit_code": code}
            self.end(process, code)

    def heartbeat(self, process: Process) -> Heartbeat | None:
        if self.now_s < process.up_s or process.is_leaving:
            return None
        beat_s = self.now_s if process.silent_s is None else process.silent_s
        beat_s = int(2 * beat_s) / 2
        if process.task != CHIEF:
            return Heartbeat(process.number, beat_s, "serving")
        step = self.step
        return Heartbeat(process.number, beat_s, "training" if step > self._saved else "starting", step)

    # -- training

    @property
    def step(self) -> int:
        seconds = self.now_s - self._since_s if self._goes_on else 0.0
        return min(self.schedule.steps, self._step + int(STEPS_PER_S * seconds))

    def is_well(self, task: SimulatedTask) -> bool:
        process = task.process if task.processes else None
        return process is not None and process.runs and process.silent_s is None and self.now_s >= process.up_s

    def changed(self) -> None:
        """Something has changed that the training depends on."""
        was = self._goes_on
        self._step = self.step
        self._since_s = self.now_s
        self._goes_on = self._may_go_on()
        if was != self._goes_on:
            self.changes.append((self.now_s, self._goes_on))
        if self._goes_on:
            self._stretch += 1
            missing = self.schedule.steps - self._step
            self.at(self.now_s + missing / STEPS_PER_S, functools.partial(self._done, self._stretch))
        elif was:
            self._stretch += 1
        saved = self._step - self._step % CHECKPOINT_EVERY
        self._saved = max(self._saved, saved)

    def _may_go_on(self) -> bool:
        workers = [task for task in self.tasks.values() if task.task.job == "worker"]
        needed = [task for task in self.tasks.values() if task.task.job not in ("worker", "evaluator")]
        are_all = self.plan.restarted_together == ("worker", "chief")
        enough = all(map(self.is_well, workers)) if are_all else any(map(self.is_well, workers))
        return enough and all(map(self.is_well, needed)) and not self._stalled and not self.chief.process.is_leaving

    def _done(self, stretch: int) -> None:
        if stretch != self._stretch or not self._goes_on:
            return
        chief = self.chief.process
        chief.is_leaving = True
        self.done_s.append(self.now_s)
        code = self.schedule.chief_ends_with
        self.changed()
        self._step = self._saved = self.schedule.steps
        self.folder.result |= {"status": "failed" if code else "completed", "exit_code": int(code)}
        self.at(self.now_s + 0.3, functools.partial(self.end, chief, code))
        if not code:
            for task, each in self.tasks.items():
                if task.job not in ("chief", "evaluator"):
                    self.at(self.now_s + self._draw.uniform(0.2, 0.4), functools.partial(self.end, each.process, 0))
        if EVALUATOR in self.tasks:
            self.at(self.now_s + 4.0, self._evaluated)

    def _evaluated(self) -> None:
        evaluator = self.tasks[EVALUATOR]
        if self.is_well(evaluator):
            self.end(evaluator.process, ExitCode.DONE)
        else:
            self.at(self.now_s + 1.0, self._evaluated)

    # -- faults

    def _happen(self, fault: Fault) -> None:
        task = self.tasks[Task.named(fault.task)]
        runs = task.started and task.process.runs and not task.process.is_leaving
        if fault.kind in ("stop", "slow start", "suspended"):
            self._befall(task, fault)
        elif runs:
            self._strike(task, fault)

    def _befall(self, task: SimulatedTask, fault: Fault) -> None:
        """Something that needs no process."""
        if fault.kind == "stop":
            self.stop.follow(int(fault.detail))
            self.over_s = self.over_s or self.now_s
        elif fault.kind == "slow start":
            self._slow_starts[task.task] = fault.detail
        else:
            self.suspended_s.append((self.now_s, fault.detail))
            self._timeline = [(at_s + fault.detail, number, action) for at_s, number, action in self._timeline]
            self._since_s += fault.detail
            for each in self.tasks.values():
                if each.processes:
                    each.process.up_s += fault.detail * (each.process.up_s > self.now_s)
            self.now_s += fault.detail

    def _strike(self, task: SimulatedTask, fault: Fault) -> None:
        """Something that happens to a process, or to its machine."""
        if fault.kind == "exit":
            task.process.suffers("ended", self.now_s)
            self.end(task.process, int(fault.detail))
        elif fault.kind == "hang":
            self._silence(task.process, "hangs")
            if task.task.job in ("ps", "worker") and self.is_well(self.chief) and fault.detail:
                task.process.holds_up = self.chief.process
                self.chief.process.silent_s = self.now_s
        elif fault.kind == "stall":
            self._stalled = True
            self.chief.process.suffers("stalls", self.now_s)
            self.changed()
        elif fault.kind == "machine":
            self.lost_machines.add(task.task)
            self._silence(task.process, "machine")
            self.at(self.now_s + 2 * HEARTBEAT_S, self.find_lost_machines)
        elif fault.kind == "reported by the chief" and task is not self.chief:
            self._reported(task)

    def _silence(self, process: Process, fault: str) -> None:
        process.suffers(fault, self.now_s)
        if process.silent_s is None:
            process.silent_s = self.now_s
        self.changed()

    def _reported(self, task: SimulatedTask) -> None:
        """The chief exits, since it has lost a task, which has ended or still runs."""
        if not self._goes_on or task.task.job not in self.plan.restarted_together:
            return
        task.process.suffers("reported", self.now_s)
        message = f"{task.task} was lost"
        error = {"type": "TaskLostError", "message": message, "task": str(task.task)}
        self.folder.result |= {"status": "failed", "exit_code": int(ExitCode.RESTART), "error": error}
        self.chief.process.suffers("reports", self.now_s)
        if task.task.job == "ps":
            self.end(task.process, -signal.SIGKILL)
        self.end(self.chief.process, ExitCode.RESTART)

    def find_lost_machines(self) -> None:
        for task in self.lost_machines:
            self.end(self.tasks[task].process, -signal.SIGKILL, "was lost with its machine")
        self.found_machines |= self.lost_machines
        self.lost_machines.clear()


class SimulatedReporter(Reporter):
    """Reports by the time of the world."""

    world: World

    @property
    def wall_s(self) -> float:
        return self.world.now_s


def violations(world: World) -> list[str]:
    """What the supervisor has done wrong, in words; a test shows them."""
    return [*_of_the_end(world), *_of_failures(world), *_of_losses(world), *_of_the_budget(world), *_of_rows(world)]


def _of_the_end(world: World) -> Iterator[str]:
    yield from (f"{task} is left running" for task, each in world.tasks.items() if each.started and each.process.runs)
    suspended_s = sum(seconds for _, seconds in world.suspended_s)
    most_s = 30.0 * (len(world.schedule.faults) + 1) + EVALUATOR_S
    if world.now_s - suspended_s > most_s:
        yield f"it took {world.now_s:.0f} s"
    chief_code = world.chief.process.code
    codes = {process.code for each in world.tasks.values() for process in each.processes}
    signum = world.stop.signum
    if isinstance(world.raised, BudgetSpentError):
        expected = [ExitCode.FAILED]
    elif isinstance(world.raised, ConfigError):
        expected = [ExitCode.USAGE] if ExitCode.USAGE in codes else []
    elif signum is not None and chief_code not in (0, 1, 2):
        expected = [ExitCode.INTERRUPTED if signum == signal.SIGINT else ExitCode.RESTART]
        if isinstance(world.raised, Interrupted) == (world.folder.result["status"] == "interrupted"):
            yield "the interruption is not recorded, or recorded twice"
    else:
        expected = [chief_code] if chief_code in (0, 1, 2) else []
    if world.code not in expected:
        yield f"the exit code is {world.code}, not {expected}"


def _failures(world: World) -> list[tuple[float, Event]]:
    return [(at_s, event) for at_s, event in world.events if event.kind == "failure"]


def _process_at(task: SimulatedTask, at_s: float) -> Process:
    return [process for process in task.processes if process.began_s < at_s][-1]


def _of_failures(world: World) -> Iterator[str]:
    """Nobody is blamed who has done nothing, and what restarts is what the plan says."""
    together = world.plan.restarted_together
    everything = [str(task) for task in world.tasks]
    for at_s, event in _failures(world):
        task = world.tasks[Task.named(event.data["task"])]
        process = _process_at(task, at_s)
        idle_s = at_s - max([since_s for since_s, _ in world.changes if since_s <= at_s], default=0.0)
        is_idle = task is world.chief and "no progress" in event.data["cause"] and idle_s >= PROGRESS_S
        is_late = "last checkpoint" in event.data["cause"]
        if process.fault_s > at_s and not is_idle and not is_late:
            yield f"{task.task} is blamed at {at_s:.1f} s: {event.data['cause']}"
        if "restarted" not in event.data:
            continue
        members = [str(each) for each in world.tasks if each.job in together]
        alone = [str(task.task)]
        expected = [members if task.task.job in together else alone]
        if process.fault == "reported":
            expected.append(members)
        if any(0 <= at_s - move_s < 20 * READ_S for move_s in world.moves_s):
            expected = [everything]
            if any(done_s <= at_s <= done_s + 1.0 for done_s in world.done_s):
                expected = [everything, alone]
        if world.chief_ended_s is not None and world.chief_ended_s + 20 * READ_S < at_s:
            expected = [[str(EVALUATOR)]]
        if event.data["restarted"] not in expected:
            yield f"after the loss of {task.task} at {at_s:.1f} s {event.data['restarted']} restarts"


def _of_losses(world: World) -> Iterator[str]:
    """Each lost process is replaced, in time, and each replaced process has a failure."""
    failures = _failures(world)
    for task, each in world.tasks.items():
        for process, following in itertools.pairwise(each.processes):
            if not any(
                process.began_s <= at_s <= following.began_s and str(task) in event.data.get("restarted", ())
                for at_s, event in failures
            ):
                yield f"{task} was started again at {following.began_s:.1f} s without a failure"
        for at_s, event in failures:
            later = [process.began_s for process in each.processes if process.began_s >= at_s]
            if str(task) in event.data.get("restarted", ()):
                due_s = at_s + MAX_BACKOFF_S + LONGEST_WAIT_S + 0.1 + sum(s for _, s in world.suspended_s)
                if (later[0] if later else world.now_s) > due_s and not _is_over(world, at_s):
                    yield f"{task} was not started again after {at_s:.1f} s"
        last = each.process
        ends_well = last.code == ExitCode.DONE and task.job not in world.plan.serving
        seen_s = last.fault_s + START_S + 2 * LONGEST_WAIT_S + sum(seconds for _, seconds in world.suspended_s)
        if task.job != "evaluator" and not ends_well and seen_s < world.now_s and not _is_over(world, seen_s):
            yield f"the loss of {task} at {last.fault_s:.1f} s was not seen: {last.fault}"


def _is_over(world: World, at_s: float) -> bool:
    """Whether nothing needed to restart any more."""
    return world.over_s is not None and world.over_s <= at_s + MAX_BACKOFF_S + LONGEST_WAIT_S + 0.1


def _of_the_budget(world: World) -> Iterator[str]:
    restarts = [event.data["restarted"] for _, event in _failures(world) if "restarted" in event.data]
    used = sum(restarted != [str(EVALUATOR)] for restarted in restarts)
    budget = world.schedule.budget
    if used > budget:
        yield f"{used} restarts of {budget}"
    if isinstance(world.raised, BudgetSpentError) and used < budget:
        yield f"the budget is spent after {used} restarts of {budget}"
    if sum(restarted == [str(EVALUATOR)] for restarted in restarts) > budget:
        yield "the evaluator was restarted too often"


def _of_rows(world: World) -> Iterator[str]:
    """Each failure from which the training has recovered has a row in run.json, and counts the steps that it cost."""
    rows = world.folder.result["recoveries"]
    reported = [event.data for _, event in world.events if event.kind == "recovery"]
    if rows != reported:
        yield f"run.json has {rows}, but {reported} were reported"
    failures = [(at_s, event) for at_s, event in _failures(world) if "restarted" in event.data]
    unknown = [row for row in rows if not any(_is_of(row, *failure) for failure in failures)]
    if unknown:
        yield f"rows without a failure: {unknown}"
    if len(rows) > len(failures):
        yield "a failure has several rows"
    for at_s, event in failures:
        if _has_recovered(world, at_s, event) and not any(_is_of(row, at_s, event) for row in rows):
            yield f"the failure of {event.data['task']} at {at_s:.1f} s has no row"
    lost = sum(row["steps_lost"] for row in rows)
    if lost > world.undone or min([row["steps_lost"] for row in rows], default=0) < 0:
        yield f"{lost} steps count as lost, but {world.undone} were undone"


def _is_of(row: Mapping[str, Any], at_s: float, failure: Event) -> bool:
    same = (row["task"], row["cause"]) == (failure.data["task"], failure.data["cause"])
    return same and abs(row["at_s"] - at_s) < 0.01


def _has_recovered(world: World, at_s: float, failure: Event) -> bool:
    """Whether the training went on for some looks after the lost task was there again."""
    task = world.tasks[Task.named(failure.data["task"])]
    following = [process for process in task.processes if process.began_s >= at_s]
    if not following or following[0].fault or task.task == EVALUATOR:
        return False
    up_s = following[0].up_s
    stretches = itertools.pairwise([*world.changes, (world.now_s, False)])
    return any(
        goes_on and min(until_s, world.over_s or until_s) - max(since_s, up_s) > 3 * LONGEST_WAIT_S
        for (since_s, goes_on), (until_s, _) in stretches
    )
