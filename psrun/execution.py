"""One process of a run, from plain configuration values to an exit code, and what is told of how it went."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TextIO

from rich.console import Console

from psrun import choices, environment, identity, loading
from psrun.cluster import files, isolation
from psrun.cluster.topology import CHIEF, Task
from psrun.config import RunConfig
from psrun.errors import ConfigError, ExitCode, Interrupted, Problem, PsrunError
from psrun.identity import Identity
from psrun.reporting.console import ConsoleSink
from psrun.reporting.run_folder import RunFolder, write_config
from psrun.stop import Stop

# TensorFlow may hold Python's lock for the 20 s that it takes to give up connecting to a host that is cut off.
_GUARD_WAITS_LONGER_S = 30.0


@dataclass(frozen=True)
class Process:
    """What a role is given.

    Attributes:
      console: for what it reports.
      terminal: for errors; standard error itself goes to the log.
      give_up: ends the process with an error, from any thread, whatever the others do.
    """

    run: RunConfig
    me: Identity
    folder: RunFolder
    stop: Stop
    started_s: float
    console: Console
    terminal: TextIO
    give_up: Callable[[PsrunError], None]


def _import(name: str) -> Any:
    """Imports a module that imports TensorFlow: some hundred thousand objects that all live as long as the process.

    Python's garbage collector would look at them again and again, during the import and, to the cost of some per cent
    of a step, during the training.
    """
    gc.disable()
    module = importlib.import_module(name)
    gc.freeze()
    gc.enable()
    return module


def _coordinator(process: Process) -> None:
    with process.console.status("importing TensorFlow"):  # two seconds and more, in which nothing else is shown
        module = _import("psrun.roles.coordinator")
    _guarded(process)
    module.run(
        *(process.run, process.folder, ConsoleSink(process.console), process.stop),
        started_s=process.started_s,
        topology=process.me.topology,
        give_up=process.give_up,
    )


def _guarded(process: Process) -> None:
    """Starts the guard of a chief that nobody supervises."""
    me, cluster = process.me, process.run.cluster
    if isinstance(cluster, choices.Unsupervised) and me.topology is not None:
        servers = me.topology.servers()
        timeout_s = cluster.heartbeat_timeout_s + _GUARD_WAITS_LONGER_S
        guard = importlib.import_module("psrun.cluster.guard")
        guard.start(process.folder.path, process.terminal, timeout_s=timeout_s, servers=servers)


def _replica(process: Process) -> None:
    module, sink = _import("psrun.roles.replica"), ConsoleSink(process.console)
    module.run(process.run, process.folder, sink, process.stop, process.me.topology, started_s=process.started_s)


def _server(process: Process) -> None:
    # TensorFlow imports Keras where it can, for a fifth of the whole; a server has no use for it.
    sys.modules["tf_keras"] = None  # type: ignore[assignment]
    module, cluster = _import("psrun.roles.server"), process.run.cluster
    timeout_s = getattr(cluster, "chief_timeout_s")  # noqa: B009 - clusters of one process have no servers
    module.run(process.me.topology, process.folder, process.stop, chief_timeout_s=timeout_s)


def _evaluator(process: Process) -> None:
    topology = process.me.topology
    assert topology is not None
    if _evaluates(process.run.evaluation, topology.me):
        module = _import("psrun.roles.sidecar")
        module.run(process.run, process.folder, ConsoleSink(process.console), process.stop, me=topology.me)
        return
    timeout_s = getattr(process.run.cluster, "chief_timeout_s")  # noqa: B009 - as above
    module = _import("psrun.roles.evaluator")
    module.run(process.folder, process.stop, index=topology.me.index, run_timeout_s=timeout_s)


def _evaluates(evaluation: choices.Evaluation, me: Task) -> bool:
    """Whether this task is the one that evaluates, of those that are no part of the cluster."""
    aside = isinstance(evaluation, choices.SidecarThread)
    return isinstance(evaluation, choices.Sidecar) and (me.job == "worker" if aside else me.index == 0)


def _supervisor(process: Process) -> ExitCode:
    module = importlib.import_module("psrun.roles.supervisor")
    return module.run(process.run, process.folder, process.stop, process.console, started_s=process.started_s)


def _planner(process: Process) -> None:
    _import("psrun.roles.planner").run(process.run, process.folder, process.console)


def _exporter(process: Process) -> None:
    _import("psrun.roles.exporter").run(process.run, process.folder, process.console)


def _predictor(process: Process) -> None:
    _import("psrun.roles.predictor").run(process.run, process.folder, process.console)


def _evaluation(process: Process) -> None:
    module = _import("psrun.roles.evaluation")
    _guarded(process)
    module.run(
        *(process.run, process.folder, ConsoleSink(process.console)),
        started_s=process.started_s,
        topology=process.me.topology,
        give_up=process.give_up,
    )


# The one place of deferred imports: what stands behind it, but for the supervisor, imports TensorFlow.
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


def to_the_end(work: Callable[[float], ExitCode]) -> NoReturn:
    """Does `work`, told when this process began (as of `time.time`), and ends the process with its exit code."""
    started_s = time.time()
    environment.leave_first_place()
    environment.prepare()
    try:
        code = work(started_s)
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    except PsrunError as error:
        Console(stderr=True).print(f"psrun: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        code = error.exit_code
    except SystemExit as exit_:  # Hydra's own ends: --help, --cfg, --info
        code = ExitCode(int(exit_.code or 0))
    environment.leave(code)


def execute(raw: Mapping[str, Any], path: Path, overrides: list[str], *, started_s: float) -> ExitCode:
    """Does this process's part of a run in the run folder `path`. An error ends up in run.json and as an exit code.

    Raises:
      ConfigError: there can be no run folder at `path`, or nobody is there to record the error.
    """
    environment.end_with_supervisor()
    try:
        run = loading.load(raw)
        me = identity.identify(run, os.environ)
    except ConfigError as error:
        if not (path / "run.json").exists():
            _begun(RunFolder.create(path, raw=raw), raw, overrides, started_s)
            _record_failure(RunFolder.take_over(path), error, "chief-0", started_s)
        raise
    path = _place(run, me, path)
    undo = _undo(run, me, path)
    folder = _folder(run, me, path)
    if me.owns_folder:
        started_s = _begun(folder, raw, overrides, started_s)
    terminal = environment.divert_stderr(folder.log(me.name))
    faulthandler.enable(terminal)  # a crash in native code says where it was
    stop = Stop()
    stop.install()
    console = Console(highlight=False)

    def failed(error: BaseException) -> ExitCode:
        return _failed(error, folder, me, terminal, started_s)

    def give_up(error: PsrunError) -> None:
        code = error.exit_code
        try:
            code = failed(error)
        finally:
            environment.leave(code)

    try:
        note = _isolated(run)
        if note:
            console.print(f"[yellow]note:[/yellow] {note}", soft_wrap=True)
        code = ROLES[me.role](Process(run, me, folder, stop, started_s, console, terminal, give_up)) or ExitCode.DONE
    except BaseException as error:
        code = failed(error)
        undo(code)
        return code
    if me.owns_folder and code == ExitCode.DONE:
        folder.update(status="completed", exit_code=code, wall_s=round(time.time() - started_s, 3))
    elif code != ExitCode.DONE:  # what the chief recorded stands
        recorded = folder.stored().get("error") or {"message": f"ended with exit code {int(code)}"}
        _tell(terminal, recorded["message"], code, folder.path / "logs")
        undo(code)
    return code


def _place(run: RunConfig, me: Identity, path: Path) -> Path:
    """Where this process keeps what it leaves behind, of a run in `path`."""
    if run.mode == "evaluate" and me.of_processes and environment.SUPERVISOR_PID not in os.environ:
        return RunFolder(path).evaluations / "cluster"  # a run of its own, beside one that may still be going on
    return path


def _undo(run: RunConfig, me: Identity, path: Path) -> Callable[[ExitCode], None]:
    """What leaves a run as it was that was to be resumed with a configuration that does not fit it."""
    if run.resume is None or not me.owns_folder or environment.SUPERVISOR_PID in os.environ:
        return lambda code: None
    restore = RunFolder(path).snapshot()
    return lambda code: restore() if code == ExitCode.USAGE else None


def _folder(run: RunConfig, me: Identity, path: Path) -> RunFolder:
    if not me.owns_folder:
        return RunFolder.join(path)
    if environment.SUPERVISOR_PID not in os.environ:
        RunFolder.hold(path)
    if (me.may_find_run or run.resume) and (path / "run.json").exists():
        if environment.SUPERVISOR_PID not in os.environ and files.still_beats(path, CHIEF):
            raise ConfigError([Problem("hydra.run.dir", f"{path} holds a run that is going on; choose another folder")])
        folder = RunFolder.take_over(path, completed=run.resume is not None)
        write_config(path, run.raw)
        return folder
    return RunFolder.create(path, raw=run.raw)


def _begun(folder: RunFolder, raw: Mapping[str, Any], overrides: list[str], started_s: float) -> float:
    """Records that the run goes on; returns the start of its clock, which a process before this one may have set."""
    before = folder.stored()
    supervised = environment.SUPERVISOR_PID in os.environ
    # Where the run was begun long ago, as if there had been no pause.
    began_s = before["started_s"] if supervised else started_s - folder.elapsed_s()
    folder.update(status="running", mode=raw.get("mode"), exit_code=None, error=None, started_s=began_s)
    if overrides or not before.get("overrides"):
        folder.update(overrides=overrides)
    return began_s


def _isolated(run: RunConfig) -> str | None:
    """Moves this process, and those it will start, where nobody else reaches its servers; a note where it cannot."""
    wanted = getattr(run.cluster, "isolate", False)
    if wanted is False or run.mode not in ("train", "evaluate") or environment.SUPERVISOR_PID in os.environ:
        return None
    if wanted == "auto" and run.needs_network:
        reason: str | None = "the data or the checkpoints are elsewhere"
    else:
        reason = isolation.isolate()
    if reason is None:
        return None
    if wanted is True:
        raise PsrunError(f"cluster.isolate=true is not possible here: {reason}")
    return f"TensorFlow's servers listen on all interfaces of this machine, without authentication ({reason})"


def _failed(error: BaseException, folder: RunFolder, me: Identity, terminal: TextIO, started_s: float) -> ExitCode:
    if isinstance(error, KeyboardInterrupt):
        error = Interrupted(signal.SIGINT)
    log = folder.log(me.name)
    gone = "" if folder.path.exists() else f"the run folder {folder.path} was deleted under the run; "
    with contextlib.suppress(OSError), log.open("a", encoding="utf-8") as file:
        traceback.print_exception(error, file=file)
    known = isinstance(error, PsrunError)
    code = error.exit_code if isinstance(error, PsrunError) else ExitCode.FAILED
    text = gone + (str(error) if known else f"{type(error).__name__}: {error}")
    if me.owns_folder:
        try:
            _record_failure(folder, error, me.name, started_s)
        except OSError as disk:
            text += f"\n(and run.json could not be written: {disk})"
    _tell(terminal, text, code, log)
    return code


def _tell(terminal: TextIO, text: str, code: ExitCode, log: Path) -> None:
    where = "" if code == ExitCode.USAGE else f"\n(log: {log})"
    Console(file=terminal, highlight=False, soft_wrap=True).print(f"psrun: {text}{where}", style="red", markup=False)


def _record_failure(folder: RunFolder, error: BaseException, task: str, started_s: float) -> None:
    code = error.exit_code if isinstance(error, PsrunError) else ExitCode.FAILED
    told = {"type": type(error).__name__, "message": str(error), "task": getattr(error, "task", None) or task}
    status = "interrupted" if isinstance(error, Interrupted) else "failed"
    folder.update(status=status, exit_code=code, error=told, wall_s=round(time.time() - started_s, 3))
