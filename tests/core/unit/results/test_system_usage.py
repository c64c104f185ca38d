"""What tasks use of their machines: rates between samples, and events in intervals."""

from __future__ import annotations

import os
import threading

import psutil

from psrun.results import task_files
from psrun.results.task_files import Rates, Sampler, Usage, UsageMeter


def test_the_usage_of_this_process():
    usage = task_files.usage_of_this_process()
    assert 0 < usage.memory_bytes < psutil.virtual_memory().total
    assert 0 < usage.cpu_s <= sum(os.times()[:2]) + 1
    assert usage.received_bytes >= 0 <= usage.sent_bytes


def test_rates_are_those_since_the_sample_before_of_the_same_process():
    meter = UsageMeter()
    assert meter.read("ps-0", None) == (None, None)
    assert meter.read("ps-0", Usage(10.0, 1.0, 500, 0, 0)) == (500, None)
    second = (600, Rates(150.0, 1000.0, 10.0))
    assert meter.read("ps-0", Usage(12.0, 4.0, 600, 2000, 20)) == second
    assert meter.read("ps-0", Usage(12.0, 4.0, 600, 2000, 20)) == second  # no new heartbeat
    assert meter.read("ps-0", Usage(13.0, 0.1, 100, 0, 0)) == (100, None)  # it was restarted


def test_samples_become_events_in_longer_and_longer_intervals(monkeypatch):
    """A task that was not heard of again has none; the last sample comes at the end."""
    monkeypatch.setattr(task_files, "_LONGER_AFTER", 2)
    waited: list[float] = []
    emitted: list[dict] = []
    clock = [0.0]

    def read() -> dict[str, Usage]:
        return {
            "chief-0": Usage(clock[0], clock[0] / 2, 7, int(clock[0]), 0),
            "ps-0": Usage(min(clock[0], 1.0), 0.0, 8, 0, 0),
        }

    class Ended(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            waited.append(timeout)
            clock[0] += timeout
            return len(waited) == 6

    sampler = Sampler(1.0, read, emitted.append)
    sampler._ended = Ended()
    sampler.start()
    sampler._thread.join(10)
    assert waited == [1, 1, 2, 2, 4, 4]
    assert [event["received_bytes"] for event in emitted if event["task"] == "chief-0"] == [1, 2, 4, 6, 10, 14]
    assert {event["cpu_percent"] for event in emitted if event["task"] == "chief-0"} == {50.0}
    assert [event for event in emitted if event["task"] == "ps-0"] == [
        {"task": "ps-0", "cpu_percent": 0.0, "memory_bytes": 8, "received_bytes": 0, "sent_bytes": 0}
    ]
