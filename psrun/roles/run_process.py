"""One process of a run, from plain configuration values to an exit code, and the report of its outcome.

The tasks of a supervisor and the jobs of a sweep start here, `python -m psrun.roles.run_process FOLDER`, or are forked
by `psrun.roles.fork_server`. It does not import Hydra, which would take half a second.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TextIO

from omegaconf import OmegaConf
from rich.console import Console
from rich.text import Text

from psrun import files, process
from psrun.config import advice, choices, groups, parse, targets
from psrun.config.run_config import RunConfig
from psrun.config.topology import CHIEF
from psrun.errors import CANNOT_GROW, ConfigError, ExitCode, Interrupted, Problem, PsrunError, RunFolderError
from psrun.process import Stop
from psrun.results import run_folder, run_state, task_files
from psrun.results.console import print_folded, wide_unless_terminal
from psrun.results.run_folder import CONFIG, END_EARLY, RunFolder, cannot_be_made, in_use, write_config
from psrun.roles import table
from psrun.roles.table import Identity

_CANNOT_BE_WRITTEN = (*CANNOT_GROW, errno.EPIPE)
_BEGUN_WITHIN_S = 10.0
_RECORDED_WITHIN_S = 10.0


def to_the_end(work: Callable[[float], ExitCode]) -> NoReturn:
    """Calls `work` with the start time of this process (`time.time`), and exits with its exit code."""
    started_s = time.time()
    process.open_missing_streams()
    process.leave_first_place()
    process.prepare()
    code = ExitCode.DONE
    try:
        code = _exit_code(work, started_s)
        sys.stdout.flush()
    except OSError as error:
        if error.filename is not None or error.errno not in _CANNOT_BE_WRITTEN:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # discards the rest of the output
        if error.errno != errno.EPIPE:  # the reader has closed the pipe, such as `head`
            _print_problem(f"output cannot be written: {error.strerror}")  # to a terminal, a pipe or a file
        code = code or ExitCode.FAILED
    process.leave(code)


def run_prepared(folder: Path) -> NoReturn:
    """Runs this process's part of the prepared run in `folder`, and exits: a task, or a job of a sweep."""
    process.set_title(str(folder))
    to_the_end(lambda started_s: _run_prepared(folder, started_s))


def _run_prepared(folder: Path, started_s: float) -> ExitCode:
    process.end_with_sweep()
    targets.search_modules(folder)
    raw: Any = OmegaConf.to_container(OmegaConf.load(folder / CONFIG))
    return execute(raw, folder, _overrides(folder), started_s=started_s)


def _overrides(folder: Path) -> list[str]:
    """The overrides of the run as written, unresolved: their interpolations require Hydra."""
    file = folder / ".hydra" / "overrides.yaml"
    if not file.exists():
        return []
    overrides: Any = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    return [each for each in map(str, overrides) if not each.startswith("resume=")]


def _exit_code(work: Callable[[float], ExitCode], started_s: float) -> ExitCode:
    """Calls `work`; prints the error that it raises."""
    try:
        process.check_interpreter()
        return work(started_s)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except (PsrunError, Interrupted) as error:
        _print_problem(str(error))
        return error.exit_code
    except SystemExit as exit_:  # how Hydra ends --help, --cfg and --info
        return ExitCode(int(exit_.code or 0))


def _print_problem(text: str) -> None:
    with contextlib.suppress(OSError):
        Console(stderr=True).print(f"psrun: {text}", style="red", markup=False, highlight=False, soft_wrap=True)


def execute(
    raw: Mapping[str, Any],
    path: Path,
    overrides: list[str],
    *,
    started_s: float,
    keep_unrun: bool = True,
    is_own: bool = False,
) -> ExitCode:
    """Runs this process's part of a run in the run folder `path`. Errors are recorded in run.json.

    Args:
      keep_unrun: whether to keep the folder of a plan or of a rejected run.
      is_own: whether a person, and no sweep or supervisor, has started this process.

    Raises:
      ConfigError: the configuration is invalid, or there can be no run folder at `path`.
      RunFolderError: the disk is full.
    """
    process.end_with_supervisor()
    fresh = not keep_unrun and not RunFolder(path).has_run
    code = ExitCode.USAGE
    try:
        code = _execute(raw, path, overrides, started_s, is_own)
    except PsrunError:
        raise
    except OSError as error:  # before there is a log, such as on a full disk
        raise cannot_be_made(path, error) from error
    finally:
        unrun = code == ExitCode.USAGE or (code == ExitCode.DONE and raw.get("mode") == "plan")
        # A task may find an error of the configuration also when it starts again, after hours of training.
        if fresh and unrun and not RunFolder(path).has_results:
            files.remove_tree(path)
    return code


def _execute(raw: Mapping[str, Any], path: Path, overrides: list[str], started_s: float, is_own: bool) -> ExitCode:
    stop = Stop()
    stop.handle()
    run, me = _parsed(raw, path, overrides, started_s, stop)
    if run.cluster.spans_machines and groups.url_of(path):
        message = f"is {run.cluster.kind}, whose tasks need one folder on a disk that all of them share, not a URL"
        raise ConfigError([Problem("cluster", message)])
    is_own = is_own and me.owns_folder
    _show_task(me, path)
    path = _place(run, me, path)
    undo = Undo.of(run, me, path)
    folder = _folder(run, me, path)
    stop.defer(_BEGUN_WITHIN_S)  # until an interruption can be recorded
    if me.owns_folder:
        started_s = _begun(folder, raw, overrides, started_s)
    terminal = process.divert_stderr(folder.log(me.name))
    faulthandler.enable(terminal)  # prints a traceback on a crash in native code
    process.outlive_stdout(terminal)
    console = wide_unless_terminal(Console(highlight=False))

    def failed(error: BaseException) -> ExitCode:
        return _failed(error, folder, me, terminal, started_s)

    def give_up(error: PsrunError) -> None:
        code = error.exit_code
        try:
            code = failed(error)
        finally:
            process.leave(code)

    try:
        stop.defer(None)
        stop.raise_if_requested()
        note = _isolated(run)
        _watch_signals(stop, run, folder, me, started_s, undo)  # which starts a thread
        if note:
            print_folded(console, Text.assemble(("note:", "yellow"), f" {note}"))
        code = (
            table.ROLES[me.role](table.Process(run, me, folder, stop, started_s, console, terminal, give_up))
            or ExitCode.DONE
        )
    except BaseException as error:
        reason = stop.reason_of(error)
        stop.defer(_RECORDED_WITHIN_S)
        code = failed(reason)
        is_as_before = undo(code)
        _show_resume(run, folder, code, terminal, is_own=is_own, is_as_before=is_as_before)
        return code
    stop.defer(_RECORDED_WITHIN_S)
    if me.owns_folder and code == ExitCode.DONE:
        status = "interrupted" if folder.is_paused else "completed"
        folder.emit("ended", status=status, exit_code=code, wall_s=round(time.time() - started_s, 3))
    elif code != ExitCode.DONE:  # the chief has recorded the result
        recorded = folder.stored().get("error") or {"message": f"exited with code {int(code)}"}
        _print_error(terminal, recorded["message"], code, folder.path / "logs")
        is_as_before = undo(code)
        _show_resume(run, folder, code, terminal, is_own=is_own, is_as_before=is_as_before)
    return code


def _loaded(raw: Mapping[str, Any], overrides: list[str]) -> RunConfig:
    """The run, after importing the user's modules. Raises ConfigError."""
    try:
        return parse.load(raw)
    except ConfigError as error:
        problems = [advice.with_removal(each, overrides) for each in error.problems]
        if problems == error.problems:
            raise
        raise ConfigError(problems) from error.__cause__


def _parsed(
    raw: Mapping[str, Any], path: Path, overrides: list[str], started_s: float, stop: Stop
) -> tuple[RunConfig, Identity]:
    """The run, and the task of this process. Raises ConfigError and Interrupted, once they are recorded."""
    try:
        run = _loaded(raw, overrides)
        me = table.identify(run, os.environ)
        stop.raise_if_requested()
    except (ConfigError, Interrupted) as error:
        reason = stop.reason_of(error)
        if not RunFolder(path).has_run:
            with contextlib.suppress(ConfigError):  # another task of the run may have recorded the same error first
                _begun(RunFolder.create(path, raw=raw), raw, overrides, started_s)
                record_failure(RunFolder.resume(path), reason, "chief-0", started_s)
        raise reason from None
    return run, me


def _show_task(me: Identity, path: Path) -> None:
    """Names this process by its task if a supervisor started it; a user recognizes others by their command."""
    if process.SUPERVISOR_PID in os.environ:
        process.set_title(f"{me.name} {path}")


def _watch_signals(stop: Stop, run: RunConfig, folder: RunFolder, me: Identity, started_s: float, undo: Undo) -> None:
    """Lets `stop` end this process, also where its main thread waits, and record that."""

    def record(interrupted: Interrupted) -> None:
        if not undo(interrupted.exit_code, at_once=True):
            folder.emit_at_once("ended", **_outcome(interrupted, me.name, started_s))

    stop.install(record if me.owns_folder else None)
    if run.cluster.exit_signal is not None and process.SUPERVISOR_PID in os.environ:
        stop.heed(run.cluster.exit_signal)


def _place(run: RunConfig, me: Identity, path: Path) -> Path:
    """The folder of this process, for a run in `path`."""
    if run.mode != "train" and me.has_peers and process.SUPERVISOR_PID not in os.environ:
        return RunFolder(path).of_cluster(run.mode)
    return path


@dataclass(frozen=True)
class Undo:
    """Restores a run that could not be resumed, as if nobody had tried.

    Attributes:
      folder: of the run; None if this process resumes none.
      result: run.json before it was resumed.
      was_completed: whether its training was completed.
      restore: restores the configuration and what ended the training early.
    """

    folder: RunFolder | None = None
    result: Mapping[str, Any] = field(default_factory=dict)
    was_completed: bool = False
    restore: Callable[[], None] = lambda: None

    @classmethod
    def of(cls, run: RunConfig, me: Identity, path: Path) -> Undo:
        """Call before anything in the folder changes."""
        if run.resume is None or not me.owns_folder or process.SUPERVISOR_PID in os.environ:
            return cls()
        folder = RunFolder(path)
        result = folder.stored()
        was_completed = run.mode == "train" and result.get("status") == "completed"
        return cls(folder, result, was_completed, folder.snapshot([CONFIG, END_EARLY]))

    def __call__(self, code: ExitCode, *, at_once: bool = False) -> bool:
        """Restores the run if the configuration was refused, or if it was completed and got no further step.

        Args:
          code: of this process, which has failed.
          at_once: whether this process is about to end, perhaps within a signal handler.

        Returns:
          Whether it was restored.
        """
        if self.folder is None:
            return False
        if code != ExitCode.USAGE and not self._is_still_complete():
            return False
        self.restore()
        self.folder.revert(self.result, at_once=at_once)
        return True

    def _is_still_complete(self) -> bool:
        if self.folder is None or not self.was_completed:
            return False
        now = self.folder.stored()
        return all(now.get(name) == self.result.get(name) for name in ("steps", "checkpoints"))


def _folder(run: RunConfig, me: Identity, path: Path) -> RunFolder:
    if not me.owns_folder:
        return RunFolder.open(path)
    if process.SUPERVISOR_PID not in os.environ:
        if me.patience_s:
            task_files.claim(path, me.name, me.start)
        RunFolder.lock(path, within_s=me.patience_s, resumes=run.resume is not None)
    if (me.may_find_run or run.resume) and RunFolder(path).has_run:
        if process.SUPERVISOR_PID not in os.environ and task_files.still_beats(path, CHIEF, within_s=me.patience_s):
            raise ConfigError([in_use(path, resumes=run.resume is not None)])
        folder = RunFolder.resume(path, completed=run.resume is not None, raw=run.raw)
        write_config(path, run.raw)
        return folder
    if run.resume and run.mode == "train":
        message = f"{path} no longer holds a run: it was removed after this start was asked for"
        raise ConfigError([Problem("resume", message)])
    return RunFolder.create(path, raw=run.raw)


def _begun(folder: RunFolder, raw: Mapping[str, Any], overrides: list[str], started_s: float) -> float:
    """Records the start of this process; returns the start of the run's clock, perhaps set by an earlier process."""
    supervised = process.SUPERVISOR_PID in os.environ
    # A resumed run counts the time of its processes, without the pauses.
    began_s = folder.stored()["started_s"] if supervised else started_s - folder.elapsed_s()
    here: dict[str, Any] = {} if supervised else {"process": _process_of(raw)}
    name = files.as_mapping(raw.get("run")).get("name")
    if name is not None and not supervised:
        run_folder.write_name(folder.path, str(name))
    folder.reserve_disk_space()
    wall_s = round(time.time() - began_s, 3)
    folder.emit("begun", wall_s=wall_s, mode=raw.get("mode"), started_s=began_s, **here, overrides=overrides)
    return began_s


def _process_of(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The identity of this process, with the engine's job that runs its tasks."""
    kind = files.as_mapping(raw.get("cluster")).get("kind")
    return {**process.this_process(), **choices.cluster_of_kind(kind).job(os.environ)}


def _isolated(run: RunConfig) -> str | None:
    """Isolates this process and its child processes from the network if configured; returns a note if it cannot."""
    isolate = run.cluster.isolate
    if run.cluster.spans_machines:
        return None  # the tasks must reach each other
    if isolate is False or not run.uses_cluster or process.SUPERVISOR_PID in os.environ:
        return None
    if isolate == "auto" and run.needs_network:
        reason: str | None = "the data or the checkpoints are elsewhere"
    else:
        reason = process.isolate()
    if reason is None:
        return None
    if isolate is True:
        raise PsrunError(f"cluster.isolate=true is not possible here: {reason}")
    return f"TensorFlow's servers listen on all interfaces of this machine, without authentication ({reason})"


def _failed(error: BaseException, folder: RunFolder, me: Identity, terminal: TextIO, started_s: float) -> ExitCode:
    if isinstance(error, KeyboardInterrupt):
        error = Interrupted(signal.SIGINT)
    log = folder.log(me.name)
    gone = "" if folder.path.exists() else f"the run folder {folder.path} was deleted under the run; "
    with contextlib.suppress(OSError), log.open("a", encoding="utf-8") as file:
        traceback.print_exception(error, file=file)
    is_own = isinstance(error, (PsrunError, Interrupted))
    code = _code_of(error)
    text = gone
    if not is_own:
        text += f"{type(error).__name__}: "
    text += str(error)
    if me.owns_folder:
        try:
            record_failure(folder, error, me.name, started_s)
        except OSError as disk:
            if not isinstance(error, RunFolderError):  # that error reports it itself
                text += f"\n(and run.json could not be written: {disk})"
    _print_error(terminal, text, code, log)
    return code


def _code_of(error: BaseException) -> ExitCode:
    if isinstance(error, (PsrunError, Interrupted)):
        return error.exit_code
    return ExitCode.FAILED


def _print_error(terminal: TextIO, text: str, code: ExitCode, log: Path) -> None:
    where = "" if code == ExitCode.USAGE else f"\n(log: {run_state.shown_path(log)})"
    Console(file=terminal, highlight=False, soft_wrap=True).print(f"psrun: {text}{where}", style="red", markup=False)


def _show_resume(
    run: RunConfig, folder: RunFolder, code: ExitCode, terminal: TextIO, *, is_own: bool, is_as_before: bool
) -> None:
    """Prints how a training goes on that a signal has interrupted, or that could not be continued.

    Args:
      is_as_before: whether the run is restored, as `Undo` does.
    """
    if not is_own or run.mode != "train" or code == ExitCode.USAGE:
        return
    text = ""
    is_started_again = code == ExitCode.RESTART and run.cluster.spans_machines  # by its engine
    if is_as_before:
        text = "the run is completed, as it was before"
    elif folder.stored().get("status") == "interrupted" and folder.checkpoints.exists() and not is_started_again:
        text = f"to resume: {run_state.resume_command(folder.path)}"
    if text:
        Console(file=terminal, highlight=False, soft_wrap=True).print(text, markup=False)


def record_failure(folder: RunFolder, error: BaseException, task: str, started_s: float) -> None:
    """Records the error that has ended a run in run.json. Raises OSError."""
    folder.emit("ended", **_outcome(error, task, started_s))


def _outcome(error: BaseException, task: str, started_s: float) -> dict[str, Any]:
    """The keys of run.json for a run that ended with an error."""
    code = _code_of(error)
    recorded = {"type": type(error).__name__, "message": str(error), "task": getattr(error, "task", None) or task}
    status = "interrupted" if isinstance(error, Interrupted) else "failed"
    return {"status": status, "exit_code": code, "error": recorded, "wall_s": round(time.time() - started_s, 3)}


if __name__ == "__main__":
    run_prepared(Path(sys.argv[1]))
