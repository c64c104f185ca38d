"""Several trackers of a cluster of processes, whose chief is killed: one run in each, and no process is left."""

from __future__ import annotations

import pytest
from fault_injection import MOSTLY_WAITING

pytestmark = pytest.mark.cluster


def test_a_chief_that_is_killed_leaves_no_process_and_keeps_its_run(start):
    """The evaluator adds to the run in a file of its own."""
    pytest.importorskip("wandb")
    cluster = start(
        "cluster=local", "evaluation=sidecar", "tracker=[tensorboard,wandb]", "trainer.epochs=8",
        "trainer.steps_per_epoch=20", "data.num_train_examples=500", "data.num_eval_examples=100", MOSTLY_WAITING,
    )  # fmt: skip
    cluster.wait_for("checkpoint", 2)
    cluster.kill("chief-0")
    assert cluster.end() == 0
    assert cluster.left() == []
    run_id = cluster.result["trackers"]["wandb"]["run_id"]
    files = [*cluster.folder.glob("wandb/offline-run-*/*.wandb")]
    assert {file.name for file in files} == {f"run-{run_id}.wandb"}
    assert len(files) == 3  # of the chief, of the one after it, and of the evaluator
    assert not [event for event in cluster.events("warning") if "Weights" in event["message"]]
    assert {file.parent.name for file in cluster.folder.glob("tensorboard/*/*tfevents*")} >= {"train", "evaluation"}
