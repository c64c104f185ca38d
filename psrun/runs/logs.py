"""`psrun logs RUN [TASK]`: the log of a task of a run; with --follow until the run has ended.

Without --all it leaves out the lines that TensorFlow writes in every run.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rich.console import Console

from psrun.config.schema import did_you_mean
from psrun.config.topology import CHIEF, Task
from psrun.errors import ConfigError, ExitCode, PsrunError
from psrun.results import run_state
from psrun.results.run_folder import RunFolder
from psrun.results.run_state import natural
from psrun.runs.sweeps.sweep import LOG, RECORD

_EVERY_S = 0.2
_LOOK_EVERY_S = 1.0  # whether the run has ended
_PART_BYTES = 2**16  # that are read at once
_BEGUN_WITHIN_S = 60.0  # a shared disk shows new files late; an engine starts tasks late


@dataclass(frozen=True)
class Usual:
    """A message of TensorFlow's that each run has, and that says nothing about the run.

    Attributes:
      why: why TensorFlow writes it.
      begins: a part of its first line.
      goes_on: its other lines, which follow at once, up to an empty one; None: it has one line.
    """

    why: str
    begins: re.Pattern[bytes]
    goes_on: re.Pattern[bytes] | None = None


# Of TensorFlow 2.21. A message that names a fault of a run, or that only some runs have, does not belong here.
USUAL = (
    Usual("logging begins before it is set up", re.compile(rb"^WARNING: All log messages before absl::InitializeLog")),
    Usual("oneDNN is part of the build", re.compile(rb"\] oneDNN custom operations are on\.")),
    Usual(
        "the build has the instructions that most processors have",
        re.compile(rb"\] This TensorFlow binary is optimized to use available CPU instructions"),
        re.compile(rb"To enable the following instructions:"),
    ),
    Usual("a machine without GPUs", re.compile(rb"\] Could not find cuda drivers on your machine")),
    Usual("a machine without GPUs", re.compile(rb"\] failed call to cuInit: .*UNKNOWN ERROR \(303\)")),
    Usual("a server has started", re.compile(rb"grpc_server_lib\.cc:\d+\] Started server with target:")),
    Usual("the chief has connected", re.compile(rb"eager_service_impl\.cc:\d+\] Creating sync eager service context")),
    Usual(
        "the options of the connection",
        re.compile(rb"eager_service_impl\.cc:\d+\] SessionOptions:"),
        re.compile(rb"\s*$|\s*[a-z_]+ \{\s*$|\s*\}\s*$|\s*[a-z_]+: (\"[^\"]*\"|\w+)\s*$"),
    ),
)


def main(arguments: list[str]) -> ExitCode:
    """Runs `psrun logs ARGUMENTS`.

    Raises:
      ConfigError: there is no such run, or the run has no log of the task.
      PsrunError: the log cannot be read.
      KeyboardInterrupt: Ctrl-C, or SIGTERM, which end only the view.
      SystemExit: from argparse, for --help and for invalid arguments.
    """
    options = _parser().parse_args(arguments)
    folder = run_state.resolve_run(options.run)
    names = _tasks(folder)
    if options.tasks:
        Console(highlight=False).print("\n".join(names) or "no logs yet", markup=False, soft_wrap=True)
        return ExitCode.DONE
    name = _named(options.task, names, folder, follow=options.follow)
    if options.follow:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        shown = _Shown(everything=options.all)
        _show(folder, RunFolder(folder).log(name), shown, follow=options.follow)
    except KeyboardInterrupt:
        message = "stopped showing the log; the run continues" if options.follow else "stopped showing the log"
        Console(stderr=True, highlight=False).print(message, style="dim")
        raise
    if shown.num_hidden:
        text = f"{shown.num_hidden:,} lines that TensorFlow writes in every run are left out; --all shows them"
        Console(stderr=True, highlight=False).print(text, style="dim", soft_wrap=True)
    state = run_state.look(folder)
    command = run_state.resume_command(folder)
    if state.gone and command:
        text = f"the run is {run_state.GONE}: {state.gone}; to resume: {command}"
        Console(stderr=True, highlight=False).print(text, markup=False, soft_wrap=True)
    return ExitCode.DONE


def _parser() -> argparse.ArgumentParser:
    about = __doc__.partition("\n")[0].partition(": ")[2]
    parser = argparse.ArgumentParser(prog="psrun logs", description=f"Shows {about}")
    parser.add_argument("run", metavar="RUN", help=run_state.WORD_HELP)
    parser.add_argument("task", nargs="?", metavar="TASK", help=f"such as worker-1 (default {CHIEF})")
    parser.add_argument("-f", "--follow", action="store_true", help="show what is added until the run has ended")
    parser.add_argument("--all", action="store_true", help="show also what TensorFlow writes in every run")
    parser.add_argument("--tasks", action="store_true", help="list the tasks that have logs instead")
    return parser


def _tasks(folder: Path) -> list[str]:
    """The names of the logs in a run folder, those of tasks first."""
    try:
        names = [name.removesuffix(".log") for name in os.listdir(folder / "logs") if name.endswith(".log")]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise PsrunError(f"{folder / 'logs'} cannot be read: {error.strerror or error}") from error
    return sorted(names, key=lambda name: (not name.rpartition("-")[2].isdigit(), natural(name)))


def _named(task: str | None, names: list[str], folder: Path, *, follow: bool) -> str:
    """The name of the log to show. Raises ConfigError if there is none of the task."""
    if not names and os.path.exists(folder / RECORD):
        raise ConfigError(f"{folder} is a sweep: name one of its jobs, such as {folder / '0'}")
    if not names and not follow:
        raise ConfigError(f"{folder} has no logs yet; --follow waits for them")
    if task is None:
        return _default(names, folder, follow=follow)
    of_job = [name for name in names if name.rpartition("-")[0] == task]
    if task in names or len(of_job) == 1:
        return task if task in names else of_job[0]
    if of_job:
        raise ConfigError(f"there are {len(of_job)} tasks '{task}': name one of {', '.join(of_job)}")
    if follow and not names and Task.named(task) is not None:
        return task
    raise ConfigError(f"{folder} has no log of a task '{task}'.{did_you_mean(task, names)}")


def _default(names: list[str], folder: Path, *, follow: bool) -> str:
    """The name of the log to show where no task is named. Raises ConfigError if there are only logs of others."""
    for name in (str(CHIEF), LOG):
        if name in names:
            return name
    if len(names) == 1:
        return names[0]
    if follow:
        return str(CHIEF)
    raise ConfigError(f"{folder} has no log of the chief yet; name one of {', '.join(names)}")


class _Shown:
    """What is shown of a log on standard output.

    Args:
      everything: whether to show also what TensorFlow writes in every run.

    Attributes:
      num_hidden: lines that were left out.
    """

    def __init__(self, *, everything: bool) -> None:
        self.num_hidden = 0
        self._everything = everything
        self._goes_on: re.Pattern[bytes] | None = None  # of the message that is being left out
        self._unfinished = b""

    def add(self, text: bytes) -> None:
        """Shows a part of the log; a line once it is complete."""
        if self._everything:
            sys.stdout.buffer.write(text)
            return
        *lines, self._unfinished = (self._unfinished + text).split(b"\n")
        for line in lines:
            if self._is_usual(line):
                self.num_hidden += 1
            else:
                sys.stdout.buffer.write(line + b"\n")

    def end(self) -> None:
        """Shows a last line that is not complete."""
        sys.stdout.buffer.write(self._unfinished)
        sys.stdout.buffer.flush()
        self._unfinished = b""

    def _is_usual(self, line: bytes) -> bool:
        if self._goes_on is not None and self._goes_on.match(line):
            if not line.strip():  # what follows may look like another line of the message
                self._goes_on = None
            return True
        self._goes_on = None
        for usual in USUAL:
            if usual.begins.search(line):
                self._goes_on = usual.goes_on
                return True
        return False


def _show(folder: Path, log: Path, shown: _Shown, *, follow: bool) -> None:
    """Copies a log to standard output; with `follow` also what is added until the run is over.

    Raises:
      PsrunError: it cannot be read, or is not there in time.
    """
    looked_s = begun_s = time.monotonic()
    file = None
    try:
        while True:
            is_over = not follow or _is_over(folder)  # before the file: once the run has ended, all of it is there
            file = file or _opened(log)
            if file is not None:
                _copy(file, shown)
            if is_over:
                if file is None:
                    raise PsrunError(f"the run has ended without a log {log}")
                return
            if file is None and time.monotonic() - begun_s > _BEGUN_WITHIN_S:
                raise PsrunError(
                    f"there is no {log} after {_BEGUN_WITHIN_S:.0f} s; psrun logs --tasks lists the others"
                )
            while time.monotonic() - looked_s < _LOOK_EVERY_S:
                time.sleep(_EVERY_S)
                if file is not None:
                    _copy(file, shown)
            looked_s = time.monotonic()
    finally:
        shown.end()
        if file is not None:
            file.close()


def _is_over(folder: Path) -> bool:
    """Whether nothing is added any more: the run has ended, or its folder was removed."""
    if not folder.exists():
        return True
    state = run_state.look(folder)
    return state.ended or bool(state.gone)


def _opened(log: Path) -> BinaryIO | None:
    """The log; None while it does not exist. Raises PsrunError if it cannot be read."""
    try:
        return log.open("rb")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PsrunError(f"{log} cannot be read: {error.strerror or error}") from error


def _copy(file: BinaryIO, shown: _Shown) -> None:
    """Shows what was added to a file since the last call; of a file that is shorter than before, all."""
    if os.fstat(file.fileno()).st_size < file.tell():
        file.seek(0)
    while part := file.read(_PART_BYTES):
        shown.add(part)
    sys.stdout.buffer.flush()
