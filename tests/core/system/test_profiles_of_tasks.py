"""`profile.steps` on a cluster of processes: each task writes its profile, and TensorBoard opens them."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import portpicker
import pytest
from bounds import BOUND_S
from profile_files import has_steps, operations
from support import environment


@pytest.mark.cluster
def test_each_task_of_a_cluster_has_a_profile_that_tensorboard_opens(start):
    """On `cluster=local`; TensorBoard with the package xprof, where it is installed."""
    quick = ["data.num_train_examples=500", "data.num_eval_examples=100", "trainer.steps_per_epoch=20"]
    cluster = start("cluster=local", "cluster.num_ps=1", "trainer.epochs=2", "profile.steps=[25, 35]", *quick)
    assert cluster.end() == 0
    assert cluster.left() == []
    tasks = ["chief-0", "ps-0", "worker-0", "worker-1"]
    recorded = cluster.result["profile"]
    assert recorded["tasks"] == tasks
    files = {file.name: file for file in Path(recorded["path"]).iterdir()}
    assert [*sorted(files)] == [f"{task}.xplane.pb" for task in tasks]
    assert any(has_steps(files[f"worker-{index}.xplane.pb"]) for index in (0, 1))
    assert any(":ResourceGather" in name for name in operations(files["ps-0.xplane.pb"]))
    assert {event["task"] for event in cluster.events("system")} == {*tasks}
    pytest.importorskip("xprof")
    assert tensorboard(cluster.folder, "runs") == ["tensorboard/steps-25-35"]
    hosts = tensorboard(cluster.folder, "hosts?run=tensorboard/steps-25-35&tag=trace_viewer@")
    assert {host["hostname"] for host in hosts} >= {*tasks}


def tensorboard(folder: Path, query: str) -> Any:
    """What the profile plug-in of TensorBoard answers."""
    port = portpicker.pick_unused_port()
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--port", str(port), "--host", "::1"]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline_s = time.monotonic() + BOUND_S
    try:
        while True:
            assert time.monotonic() < deadline_s
            try:
                with urllib.request.urlopen(f"http://[::1]:{port}/data/plugin/profile/{query}", timeout=20) as answer:
                    data = answer.read()
                    is_packed = answer.headers.get("Content-Encoding") == "gzip"
                    return json.loads(gzip.decompress(data) if is_packed else data)
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.2)
    finally:
        process.kill()
        process.wait()
