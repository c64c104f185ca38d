"""What all trackers share: the numbers of events, and what a failure of a tracker costs."""

from __future__ import annotations

import json

import pytest

from psrun.errors import Interrupted
from psrun.results.events import Event, Sink
from psrun.results.run_folder import RunFolder
from psrun.results.tracking import GuardedSink, TrackedRun, artifacts, numbers


class Failing(Sink):
    def __init__(self, error: Exception) -> None:
        self.error = error
        self.calls = 0

    def event(self, event: Event) -> None:
        self.calls += 1
        raise self.error

    close = None


def test_the_first_error_of_a_tracker_is_a_warning_and_its_end():
    warned: list[str] = []
    failing = Failing(OSError("no room"))
    sink = GuardedSink(failing, "MLflow at x", warned.append)
    for _ in range(2):
        sink.event(Event("start", None, 0.0, {}))
    sink.close()
    assert failing.calls == 1
    assert warned == ["MLflow at x failed; the run continues without tracking: no room"]


def test_a_signal_within_a_tracker_ends_the_run():
    with pytest.raises(Interrupted):
        GuardedSink(Failing(Interrupted(2)), "MLflow", print).event(Event("start", None, 0.0, {}))


@pytest.mark.parametrize(
    ("kind", "data", "filed"),
    [
        ("epoch", {"metrics": {"loss": 1, "auc": None}, "steps_per_s": 2.0, "examples_per_s": 4.0, "epoch": 1},
         {"loss": 1.0, "steps_per_s": 2.0, "examples_per_s": 4.0}),
        ("epoch", {"metrics": {"loss": 1}, "steps_per_s": 2.0, "examples_per_s": 4.0, "virtual": {"steps_per_s": 9.0}},
         {"loss": 1.0, "virtual/steps_per_s": 9.0}),
        ("evaluation", {"metrics": {"ndcg@10": 0.5}, "mode": "direct"}, {"val_ndcg@10": 0.5}),
        ("system", {"task": "ps-0", "cpu_percent": None, "memory_bytes": 7}, {"system/ps-0/memory_bytes": 7.0}),
        ("checkpoint", {"path": "x"}, {}),
    ],
)  # fmt: skip
def test_the_numbers_of_an_event(kind, data, filed):
    assert numbers(Event(kind, 3, 0.0, data)) == filed


def test_a_run_that_a_search_has_paused_is_not_complete(tmp_path):
    folder = RunFolder(tmp_path)
    run = TrackedRun("mlflow", folder, {}, None)
    assert [run.outcome(status) for status in ("completed", "failed")] == ["completed", "failed"]
    folder.emit("search", state="paused", epoch=2)
    assert [run.outcome(status) for status in ("completed", "failed")] == ["paused", "failed"]
    (filed,) = [json.loads(content) for name, content in artifacts(["result"], folder, "paused")]
    assert filed["status"] == "interrupted"  # as run.json will have it
