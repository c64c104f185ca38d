"""The chief's watch over servers that nobody supervises, with servers whose answers the test sets."""

from __future__ import annotations

import time

import pytest

from psrun.cluster.probe import ServerStatus
from psrun.config import choices
from psrun.config.topology import Task, Topology
from psrun.errors import TaskLostError
from psrun.launch import unsupervised
from psrun.launch.losses import Recoveries, TrainingStatus, earlier_loss
from psrun.results.events import PENDING_LOSS, Reporter
from psrun.results.run_folder import Earlier
from psrun.results.task_files import Heartbeat

ADDRESSES = {Task("worker", 0): "w0:1", Task("worker", 1): "w1:1", Task("ps", 0): "p0:1", Task("chief", 0): "c:1"}


class Events:
    """A sink that remembers; `fails` makes it raise, as on a full disk."""

    def __init__(self):
        self.seen, self.fails, self.failed = [], False, 0

    def event(self, event):
        if self.fails:
            self.failed += 1
            raise OSError("no space left on device")
        self.seen.append((event.kind, event.data.get("task")))

    def progress(self, progress): ...

    def close(self): ...


class Watched:
    """A watch that looks a hundred times a second, with time limits to match."""

    def __init__(self, monkeypatch, **own_limits):
        monkeypatch.setattr(unsupervised, "_EVERY_S", 0.01)
        monkeypatch.setattr(unsupervised, "sever", lambda others: self.severed.append(others))
        monkeypatch.setattr(unsupervised, "peers", lambda address: {(address, 1)})
        limits = {"connect_timeout_s": 0.5, "chief_timeout_s": 1, "heartbeat_timeout_s": 0.1, "start_timeout_s": 60}
        limits |= {"progress_timeout_s": 0.4, "progress_factor": 1, "placement": "greedy"}
        limits |= own_limits
        self.silent, self.refused, self.started_again = set(), set(), {}
        self.severed, self.given_up = [], []
        self.sign, self.steps, self.goes_on, self.asked = "training", 0, True, 0
        self.held_up_s = 0.0
        self.events = Events()
        reporter = Reporter([self.events], started_s=0.0)
        recoveries = Recoveries(reporter)
        self.rows = recoveries.rows
        self.watch = unsupervised.Watch(
            choices.TfConfig("tf_config", **limits), Topology(ADDRESSES, Task("chief", 0)), reporter, recoveries,
            ask=self.ask, training=self.look, give_up=self.given_up.append,
        )  # fmt: skip
        self.watch.start()

    def ask(self, servers):
        self.asked += 1
        if self.held_up_s:
            time.sleep(self.held_up_s)
            self.held_up_s = 0.0
            return {task: ServerStatus(answers=False) for task in servers}
        return {task: self.status(address) for task, address in servers.items()}

    def status(self, address):
        refused = address in self.refused
        answers = not refused and address not in self.silent
        return ServerStatus(answers, refused, self.started_again.get(address, 0) if answers else None)

    def look(self):
        self.steps += self.goes_on
        return TrainingStatus(self.sign, self.steps, 0.01)

    def wait(self, condition):
        deadline_s = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < deadline_s, (self.events.seen, self.given_up)
            time.sleep(0.005)


@pytest.fixture
def watched(monkeypatch):
    subject = Watched(monkeypatch)
    yield subject
    subject.watch.stop()


def test_a_silent_worker_is_severed_once_and_taken_back(watched):
    watched.silent.add("w1:1")
    watched.wait(lambda: watched.severed)
    assert watched.severed == [{("w1:1", 1)}]
    watched.silent.clear()
    watched.wait(lambda: watched.rows)
    assert [row["task"] for row in watched.rows] == ["worker-1"]
    assert watched.events.seen == [("failure", "worker-1"), ("recovery", "worker-1")]
    assert (watched.severed, watched.given_up) == ([{("w1:1", 1)}], [])


@pytest.mark.parametrize(
    ("silent", "task", "message"),
    [({"p0:1"}, "ps-0", "has not answered at p0:1"), ({"w0:1", "w1:1"}, None, "no worker \\(worker-0, worker-1\\)")],
)
def test_without_a_ps_or_any_worker_the_run_ends(watched, silent, task, message):
    watched.silent |= silent
    watched.wait(lambda: watched.given_up)
    error = watched.given_up[0]
    assert isinstance(error, TaskLostError)
    assert error.task == task
    with pytest.raises(TaskLostError, match=message):
        raise error


@pytest.mark.parametrize("lost", [set(), {"w1:1"}])
def test_no_progress_ends_the_run_also_when_a_worker_is_lost_for_good(watched, lost):
    watched.silent |= lost
    watched.wait(lambda: len(watched.severed) == len(lost))
    watched.goes_on = False
    watched.wait(lambda: watched.given_up)
    assert "no progress: training at step" in str(watched.given_up[0])


def test_a_chief_that_was_stopped_and_continued_takes_nobody_for_lost(monkeypatch):
    monkeypatch.setattr(unsupervised, "_HELD_UP_S", 0.3)
    watched = Watched(monkeypatch)
    watched.wait(lambda: watched.asked > 2)
    watched.goes_on, watched.held_up_s = False, 1.0  # longer than each limit
    asked = watched.asked
    watched.wait(lambda: watched.asked > asked + 2)
    watched.watch.stop()
    assert (watched.events.seen, watched.severed, watched.given_up) == ([], [], [])


def test_the_watch_continues_when_nothing_can_be_written(watched):
    watched.events.fails = True
    watched.silent.add("w1:1")
    watched.wait(lambda: watched.events.failed > 3)
    watched.events.fails = False
    watched.wait(lambda: watched.severed)
    assert watched.given_up == []


def test_a_worker_that_ends_is_a_failure_at_once_and_taken_back(watched):
    watched.wait(lambda: watched.asked > 2)
    watched.refused.add("w1:1")
    watched.wait(lambda: watched.events.seen)
    watched.started_again["w1:1"] = 1
    watched.refused.clear()
    watched.wait(lambda: watched.rows)
    assert watched.events.seen == [("failure", "worker-1"), ("recovery", "worker-1")]
    assert watched.rows[0]["cause"] == "has ended: nothing listens at w1:1 (connection refused)"
    assert (watched.severed, watched.given_up) == ([], [])


def test_a_worker_that_was_started_again_between_two_looks_has_a_row(watched):
    watched.wait(lambda: watched.asked > 2)
    watched.started_again["w1:1"] = 1
    watched.wait(lambda: watched.rows)
    asked = watched.asked
    watched.wait(lambda: watched.asked > asked + 5)
    assert [(row["task"], row["cause"], row["steps_lost"]) for row in watched.rows] == [
        ("worker-1", "was started again at w1:1", 0)
    ]


@pytest.mark.parametrize("fault", ["refused", "started_again"])
def test_a_parameter_server_that_ends_or_was_started_again_ends_the_run_at_once(watched, fault):
    watched.wait(lambda: watched.asked > 2)
    if fault == "refused":
        watched.refused.add("p0:1")
    else:
        watched.started_again["p0:1"] = 1
    watched.wait(lambda: watched.given_up)
    error = watched.given_up[0]
    assert (error.exit_code, error.task) == (175, "ps-0")
    message = "connection refused" if fault == "refused" else "was started again at p0:1, and with it the variables"
    assert message in str(error)
    with pytest.raises(TaskLostError, match="start ps and chief again"):  # also where a step has failed for it
        watched.watch.check_parameter_servers()
    assert watched.events.seen == [("failure", "ps-0")]


def test_a_parameter_server_whose_port_is_not_closed_yet_is_asked_again(monkeypatch):
    watched = Watched(monkeypatch, heartbeat_timeout_s=60)
    watched.watch.stop()
    answers = iter(
        [ServerStatus(answers=False), ServerStatus(answers=False), ServerStatus(answers=False, refused=True)]
    )
    watched.status = lambda address: next(answers)
    with pytest.raises(TaskLostError, match="ps-0 has ended"):
        watched.watch.check_parameter_servers()


LOST = {"type": "TaskLostError", "message": "ps-0 has ended", "task": "ps-0"}
SILENT = "ended without recording a status"
BEAT = Heartbeat(1, 50.0, "training", step=70)


@pytest.mark.parametrize(
    ("result", "beat", "expected"),
    [
        ({"status": "running"}, BEAT, ("chief-0", SILENT, 50.0, 70)),
        ({"status": "running", "steps": {"applied": 60}}, None, ("chief-0", SILENT, 9.0, 60)),
        ({"status": "failed", "exit_code": 175, "error": LOST}, BEAT, ("ps-0", "ps-0 has ended", 50.0, 70)),
        ({"status": "failed", "exit_code": 137, "error": LOST, PENDING_LOSS: {"task": "worker-0", "cause": "first",
          "at_s": 2.0, "step": 5}}, None, ("worker-0", "first", 2.0, 5)),
        ({"status": "interrupted", "exit_code": 175, "error": {"message": "interrupted by SIGTERM", "task": "chief-0"},
          "steps": {"applied": 60}}, None, ("chief-0", "interrupted by SIGTERM", 9.0, 60)),
        ({"status": "interrupted", "exit_code": 130}, None, None),
        ({"status": "failed", "exit_code": 1, "error": LOST}, BEAT, None),
        ({"status": "completed", "exit_code": 0}, None, None),
        ({}, None, None),
    ],
)  # fmt: skip
def test_what_ended_the_attempt_before(result, beat, expected):
    loss = earlier_loss(Earlier(result, 9.0), beat)
    assert (loss and (loss.task, loss.cause, loss.at_s, loss.step)) == expected
