"""The agents of a Slurm step, without Slurm and without tasks: how they react to each other."""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from support import raw_config, run_config

from psrun.config.topology import CHIEF, Task
from psrun.errors import BudgetSpentError, ClusterError, ConfigError, ExitCode, TaskLostError
from psrun.launch.slurm import chief_agent, commands, join, task_agent, task_identity
from psrun.launch.slurm.rendezvous import ClusterPlan, Rendezvous, TaskStatus
from psrun.process import Stop
from psrun.results.run_folder import RunFolder
from psrun.roles import run_process

PS, WORKER = Task("ps", 0), Task("worker", 0)
STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "3", "SLURMD_NODENAME": "n0"}
TASKS = ["cluster.num_ps=1", "cluster.num_workers=1", "evaluation=none"]


def step_of(**changes: str) -> task_identity.Step:
    return task_identity.from_environment({**STEP, **changes}, command="srun")


class Scripted:
    """A managed task with scripted results: each check returns the next of `looks`, the last one repeatedly."""

    def __init__(self, looks: list[Callable[[], str | None]], ends: Callable[[Any], None]) -> None:
        self._looks, self._ends, self.num_starts, self.backoff_s = looks, ends, 0, 0.0
        self._num_looks, self.silent_s = 0, 0.0
        self.process = SimpleNamespace(
            task=CHIEF, code=None, restarts=0, running=True, start_at_s=None,
            kill=lambda: None, heartbeat=lambda: None, usage=lambda: (None, None),
        )  # fmt: skip

    def start(self) -> None:
        self.num_starts += 1

    def fault(self, others: Sequence[Any] = ()) -> str | None:
        self._num_looks += 1
        assert self._num_looks < 500, "the run goes on"
        return (self._looks.pop(0) if len(self._looks) > 1 else self._looks[0])()

    def waited(self) -> None:
        pass

    def lost(self) -> float:
        self.process.restarts += 1
        return time.monotonic() + self.backoff_s

    def end(self, *, within_s: float, meanwhile: Callable[[], None] = lambda: None) -> None:
        meanwhile()
        self._ends(self.process)


class Supervised:
    """The chief's agent with a parameter server and a worker whose agents report what the test writes."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.requeued, self.managed = RunFolder(folder), [], Scripted([lambda: None], lambda process: None)
        self.rendezvous = {task: Rendezvous(folder, step_of(), task) for task in (PS, WORKER)}
        self.statuses = {task: TaskStatus("h:1", "n1", 0.0, attempt=99) for task in (PS, WORKER)}
        (folder / "logs").mkdir()
        for task in self.rendezvous:
            self.report(task)
        for name, value in (("_ROUND_S", 0.01), ("_OTHERS_END_WITHIN_S", 0.0)):
            monkeypatch.setattr(chief_agent, name, value)
        monkeypatch.setattr(chief_agent, "ManagedTask", lambda *arguments: self.managed)
        monkeypatch.setattr(join, "gather", lambda *arguments: {})
        monkeypatch.setattr(commands, "requeue", self.requeued.append)

    def report(self, task: Task, **values: Any) -> None:
        self.statuses[task] = self.statuses[task].but(**values)
        self.rendezvous[task].write(self.statuses[task])

    def supervise(self, *overrides: str, stop: Stop | None = None, looks: list[Callable[[], str | None]]) -> ExitCode:
        self.managed._looks = looks
        agent = chief_agent.ChiefAgent(
            run_config("cluster=slurm", *TASKS, *overrides), self.folder, step_of(), Console(file=io.StringIO()), 0.0
        )
        self.agent, code = agent, ExitCode.FAILED
        try:
            code = agent.supervise(stop or Stop())
            return code
        finally:
            agent.close(code)


@pytest.fixture
def agents(tmp_path, monkeypatch) -> Supervised:
    return Supervised(tmp_path, monkeypatch)


def dies() -> str:
    return "was killed"


def lives() -> None:
    return None


def test_no_restart_where_there_is_no_budget_for_one(agents):
    with pytest.raises(BudgetSpentError, match="chief-0 was killed; all 0 restarts"):
        agents.supervise("cluster.restart.budget=0", looks=[dies])
    assert agents.managed.num_starts == 1


def test_each_failure_takes_one_of_the_budget(agents):
    """A parameter server takes the chief with it, and that is one failure."""

    def ps_dies() -> None:
        agents.report(PS, restarts=1, cause="was killed")

    def worker_dies() -> None:
        agents.report(WORKER, restarts=agents.statuses[WORKER].restarts + 1, cause="was killed")

    looks = [ps_dies, lives, lives, worker_dies, lives, lives, dies, lives]
    with pytest.raises(BudgetSpentError, match="chief-0 was killed; all 2 restarts"):
        agents.supervise("cluster.restart.budget=2", looks=looks)
    assert agents.managed.num_starts == 2


def test_a_server_that_was_lost_with_the_chief_starts_again_once(agents):
    """Its agent has started it for the new attempt before the chief's agent reads of the loss."""

    def both_are_back() -> None:
        agents.report(PS, restarts=1, cause="")

    def is_done() -> None:
        agents.managed.process.code = 0

    assert agents.supervise(looks=[dies, both_are_back, lives, lives, is_done, lives]) == ExitCode.DONE
    assert agents.managed.num_starts == 2


def test_a_chief_that_waits_to_be_started_again_takes_no_node_for_lost(agents):
    agents.managed.backoff_s = 1.5

    def is_done() -> None:
        agents.managed.process.code = 0

    assert agents.supervise("cluster.connect_timeout_s=1", looks=[dies, is_done, lives]) == ExitCode.DONE


def test_a_chief_agent_that_was_given_up_leaves_the_next_start_alone(agents, tmp_path):
    again = Rendezvous(tmp_path, step_of(SLURM_RESTART_COUNT="1"), PS)

    def job_starts_again() -> None:
        again.write(TaskStatus("h:2", "n2", 0.0))

    with pytest.raises(TaskLostError, match="the job was restarted without n0"):
        agents.supervise(looks=[lives, job_starts_again, lives])
    assert agents.requeued == []
    assert again.read(PS) == TaskStatus("h:2", "n2", 0.0)
    assert not agents.agent._rendezvous.path.exists()


def test_at_its_end_a_run_leaves_the_tasks_of_the_next_job_alone(agents, tmp_path):
    """They may be there already: Slurm starts the next job while the agents of a cancelled one still end."""
    shared = tmp_path / ".tasks"
    (shared / "chief-0.json").write_text("{}")
    later = Rendezvous(tmp_path, step_of(SLURM_JOB_ID="8"), WORKER)

    def done() -> None:
        later.write(agents.statuses[WORKER])
        agents.managed.process.code = ExitCode.DONE

    assert agents.supervise(looks=[done]) == ExitCode.DONE
    assert [path.name for path in shared.iterdir()] == [later.path.name]
    assert later.read(WORKER) == agents.statuses[WORKER]


def test_a_task_reports_itself_though_the_end_of_another_job_removes_the_empty_folder(tmp_path, monkeypatch):
    mkdir, removed = Path.mkdir, []

    def lost(path: Path, *arguments: Any, **options: Any) -> None:
        mkdir(path, *arguments, **options)
        if path.name.startswith("slurm-") and not removed:
            path.rmdir()
            path.parent.rmdir()
            removed.append(path)

    monkeypatch.setattr(Path, "mkdir", lost)
    rendezvous, status = Rendezvous(tmp_path, step_of(), WORKER), TaskStatus("h:1", "n1", 0.0)
    rendezvous.write(status)
    assert rendezvous.read(WORKER) == status


@pytest.mark.parametrize(
    ("code", "comes_to", "requeued"),
    [(0, ExitCode.DONE, []), (1, ExitCode.FAILED, []), (175, ExitCode.RESTART, ["7"]), (-9, ExitCode.RESTART, ["7"])],
)
def test_before_the_time_limit_the_job_is_requeued_and_the_run_resumes(agents, code, comes_to, requeued):
    agents.managed._ends = lambda process: setattr(process, "code", code)

    def limit_is_near() -> None:
        agents.agent.warn()

    assert agents.supervise(looks=[lives, limit_is_near]) == comes_to
    assert agents.requeued == requeued


def test_the_chief_agent_writes_heartbeats_while_the_chief_saves(agents, monkeypatch):
    monkeypatch.setattr("psrun.launch.slurm.rendezvous._TOUCH_EVERY_S", 0.0)
    touched: list[float] = []
    stop = Stop()

    def saves(process: Any) -> None:
        touched.append(agents.agent._rendezvous.silent_s(CHIEF))
        agents.folder.record("ended", status="interrupted", exit_code=175)
        process.code = 175

    def scancel() -> None:
        agents.agent._rendezvous.write(TaskStatus("", "n0", 0.0))
        agents.agent._rendezvous.silent_s(CHIEF)
        time.sleep(0.2)
        stop.signum = signal.SIGTERM
        stop.requested.set()

    agents.managed._ends = saves
    assert agents.supervise(stop=stop, looks=[scancel]) == ExitCode.RESTART
    assert touched == [0.0]
    assert agents.requeued == []


def test_the_process_ends_though_what_it_would_end_is_gone(monkeypatch):
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    stop = Stop()
    stop.at_once = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        stop._end(signal.SIGTERM)
    assert codes == [175]


def test_each_task_reports_the_error_though_another_recorded_it_first(monkeypatch, tmp_path):
    """All tasks of a step are given the same configuration at the same time."""
    create = RunFolder.create

    def create_after_another(path: Path, *, raw: Any) -> RunFolder:
        create(path, raw=raw).record("ended", status="failed")
        return create(path, raw=raw)

    monkeypatch.setattr(RunFolder, "create", create_after_another)
    with pytest.raises(ConfigError) as raised:
        run_process.execute(raw_config("cluster=slurm", "cluster.num_ps=0"), tmp_path, [], started_s=0.0)
    assert [problem.key for problem in raised.value.problems] == ["cluster.num_ps"]


# -- the agent of a task


@pytest.mark.parametrize(("restarts", "longer_s"), [("0", 0.0), ("1", 1.0)])
def test_who_is_started_again_waits_as_long_as_the_chief_may_wait_for_the_folder(
    tmp_path, monkeypatch, restarts, longer_s
):
    monkeypatch.setattr(task_agent, "_CHIEF_AGENT_LONGER_S", 0.0)
    monkeypatch.setattr(task_identity, "_GIVEN_UP_S", 0.5)
    run = run_config("cluster=slurm", *TASKS, "cluster.connect_timeout_s=1")
    agent = task_agent.TaskAgent(run, RunFolder(tmp_path), step_of(SLURM_PROCID="1", SLURM_RESTART_COUNT=restarts), PS)
    began_s = time.monotonic()
    with pytest.raises(ClusterError, match="found no heartbeat of the chief"):
        agent.manage(Stop())
    agent.close()
    assert 1 + longer_s <= time.monotonic() - began_s < 2 + longer_s


def test_a_parameter_server_reports_its_restart_with_the_chief(tmp_path, monkeypatch):
    monkeypatch.setattr(task_agent, "_ROUND_S", 0.01)
    managed = Scripted([dies, lives], lambda process: None)
    monkeypatch.setattr(task_agent, "ManagedTask", lambda *arguments: managed)
    (tmp_path / "logs").mkdir()
    chief = Rendezvous(tmp_path, step_of(), CHIEF)
    chief.write(TaskStatus("", "n0", 0.0))
    chief.publish(ClusterPlan({}))
    agent = task_agent.TaskAgent(
        run_config("cluster=slurm", *TASKS), RunFolder(tmp_path), step_of(SLURM_PROCID="1"), PS
    )
    codes: list[ExitCode] = []
    managing = threading.Thread(target=lambda: codes.append(agent.manage(Stop())))
    managing.start()

    def card_when(condition: Callable[[TaskStatus], bool]) -> TaskStatus:
        deadline_s = time.monotonic() + 10
        while time.monotonic() < deadline_s:
            status = chief.read(PS)
            if status and condition(status):
                return status
            time.sleep(0.01)
        raise AssertionError(chief.read(PS))

    try:
        assert card_when(lambda status: status.restarts == 1).cause == "was killed"
        assert managed.num_starts == 1
        chief.publish(ClusterPlan({}, attempt=1))
        status = card_when(lambda status: status.attempt == 1)
        assert (status.restarts, status.cause) == (1, "")
    finally:
        chief.publish(ClusterPlan({}, attempt=1, over=0))
        managing.join(10)
    assert codes == [ExitCode.DONE]
    assert managed.num_starts == 2
