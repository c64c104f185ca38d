"""The table of roles. The module of a role is imported only in processes with that role."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

from rich.console import Console

from psrun.config import choices
from psrun.config.run_config import RunConfig
from psrun.config.topology import Task
from psrun.errors import ExitCode, Interrupted, PsrunError
from psrun.process import Stop, allow_open_files
from psrun.results.console import ConsoleSink
from psrun.results.events import Reporter
from psrun.results.run_folder import RunFolder
from psrun.roles.task_assignment import Identity
from psrun.roles.task_context import TaskContext
from psrun.tf_internals import generated_files
from psrun.tf_internals.modules import import_for_servers, lazy_imports

# TensorFlow may hold Python's global lock for 20 s, until it gives up connecting to a disconnected host.
_GUARD_WAITS_LONGER_S = 30.0


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
    generated_files.keep_together()
    gc.freeze()
    gc.enable()
    return module


def _coordinator(process: Process) -> None:
    with process.console.status("importing TensorFlow"):  # takes two seconds and more
        module = import_role("coordinator")
    _as_chief(process, module, process.stop)


def _as_chief(process: Process, module: Any, *more: Any) -> None:
    """Runs a chief's role, with a guard if there is no supervisor."""
    me, cluster = process.me, process.run.cluster
    if isinstance(cluster, choices.Unsupervised) and me.topology is not None:
        servers = me.topology.servers()
        timeout_s = cluster.heartbeat_timeout_s + _GUARD_WAITS_LONGER_S
        guard = importlib.import_module("psrun.launch.guard")
        guard.start(process.folder.path, process.terminal, timeout_s=timeout_s, servers=servers)
    module.run(process.run, _context(process), *more)


def _context(process: Process) -> TaskContext:
    topology, console = process.me.topology, ConsoleSink(process.console)
    return TaskContext(process.folder, console, process.started_s, topology=topology, give_up=process.give_up)


def _replica(process: Process) -> None:
    module = import_role("replica")
    module.run(process.run, _context(process), process.stop)


def _server(process: Process) -> None:
    import_for_servers()
    module, cluster = import_role("server"), process.run.cluster
    module.run(
        *(process.me.topology, process.folder, process.stop),
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
    module, timeout_s = import_role("evaluator"), process.run.cluster.chief_timeout_s
    module.run(process.folder, process.stop, index=topology.me.index, run_timeout_s=timeout_s)


def _evaluates(sidecar: choices.Sidecar | None, me: Task) -> bool:
    """Whether this task, which is not part of the cluster, evaluates."""
    return sidecar is not None and (me.job == "worker" if sidecar.sets_worker_aside else me.index == 0)


def _supervisor(process: Process) -> ExitCode:
    allow_open_files()  # the tasks inherit the limit
    run, folder = process.run, process.folder
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
        generated_files.remove_abandoned()


def _planner(process: Process) -> None:
    import_role("planner").run(process.run, process.folder, process.console)


def _exporter(process: Process) -> None:
    import_role("exporter").run(process.run, process.folder, process.console)


def _predictor(process: Process) -> None:
    _as_chief(process, import_role("predictor"))


def _evaluation(process: Process) -> None:
    _as_chief(process, import_role("evaluation"))


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
