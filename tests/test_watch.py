"""The chief's watch over servers that nobody supervises, with servers that answer or not as the test says."""

from __future__ import annotations

import time

import pytest

from psrun import choices
from psrun.cluster import probe, watch
from psrun.cluster.recoveries import Recoveries, Sign
from psrun.cluster.topology import Task, Topology
from psrun.errors import TaskLostError
from psrun.reporting.events import Reporter

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

    def __init__(self, monkeypatch):
        monkeypatch.setattr(watch, "_EVERY_S", 0.01)
        monkeypatch.setattr(probe, "answers", lambda address, timeout_s: address not in self.silent)
        monkeypatch.setattr(watch, "sever", lambda others: self.severed.append(others))
        monkeypatch.setattr(watch, "peers", lambda address: {(address, 1)})
        limits = {"connect_timeout_s": 0.5, "chief_timeout_s": 1, "heartbeat_timeout_s": 0.1, "start_timeout_s": 60}
        limits |= {"progress_timeout_s": 0.4, "progress_factor": 1, "placement": "greedy"}
        self.silent, self.severed, self.given_up = set(), [], []
        self.sign, self.steps, self.goes_on = "training", 0, True
        self.events, self.rows = Events(), []
        reporter = Reporter([self.events], started_s=0.0)
        recoveries = Recoveries(reporter, lambda rows: self.rows.extend(rows[-1:]))
        self.watch = watch.Watch(
            choices.TfConfig("tf_config", **limits), Topology(ADDRESSES, Task("chief", 0)), reporter, recoveries,
            sign=self.look, give_up=self.given_up.append,
        )  # fmt: skip
        self.watch.start()

    def look(self):
        self.steps += self.goes_on
        return Sign(self.sign, self.steps, 0.01)

    def wait(self, condition):
        deadline_s = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < deadline_s, (self.events.seen, self.given_up)
            time.sleep(0.005)


@pytest.fixture
def watched(monkeypatch):
    made = Watched(monkeypatch)
    yield made
    made.watch.stop()


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
    ("silent", "task", "said"),
    [({"p0:1"}, "ps-0", "has not answered at p0:1"), ({"w0:1", "w1:1"}, None, "no worker \\(worker-0, worker-1\\)")],
)
def test_without_a_ps_or_any_worker_the_run_ends(watched, silent, task, said):
    watched.silent |= silent
    watched.wait(lambda: watched.given_up)
    error = watched.given_up[0]
    assert isinstance(error, TaskLostError)
    assert error.task == task
    with pytest.raises(TaskLostError, match=said):
        raise error


@pytest.mark.parametrize("lost", [set(), {"w1:1"}])
def test_no_progress_ends_the_run_also_when_a_worker_is_lost_for_good(watched, lost):
    watched.silent |= lost
    watched.wait(lambda: len(watched.severed) == len(lost))
    watched.goes_on = False
    watched.wait(lambda: watched.given_up)
    assert "no progress: training at step" in str(watched.given_up[0])


def test_the_watch_goes_on_when_nothing_can_be_written(watched):
    watched.events.fails = True
    watched.silent.add("w1:1")
    watched.wait(lambda: watched.events.failed > 3)
    watched.events.fails = False
    watched.wait(lambda: watched.severed)
    assert watched.given_up == []
