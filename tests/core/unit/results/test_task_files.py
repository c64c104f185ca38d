"""Heartbeats: written, read, and what a full disk leaves of them."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bounds import BOUND_S

from psrun.config.topology import Task
from psrun.results import task_files

WORKER = Task("worker", 0)


def heart(folder: Path, monkeypatch) -> task_files.HeartbeatWriter:
    monkeypatch.setattr(task_files, "_BEAT_S", 0.01)
    writer = task_files.HeartbeatWriter(
        folder, WORKER, lambda: task_files.Heartbeat(os.getpid(), time.time(), "serving")
    )
    writer.start()
    return writer


def wait(condition) -> None:
    deadline_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def test_a_heart_beats_until_it_is_stopped(tmp_path, monkeypatch):
    writer = heart(tmp_path, monkeypatch)
    first = task_files.read(tmp_path, WORKER)
    assert (first.pid, first.state) == (os.getpid(), "serving")
    wait(lambda: task_files.read(tmp_path, WORKER).at_s > first.at_s)
    assert task_files.still_beats(tmp_path, WORKER)
    writer.stop()
    assert task_files.read(tmp_path, WORKER) is None
    assert not task_files.still_beats(tmp_path, WORKER)


def test_a_heart_is_heard_on_a_full_disk_too(tmp_path, monkeypatch):
    writer = heart(tmp_path, monkeypatch)

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    time_s = time.time()
    wait(lambda: task_files.read(tmp_path, WORKER).at_s > time_s)
    writer.stop()


@pytest.mark.thorough
def test_only_the_notified_process_knows_that_the_run_is_over():
    """Two runs on one machine may have servers of the same address, each in its own network."""
    script = (
        "from psrun.cluster import servers, strategy\n"
        "over = servers.RunOverSignal(); print(bool(over)); strategy.signal_over(); print(bool(over))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=BOUND_S, check=True)
    assert done.stdout.split() == ["False", "True"]
