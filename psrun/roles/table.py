"""The table of roles, and the task and the role of this process.

The module of a role that imports TensorFlow is imported only in processes with that role.
"""

from __future__ import annotations

import gc
import importlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TextIO

from rich.console import Console

from psrun.config import choices, rules, topology
from psrun.config.run_config import CHIEF_ROLES, RunConfig
from psrun.config.topology import CHIEF, Task, Topology
from psrun.errors import ChiefGoneError, ConfigError, ExitCode, Interrupted, PsrunError
from psrun.launch.losses import Silence
from psrun.process import SUPERVISOR_PID, Stop, allow_open_files
from psrun.results import task_files
from psrun.results.console import ConsoleSink
from psrun.results.events import Reporter, Sink
from psrun.results.run_folder import RunFolder, is_over
from psrun.tf_internals import modules
from psrun.tf_internals.modules import import_for_servers, lazy_imports

_POLL_S = 0.5
# TensorFlow may hold Python's global lock for 20 s, until it gives up connecting to a disconnected host.
_GUARD_WAITS_LONGER_S = 30.0


@dataclass(frozen=True)
class Identity:
    """The task and the role of this process.

    Attributes:
      role: of `psrun.roles.table.ROLES`.
      name: of the task, as in log files and messages.
      topology: None for a single process.
      owns_folder: whether this process creates the run folder and writes run.json.
      may_find_run: whether a run that is already in the folder is an earlier start of this one.
      patience_s: how long processes of an earlier start, on lost nodes, may still use the folder.
      start: the name of this start of the run; they see it and exit.
    """

    role: str
    name: str
    topology: Topology | None = None
    owns_folder: bool = True
    may_find_run: bool = False
    patience_s: float = 0.0
    start: str = ""

    @property
    def has_peers(self) -> bool:
        """Whether it is one of several processes, or starts them."""
        return self.topology is not None or self.role == "supervisor"


def identify(run: RunConfig, environment: Mapping[str, str]) -> Identity:
    """Raises ConfigError if the task cannot be determined."""
    if run.mode != "train" and not (run.uses_cluster and run.cluster.has_server_processes):
        role = {"plan": "planner", "export": "exporter", "predict": "predictor", "evaluate": "evaluation"}[run.mode]
        return Identity(role, role, owns_folder=run.resume is None)  # an existing run is not changed
    starter = None if SUPERVISOR_PID in environment else _starter(run, environment)
    if starter is not None:
        return starter
    cluster = run.cluster.topology(run, environment)
    if cluster is None:
        return Identity("coordinator", str(CHIEF))
    if run.cluster.has_synchronous_workers and cluster.me != CHIEF:
        return Identity("replica", str(cluster.me), cluster, owns_folder=False)
    if run.sidecar is not None and run.sidecar.sets_worker_aside and cluster.me.job != topology.EVALUATOR.job:
        cluster = topology.with_one_set_aside(cluster)
    if cluster.me == CHIEF and (problems := rules.worker_problems(run, len(cluster.of("worker")))):
        raise ConfigError(problems)
    return _of(cluster, cluster.me, CHIEF_ROLES[run.mode])


def _starter(run: RunConfig, environment: Mapping[str, str]) -> Identity | None:
    """The identity of a process that starts the tasks of a cluster; None for a task."""
    if not isinstance(run.cluster, choices.Supervised):
        return None
    start = run.cluster.start(run, environment)
    return Identity(
        "supervisor",
        "supervisor",
        may_find_run=start.may_find_run,
        patience_s=start.patience_s,
        start=start.name,
    )


def _of(cluster: Topology, me: Task, chiefs_role: str) -> Identity:
    if me.job == "worker" and me not in cluster.addresses:
        return Identity("evaluator", str(me), cluster, owns_folder=False)
    if me.job in ("worker", "ps"):
        return Identity("server", str(me), cluster, owns_folder=False)
    if me.job == topology.EVALUATOR.job:
        return Identity("evaluator", str(me), cluster, owns_folder=False)
    return Identity(chiefs_role, str(me), cluster, may_find_run=True)


@dataclass(frozen=True)
class TaskContext:
    """Where the task works and reports, and its cluster.

    Attributes:
      folder: of the run; or a folder within it, to evaluate or predict on a cluster of several processes.
      console: output for users.
      started_s: when the run started (`time.time`).
      topology: of a cluster of several processes; None for a single process.
      give_up: ends this process with an error, whatever its threads are doing; for clusters without a supervisor.
      connect: replaces `strategy.connect`, in tests with running servers.
    """

    folder: RunFolder
    console: Sink
    started_s: float
    topology: Topology | None = None
    give_up: Callable[[PsrunError], None] | None = None
    connect: Callable[..., Any] | None = None  # this module does not import TensorFlow


def wait_for_end_of_run(folder: RunFolder, stop: Stop, *, index: int, run_timeout_s: float) -> None:
    """Waits until the run in the folder is over, which it is not while its chief is to be restarted.

    Raises:
      ChiefGoneError: there was no run in the folder, or no heartbeat of its chief, for `run_timeout_s`.
    """
    stop.defer(_POLL_S * 10)
    me = Task("evaluator", index)
    beat = None
    silence = Silence(time.monotonic(), held_up_s=math.inf)
    with task_files.heartbeats(folder.path, me, lambda: "waiting"):
        while not stop.requested.wait(_POLL_S):
            result = folder.stored()
            before = beat
            if is_over(result) or result.get("exit_code") == ExitCode.INTERRUPTED:
                return
            beat = task_files.read(folder.path, CHIEF)
            if beat is not None and beat != before:
                silence.reset(time.monotonic())
            elif silence.exceeds(run_timeout_s, time.monotonic()):
                what = "no chief of the run in" if result else "no run in"
                raise ChiefGoneError(f"{what} {folder.path} for {run_timeout_s:.0f} s; {me} exits", task=str(me))


@dataclass(frozen=True)
class Process:
    """The process of a role.

    Attributes:
      console: for reports.
      terminal: for errors; standard error itself is written to the log.
      give_up: ends the process with an error, from any thread, whatever the others are doing.
    """

    run: RunConfig
    me: Identity
    folder: RunFolder
    stop: Stop
    started_s: float
    console: Console
    terminal: TextIO
    give_up: Callable[[PsrunError], None]


def import_role(name: str) -> Any:
    """Imports the module of a role that imports TensorFlow, and excludes its objects from garbage collection.

    The import creates some hundred thousand objects that live as long as the process. Traversing them repeatedly costs
    time during the import, and a few per cent of each step during the training.
    """
    gc.disable()
    with lazy_imports():
        module = importlib.import_module(f"psrun.roles.{name}")
    modules.keep_generated_files_together()
    gc.freeze()
    gc.enable()
    return module


def _coordinator(process: Process) -> None:
    with process.console.status("importing TensorFlow"):  # takes two seconds and more
        module = import_role("chief")
    _as_chief(process, module.run, process.stop)


def _as_chief(process: Process, run: Callable[..., None], *more: Any) -> None:
    """Calls the function of a chief's role, with a guard if there is no supervisor."""
    cluster = process.run.cluster
    if isinstance(cluster, choices.Unsupervised) and process.me.topology is not None:
        unsupervised = importlib.import_module("psrun.launch.unsupervised")
        unsupervised.start_guard(
            process.folder.path,
            process.terminal,
            timeout_s=cluster.heartbeat_timeout_s + _GUARD_WAITS_LONGER_S,
            servers=process.me.topology.servers(),
        )
    run(process.run, _context(process), *more)


def _context(process: Process) -> TaskContext:
    return TaskContext(
        process.folder,
        ConsoleSink(process.console, verbose=process.run.run.verbose),
        process.started_s,
        topology=process.me.topology,
        give_up=process.give_up,
    )


def _replica(process: Process) -> None:
    import_role("chief").run_replica(process.run, _context(process), process.stop)


def _server(process: Process) -> None:
    import_for_servers()
    module = import_role("server")
    cluster = process.run.cluster
    module.run(
        process.me.topology,
        process.folder,
        process.stop,
        chief_timeout_s=cluster.chief_timeout_s,
        num_replicas=cluster.replicas_per_worker,
        is_profiled=process.run.profile.steps is not None,
    )


def _evaluator(process: Process) -> None:
    topology = process.me.topology
    assert topology is not None
    if _evaluates(process.run.sidecar, topology.me):
        module = import_role("sidecar")
        module.run(process.run, process.folder, ConsoleSink(process.console), process.stop, me=topology.me)
        return
    timeout_s = process.run.cluster.chief_timeout_s
    wait_for_end_of_run(process.folder, process.stop, index=topology.me.index, run_timeout_s=timeout_s)


def _evaluates(sidecar: choices.Sidecar | None, me: Task) -> bool:
    """Whether this task, which is not part of the cluster, evaluates."""
    if sidecar is None:
        return False
    if sidecar.sets_worker_aside:
        return me.job == "worker"
    return me.index == 0


def _supervisor(process: Process) -> ExitCode:
    allow_open_files()  # the tasks inherit the limit
    run = process.run
    folder = process.folder
    backends = importlib.import_module("psrun.launch.backend")
    reporter = Reporter([folder.journal], started_s=process.started_s)
    plan = backends.TaskPlan.of(run)
    launch = backends.Launch(run, plan, folder, process.stop, process.console, reporter)
    backend = run.cluster.load()(launch)
    code = ExitCode.FAILED
    try:
        module = importlib.import_module("psrun.launch.supervisor")  # while a fork server imports TensorFlow
        code = module.Supervisor(launch, backend).run()
        return code
    except (PsrunError, Interrupted) as error:
        code = error.exit_code
        raise
    finally:
        backend.close(code)
        modules.remove_abandoned_folders()


def _planner(process: Process) -> None:
    import_role("planner").run(process.run, process.folder, process.console)


def _exporter(process: Process) -> None:
    import_role("checkpoint_modes").run_export(process.run, process.folder, process.console)


def _predictor(process: Process) -> None:
    _as_chief(process, import_role("checkpoint_modes").run_predict)


def _evaluation(process: Process) -> None:
    _as_chief(process, import_role("checkpoint_modes").run_evaluate)


# The only place with deferred imports: all roles but those that start tasks import TensorFlow.
ROLES: dict[str, Callable[[Process], ExitCode | None]] = {
    "coordinator": _coordinator,
    "replica": _replica,
    "server": _server,
    "evaluator": _evaluator,
    "supervisor": _supervisor,
    "planner": _planner,
    "exporter": _exporter,
    "predictor": _predictor,
    "evaluation": _evaluation,
}
