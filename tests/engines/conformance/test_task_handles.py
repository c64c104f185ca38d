"""What a supervisor may rely on with every kind of task: on this machine, in a Slurm step, and in the simulation."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from simulated_cluster import Schedule, World

from psrun.config.topology import Task
from psrun.engines.slurm.allocation import EXIT_SIGNAL
from psrun.engines.slurm.steps import StepTask
from psrun.launch.backend import TaskHandle, TaskProcess
from psrun.results import task_files

WORKER = Task("worker", 0)
BOUND_S = 60.0
SERVING = ["sleep", "300"]


class Here:
    """A Slurm step of one task, whose process is a child of this one."""

    def __init__(self, handle: StepTask) -> None:
        self._handle = handle
        self._process: subprocess.Popen[bytes] | None = None
        handle.enter(self)  # type: ignore[arg-type]

    def tell(self, *, task: str, start: int = 0, signal: int = 0) -> None:
        if start:
            self._process = subprocess.Popen(SERVING, start_new_session=True)
            threading.Thread(target=self._report, args=(self._process, start), daemon=True).start()
        elif self._process is not None:
            self._process.send_signal(signal)

    def _report(self, process: subprocess.Popen[bytes], number: int) -> None:
        report: dict[str, Any] = {"number": number, "pid": process.pid}
        self._handle.hear({**report, "code": None})
        self._handle.hear({**report, "code": process.wait()})


def local(folder: Path) -> tuple[TaskHandle, Callable[[], None]]:
    def start(folder: Path, environment: Any, log: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen(SERVING, start_new_session=True)

    return TaskProcess(WORKER, {}, folder, start), lambda: time.sleep(0.01)


def slurm(folder: Path) -> tuple[TaskHandle, Callable[[], None]]:
    handle = StepTask(WORKER, folder)
    Here(handle)
    return handle, lambda: time.sleep(0.01)


def simulated(folder: Path) -> tuple[TaskHandle, Callable[[], None]]:
    world = World(Schedule("two workers"))
    world.chief.start()
    return world.tasks[WORKER], lambda: world.wait(0.1)


class Handled:
    """A handle, and how its time passes."""

    def __init__(self, handle: TaskHandle, pause: Callable[[], None]) -> None:
        self.handle = handle
        self._pause = pause

    def until(self, condition: Callable[[], Any]) -> None:
        deadline_s = time.monotonic() + BOUND_S
        while not condition():
            assert time.monotonic() < deadline_s
            self._pause()


@pytest.fixture(params=[local, slurm, simulated], ids=lambda make: make.__name__)
def handled(request, tmp_path) -> Iterator[Handled]:
    handled = Handled(*request.param(tmp_path))
    yield handled
    handled.handle.kill()


def test_a_task_that_was_not_started(handled):
    handle = handled.handle
    handle.send(signal.SIGTERM)
    handle.kill()
    assert (handle.started, handle.running, handle.code, handle.heartbeat()) == (False, False, None, None)


def test_a_task_is_killed_and_started_again(handled):
    handle = handled.handle
    handle.start()
    assert (handle.started, handle.code, handle.start_at_s) == (True, None, None)
    handled.until(lambda: handle.pid is not None)
    first = handle.pid
    handle.kill()
    assert (handle.running, handle.code, handle.how_it_ended) == (False, -signal.SIGKILL, "was killed by SIGKILL")
    handle.kill()
    handle.start_at_s = 1.0
    handle.start()
    assert (handle.running, handle.code, handle.start_at_s) == (True, None, None)
    handled.until(lambda: handle.pid not in (None, first))


def test_a_task_that_is_asked_to_exit(handled):
    handle = handled.handle
    handle.start()
    handled.until(lambda: handle.pid is not None)
    handle.send(signal.SIGTERM)
    handled.until(lambda: not handle.running)
    assert handle.code in (0, -signal.SIGTERM, -EXIT_SIGNAL)
    handle.send(signal.SIGKILL)
    assert handle.code != -signal.SIGKILL


@pytest.mark.parametrize("make", [local, slurm])
def test_a_heartbeat_is_that_of_the_current_process(make, tmp_path):
    handled = Handled(*make(tmp_path))
    handle = handled.handle
    handle.start()
    handled.until(lambda: handle.pid is not None)
    file = task_files.path(tmp_path, WORKER)
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"pid": handle.pid, "at_s": 1.0, "state": "serving"}))
    assert handle.heartbeat().state == "serving"
    handle.kill()
    beat = file.read_text()
    handle.start()
    assert not file.exists()
    file.write_text(beat)  # of the process before, which was on its way to its end
    assert handle.heartbeat() is None
    handle.kill()
