"""One run, from plain configuration values to an exit code, and what is told of how it went."""

from __future__ import annotations

import faulthandler
import importlib
import signal
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, TextIO

from rich.console import Console

from psrun import config, environment
from psrun.errors import ExitCode, Interrupted, PsrunError
from psrun.reporting.console import ConsoleSink
from psrun.reporting.run_folder import RunFolder


def execute(raw: Mapping[str, Any], path: Path, overrides: list[str], *, started_s: float) -> ExitCode:
    """Does what the configuration says in the run folder `path`. Every error ends up in run.json and as an exit code.

    Raises:
      ConfigError: there can be no run folder at `path`.
    """
    folder = RunFolder.create(path, raw=raw)
    folder.update(status="running", mode=raw.get("mode"), exit_code=None, error=None, overrides=overrides,
                  started_s=started_s)  # fmt: skip
    terminal = environment.divert_stderr(folder.log("chief-0"))
    faulthandler.enable(terminal)  # a crash in native code says where it was
    _obey_signals()
    try:
        _dispatch(config.load(raw), folder, started_s)
    except BaseException as error:
        return _failed(error, folder, terminal, started_s)
    folder.update(status="completed", exit_code=ExitCode.DONE, wall_s=round(time.time() - started_s, 3))
    return ExitCode.DONE


def _dispatch(run_config: config.RunConfig, folder: RunFolder, started_s: float) -> None:
    """The one place of deferred imports: what follows here imports TensorFlow."""
    console = Console(highlight=False)
    if run_config.mode == "plan":
        importlib.import_module("psrun.roles.planner").run(run_config, folder, console)
    else:
        role = importlib.import_module("psrun.roles.coordinator")
        role.run(run_config, folder, ConsoleSink(console), started_s=started_s)


def _obey_signals() -> None:
    """Makes SIGTERM end the run as Ctrl-C does."""

    def stop(signum: int, frame: Any) -> NoReturn:
        raise Interrupted(signum)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, stop)


def _failed(error: BaseException, folder: RunFolder, terminal: TextIO, started_s: float) -> ExitCode:
    log = folder.log("chief-0")
    if isinstance(error, KeyboardInterrupt):
        error = Interrupted(signal.SIGINT)
    with log.open("a", encoding="utf-8") as file:
        traceback.print_exception(error, file=file)
    known = isinstance(error, PsrunError)
    code = error.exit_code if isinstance(error, PsrunError) else ExitCode.FAILED
    text = str(error) if known else f"{type(error).__name__}: {error}"
    told = {"type": type(error).__name__, "message": str(error), "task": getattr(error, "task", None) or "chief-0"}
    status = "interrupted" if isinstance(error, Interrupted) else "failed"
    try:
        folder.update(status=status, exit_code=code, error=told, wall_s=round(time.time() - started_s, 3))
    except OSError as disk:
        text += f"\n(and run.json could not be written: {disk})"
    Console(file=terminal, highlight=False, soft_wrap=True).print(
        f"psrun: {text}" + ("" if code == ExitCode.USAGE else f"\n(log: {log})"), style="red", markup=False
    )
    return code
