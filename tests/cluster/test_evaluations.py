"""Exact evaluation while tasks are killed and hang: every example counts once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from running import Cluster

pytestmark = pytest.mark.cluster

TESTS = str(Path(__file__).parents[1])
NUM_EXAMPLES = 120_000
RUN = [
    "model=dense", "~model.hidden_units", "model._target_=counted.model", "data._target_=counted.Numbered",
    "~data.num_train_examples", "~data.noise", "~data.num_features", f"data.num_eval_examples={NUM_EXAMPLES}",
    "data.global_batch_size=20", "trainer.epochs=1", "trainer.steps_per_epoch=10", "optimizer=sgd",
    "optimizer.learning_rate=0.000001", "evaluation=exact",
]  # fmt: skip


def evaluating(cluster: Cluster) -> None:
    """Waits until the evaluation is under way."""
    beat = cluster.folder / ".tasks" / "chief-0.json"

    def state() -> bool:
        try:
            return json.loads(beat.read_text())["state"] == "evaluating"
        except (OSError, ValueError):
            return False

    cluster.wait(state, "evaluation")


def counted_once(cluster: Cluster) -> None:
    found = cluster.result["evaluation"]
    assert (found["mode"], found["examples_seen"]) == ("exact", NUM_EXAMPLES)
    assert found["metrics"]["not_once"] == 0


@pytest.mark.parametrize("trainer", ["custom_loop", "fit"])
@pytest.mark.parametrize("fault", ["kill", "stop"])
def test_a_worker_is_lost_in_the_middle(start, fault, trainer):
    cluster = start("cluster=local", f"trainer={trainer}", "cluster.restart.heartbeat_timeout_s=6", *RUN,
                    PYTHONPATH=TESTS)  # fmt: skip
    evaluating(cluster)
    getattr(cluster, fault)("worker-1")
    assert cluster.wait_for("failure")["task"] == "worker-1"
    assert cluster.end() == 0, cluster.stderr
    counted_once(cluster)
    assert cluster.left() == []


def test_a_parameter_server_is_lost_in_the_middle(start):
    cluster = start("cluster=local", *RUN, PYTHONPATH=TESTS)
    evaluating(cluster)
    cluster.kill("ps-0")
    assert cluster.end() == 0, cluster.stderr
    counted_once(cluster)
