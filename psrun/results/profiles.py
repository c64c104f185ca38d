"""Profiles of the tasks of a run: the chief asks for them by a file, and each task writes its own.

RUN/tensorboard/plugins/profile/NAME/TASK.xplane.pb     where TensorBoard looks for them
RUN/.tasks/profile                                      the request
RUN/.tasks/TASK.profile                                 the answer of a task
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from psrun import files
from psrun.config.topology import Task
from psrun.results import task_files
from psrun.tf_internals import profiler

_REQUEST = "profile"
_POLL_S = 0.02
RUNNING, WRITTEN = "running", "written"


def folder_of(run: Path, name: str) -> Path:
    """The folder of a profile; the profile plug-in of TensorBoard finds it."""
    return run / "tensorboard" / "plugins" / "profile" / name


class OwnProfile:
    """The profile of this process."""

    def __init__(self, run: Path, task: Task) -> None:
        self._run = run
        self._task = task
        self._name: str | None = None
        self._scratch = task_files.shared(run) / f"{task}-profile"

    @property
    def is_running(self) -> bool:
        return self._name is not None

    def start(self, name: str) -> None:
        """Starts the profile NAME. Raises what TensorFlow raises, and OSError."""
        shutil.rmtree(self._scratch, ignore_errors=True)  # of the process before this one
        profiler.start(self._scratch)
        self._name = name

    def stop(self) -> None:
        """Writes the profile, if it runs. Raises what TensorFlow raises, and OSError."""
        if self._name is not None:
            name, self._name = self._name, None
            profiler.stop(self._scratch, folder_of(self._run, name) / f"{self._task}.xplane.pb")


class ProfileFollower:
    """Profiles this process, a server, as the chief asks for it; call `look` repeatedly."""

    def __init__(self, run: Path, task: Task) -> None:
        self._profile = OwnProfile(run, task)
        self._shared = task_files.shared(run)
        self._task = task

    def look(self) -> None:
        try:
            request: Any = json.loads((self._shared / _REQUEST).read_text(encoding="utf-8"))
        except FileNotFoundError:
            if self._profile.is_running:  # the chief was restarted
                self._profile.stop()
            return
        except (OSError, ValueError):
            return
        if _answer(self._shared, self._task).get("request") == request:
            return
        state = RUNNING if request["runs"] else WRITTEN
        try:
            if request["runs"]:
                self._profile.start(request["name"])
            else:
                self._profile.stop()
        except Exception as error:  # of the profiler or of the disk: the task goes on without it
            state = f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            answer = {"request": request, "state": state}
            files.write_atomic(self._shared / f"{self._task}.{_REQUEST}", json.dumps(answer))


def ask(run: Path, name: str, *, runs: bool) -> None:
    """Asks the servers of the run to begin, or to end, the profile NAME. Raises OSError."""
    files.write_atomic(task_files.shared(run) / _REQUEST, json.dumps({"name": name, "runs": runs}))


def wait(
    run: Path, name: str, tasks: Collection[Task], *, runs: bool, within_s: float, on_wait: Callable[[], None]
) -> dict[Task, str]:
    """Waits for the answers of tasks to `ask`; returns those that did not do it, each with the reason.

    Args:
      on_wait: called repeatedly meanwhile.
    """
    shared = task_files.shared(run)
    request = {"name": name, "runs": runs}
    deadline_s = time.monotonic() + within_s
    waiting = set(tasks)
    failed: dict[Task, str] = {}
    while waiting and time.monotonic() < deadline_s:
        for task in sorted(waiting):
            answer = _answer(shared, task)
            if answer.get("request") == request:
                waiting.discard(task)
                if answer["state"] not in (RUNNING, WRITTEN):
                    failed[task] = answer["state"]
        if waiting:
            on_wait()
            time.sleep(_POLL_S)
    return {**failed, **{task: f"no answer in {within_s:.0f} s" for task in waiting}}


def forget(run: Path) -> None:
    """Removes the request and the answers of an earlier process."""
    shared = task_files.shared(run)
    for name in task_files.names(shared):
        if name == _REQUEST or name.endswith(f".{_REQUEST}"):
            (shared / name).unlink(missing_ok=True)


def _answer(shared: Path, task: Task) -> dict[str, Any]:
    try:
        answer: Any = json.loads((shared / f"{task}.{_REQUEST}").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return answer if isinstance(answer, dict) else {}
