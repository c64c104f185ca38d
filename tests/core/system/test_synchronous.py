"""cluster=multi_worker_mirrored: processes that do every step together, and what becomes of them when one is lost."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from typing import Any

import pytest
from support import HARNESS

pytestmark = pytest.mark.cluster

RUN = ["trainer=fit", "evaluation=validation", "data.num_train_examples=2000", "data.num_eval_examples=210"]
LONG = [
    "cluster=multi_worker_mirrored", *RUN, "trainer.epochs=12", "trainer.steps_per_epoch=20", "evaluation.every=20",
    "cluster.restart.heartbeat_timeout_s=6", "checkpoint.every_steps=10",
]  # fmt: skip


def test_it_does_the_steps_of_one_process(start):
    both = [
        start(f"cluster={cluster}", *RUN, "trainer.epochs=3", "trainer.steps_per_epoch=20")
        for cluster in ("multi_worker_mirrored", "none")
    ]
    assert [cluster.end() for cluster in both] == [0, 0]
    results = [cluster.result for cluster in both]
    assert results[0]["cluster"] == {"topology": "multi_worker_mirrored", "num_workers": 2, "num_ps": 0}
    assert [result["steps"]["applied"] for result in results] == [60, 60]
    assert [result["evaluation"]["examples_seen"] for result in results] == [210, 210]
    for name, value in results[1]["metrics"].items():
        assert results[0]["metrics"][name] == pytest.approx(value, abs=2e-3), name
    assert (both[0].folder / "logs" / "worker-0.log").exists()
    assert both[0].left() == []


def test_a_task_hangs_then_the_chief_is_killed(start):
    """All tasks start again together, and resume from the checkpoint."""
    cluster = start(*LONG)
    cluster.wait_for("checkpoint", 2)
    cluster.stop("worker-0")
    failure = cluster.wait_for("failure")
    assert failure["task"] == "worker-0", failure
    # Whoever notices first: psrun, by the heartbeat, or TensorFlow, by its own.
    assert "hangs" in failure["cause"] or "stopped sending heartbeats" in failure["cause"]
    cluster.wait_for("recovery")
    saved = cluster.wait_for("checkpoint", len(cluster.events("checkpoint")) + 1)["step"]
    cluster.kill("chief-0")
    cluster.wait_for("recovery", 2)
    assert cluster.end() == 0, cluster.stderr
    assert cluster.result["steps"]["applied"] == 240
    cluster.learned(240)
    assert cluster.left() == []
    assert cluster.events("restored")[-1]["step"] >= saved


def test_a_signal_stops_all_after_the_same_step(start):
    cluster = start(*LONG, "trainer.epochs=2000", "trainer.steps_per_epoch=1000")
    cluster.wait_for_step(30)
    cluster.process.send_signal(signal.SIGTERM)
    assert cluster.end(within_s=40) == 175
    result = cluster.result
    assert result["status"] == "interrupted"
    assert result["checkpoints"][-1]["step"] == result["steps"]["applied"] < 1000
    assert cluster.left() == []


@pytest.fixture
def seen(start, tmp_path):
    """Runs two epochs on 200 numbered examples; returns the cluster and, for each worker, the numbers of each step."""

    def run(source: str, *pieces: str) -> tuple[Any, list[list[list[int]]]]:
        folder = tmp_path / "seen"
        folder.mkdir()
        paths = os.pathsep.join(filter(None, [str(HARNESS), os.environ.get("PYTHONPATH")]))
        generated = ("num_train_examples", "num_eval_examples", "num_features", "noise")
        cluster = start(
            "cluster=multi_worker_mirrored", "trainer=fit", "evaluation=none", "model=dense", "~model.hidden_units",
            "model._target_=example_ids.telling", *(f"~data.{name}" for name in generated),
            f"data._target_=example_ids.{source}", "trainer.epochs=2", "trainer.steps_per_epoch=null", *pieces,
            SEEN=str(folder), PYTHONPATH=paths,
        )  # fmt: skip
        code = cluster.end()
        assert cluster.left() == []
        steps = [
            [[int(float(number)) for number in re.findall(r"[\d.]+", line)] for line in path.read_text().splitlines()]
            for path in sorted(folder.iterdir())
        ]
        return (cluster, steps) if code == 0 else (cluster, [])

    return run


def passes(steps: list[list[list[int]]], num_steps: int) -> list[Counter[int]]:
    """How often each example was trained on in each epoch, by all workers."""
    return [
        Counter(number for own in steps for step in own[first : first + num_steps] for number in step)
        for first in range(0, len(steps[0]), num_steps)
    ]


def test_each_example_of_a_pass_is_trained_on_once_by_one_worker(seen):
    """In batches of 16, of which the last one of a pass has 8. Without `data.sharding` that is `data`."""
    cluster, steps = seen("Numbered", "data.visitation=once", "data.global_batch_size=16")
    assert passes(steps, 13) == [Counter(range(200))] * 2
    assert [len(own) for own in steps] == [26, 26]
    assert [Counter(map(len, own)) for own in steps] == [{8: 24, 4: 2}] * 2  # all have the same part of the work
    assert cluster.result["data"]["sharding"] == "data"


def test_workers_have_files(seen, tmp_path):
    """By `auto`, which is `file` where the data is in files; the test above has `data`, the one below `file`."""
    cluster, steps = seen("InFiles", f"+data.folder={tmp_path}", "data.global_batch_size=20", "data.sharding=auto")
    files = [{number // 50 for step in own for number in step} for own in steps]
    assert sorted(map(sorted, files)) == [[0, 2], [1, 3]]
    assert passes(steps, 10) == [Counter(range(200))] * 2
    assert cluster.result["data"]["sharding"] == "file"


@pytest.mark.release
def test_files_of_other_lengths_are_repeated_by_their_workers(seen, tmp_path):
    """Of three files one worker has two: the examples of the third one are trained on twice as often."""
    _, steps = seen(
        "InFiles", f"+data.folder={tmp_path}", "+data.num_files=3", "data.global_batch_size=20", "data.sharding=file"
    )
    few = min(steps, key=lambda own: len({number for step in own for number in step}))
    times = Counter(number for step in few for number in step)
    assert set(times) == set(range(67, 134))
    assert min(times.values()) >= 2


def test_fewer_files_than_workers_are_reported(seen, tmp_path):
    cluster, _ = seen("InFiles", f"+data.folder={tmp_path}", "+data.num_files=1", "data.global_batch_size=20")
    assert cluster.process.returncode == 2
    assert "shards by file, but there are fewer files than the 2 workers; choose data" in cluster.stderr
