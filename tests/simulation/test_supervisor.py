"""How the supervisor of a cluster handles the ends of its tasks; here they are processes that sleep."""

from __future__ import annotations

import io
import json
import subprocess
import time

import pytest
from rich.console import Console
from support import run_config

from psrun.config.run_config import RunConfig
from psrun.config.topology import CHIEF, DISPATCHER, Task
from psrun.errors import BudgetSpentError, ConfigError, ExitCode
from psrun.launch.backend import Backend, Launch, TaskPlan, TaskProcess
from psrun.launch.supervisor import Supervisor
from psrun.process import Stop
from psrun.results.events import Reporter
from psrun.results.run_folder import RunFolder
from psrun.results.task_files import Heartbeat

CHIEF_ENDS_AFTER_S, DISPATCHER_ENDS_AFTER_S, NEVER_S = 1.5, 0.2, 60.0


def supervisor_of(
    run: RunConfig, folder: RunFolder, tasks: dict[Task, TaskProcess], engine: type[Backend] = Backend
) -> Supervisor:
    reporter = Reporter([folder.journal], started_s=time.time())
    launch = Launch(run, TaskPlan.of(run), folder, Stop(), Console(file=io.StringIO()), reporter)
    return Supervisor(launch, engine(tasks, {}))


class Sleeping(TaskProcess):
    """A task that does nothing for a while, and then ends with 0."""

    def start(self) -> None:
        after_s = {CHIEF: CHIEF_ENDS_AFTER_S, DISPATCHER: DISPATCHER_ENDS_AFTER_S}.get(self.task, NEVER_S)
        self.process = subprocess.Popen(["sleep", str(after_s)], start_new_session=True)
        self.start_at_s = None


@pytest.mark.parametrize(("status", "restarts"), [("completed", False), ("running", True)])
def test_a_task_of_the_data_service_that_ends_before_the_chief(tmp_path, status, restarts):
    """It sees by itself that the run was completed, while the process of the chief is still on its way to its end."""
    run = run_config("cluster=local", "model=wide_deep", "data=features", "data.visitation=dynamic")
    folder = RunFolder.create(tmp_path / "run", raw={})
    folder.record("ended", status=status)
    tasks = {task: Sleeping(task, {}, folder.path) for task in TaskPlan.of(run).tasks()}
    supervisor = supervisor_of(run, folder, tasks)
    assert supervisor.run() == ExitCode.DONE
    assert (tasks[DISPATCHER].restarts > 0) == restarts
    assert bool(folder.metrics.exists() and folder.metrics.read_text()) == restarts


class Beating(Sleeping):
    """A task with a heartbeat; the chief removes its heartbeat half a second before it exits, as real ones do."""

    def start(self) -> None:
        super().start()
        self.began_s = time.monotonic()

    def heartbeat(self) -> Heartbeat | None:
        exits = self.task == CHIEF and time.monotonic() - self.began_s > CHIEF_ENDS_AFTER_S - 0.5
        return None if exits else Heartbeat(1, time.time(), "training")


def test_a_chief_that_exits_after_a_run_longer_than_the_limit_for_its_start_is_not_lost(tmp_path):
    run = run_config("cluster=local", "evaluation=none", "cluster.restart.start_timeout_s=1")
    folder = RunFolder.create(tmp_path / "run", raw={})
    tasks = {task: Beating(task, {}, folder.path) for task in TaskPlan.of(run).tasks()}
    supervisor = supervisor_of(run, folder, tasks)
    assert supervisor.run() == ExitCode.DONE
    assert {str(task.task): task.restarts for task in tasks.values() if task.restarts} == {}


class Losing(Sleeping):
    """The chief exits at first, since it has lost a worker that still runs, and trains after its restart."""

    def start(self) -> None:
        lost = self.task == CHIEF and not self.restarts
        self.process = subprocess.Popen(["sh", "-c", f"exit {ExitCode.RESTART:d}"] if lost else ["sleep", "1"])
        self.start_at_s = None


def test_a_chief_that_exits_because_of_a_lost_worker_reports_the_worker(tmp_path):
    run = run_config("cluster=multi_worker_mirrored", "trainer=fit", "evaluation=none")
    folder = RunFolder.create(tmp_path / "run", raw={})
    error = {"type": "TaskLostError", "message": "worker-0 was lost: no heartbeat", "task": "worker-0"}
    folder.record("ended", status="failed", exit_code=ExitCode.RESTART, error=error)
    tasks = {task: Losing(task, {}, folder.path) for task in TaskPlan.of(run).tasks()}
    supervisor = supervisor_of(run, folder, tasks)
    assert supervisor.run() == ExitCode.DONE
    (failure,) = [json.loads(line) for line in folder.metrics.read_text().splitlines() if '"failure"' in line]
    assert (failure["task"], failure["cause"]) == ("worker-0", error["message"])
    assert failure["restarted"] == ["worker-0", "chief-0"]


class Moving(Backend):
    """An engine on which the machine of each lost task is lost, too."""

    def must_move(self, tasks) -> bool:
        return True


class LostTwice(Sleeping):
    """The evaluator is lost at first; a worker is lost once all tasks have moved."""

    def start(self) -> None:
        is_lost = str(self.task) == ("worker-0" if self.restarts else "evaluator-0")
        end = "sleep 0.2; kill -9 $$" if is_lost else "sleep 5"
        self.process = subprocess.Popen(["sh", "-c", end], start_new_session=True)
        self.start_at_s = None


def test_an_evaluator_whose_machine_is_lost_uses_the_budget_as_all_tasks_move(tmp_path):
    run = run_config("cluster=local", "evaluation=sidecar", "cluster.restart.budget=1", "cluster.restart.backoff_s=0")
    folder = RunFolder.create(tmp_path / "run", raw={})
    tasks = {task: LostTwice(task, {}, folder.path) for task in TaskPlan.of(run).tasks()}
    with pytest.raises(BudgetSpentError, match="worker-0"):
        supervisor_of(run, folder, tasks, Moving).run()
    assert {task.restarts for task in tasks.values()} == {1}


class Counted(Sleeping):
    """A task that never ends by itself; the code of the chief is known from the given look on."""

    visible_from, looks, ends_with = 0, 0, ExitCode.DONE

    @property
    def code(self) -> int | None:
        self.looks += self.task == CHIEF
        if self.task == CHIEF and not self.restarts and self.looks > self.visible_from:
            return self.ends_with
        return super().code

    @property
    def running(self) -> bool:
        return self.code is None


@pytest.mark.parametrize("ends_with", [ExitCode.DONE, ExitCode.FAILED])
@pytest.mark.parametrize("visible_from", [2, 3, 6])
def test_a_chief_that_ends_between_two_looks_is_not_restarted(tmp_path, visible_from, ends_with):
    run = run_config("cluster=local", "evaluation=none", "cluster.restart.backoff_s=0")
    folder = RunFolder.create(tmp_path / "run", raw={})
    tasks = {task: Counted(task, {}, folder.path) for task in TaskPlan.of(run).tasks()}
    tasks[CHIEF].visible_from, tasks[CHIEF].ends_with = visible_from, ends_with
    supervisor = supervisor_of(run, folder, tasks)
    assert supervisor.run() == ends_with
    assert {str(task.task): task.restarts for task in tasks.values() if task.restarts} == {}


class Misconfigured(Sleeping):
    """The worker finds an error of the configuration, prints it as `run_process` does, and exits."""

    def start(self) -> None:
        super().start()
        if self.task.job == "worker":
            self.process.kill()
            self.process = subprocess.Popen(["sh", "-c", f"exit {ExitCode.USAGE:d}"])
            log = "Traceback: ...\npsrun: this process may open only 64 files\nraise the limit\n"
            RunFolder(self.folder).log(str(self.task)).write_text(log)


def test_an_error_that_no_restart_mends_ends_the_run_at_once(tmp_path):
    run = run_config("cluster=local", "cluster.num_workers=1", "evaluation=none")
    folder = RunFolder.create(tmp_path / "run", raw={})
    tasks = {task: Misconfigured(task, {}, folder.path) for task in TaskPlan.of(run).tasks()}
    supervisor = supervisor_of(run, folder, tasks)
    with pytest.raises(ConfigError) as raised:
        supervisor.run()
    assert str(raised.value) == "worker-0: this process may open only 64 files\nraise the limit"
    assert [task.restarts for task in tasks.values()] == [0] * len(tasks)
