"""Keras' BackupAndRestore on a cluster of processes whose chief is killed; psrun takes no checkpoints."""

from __future__ import annotations

import pytest
from fault_injection import MOSTLY_WAITING

pytestmark = pytest.mark.cluster

STEPS, EPOCHS = 50, 6
RUN = [
    "cluster=local", "cluster.num_ps=1", "trainer=fit", "checkpoint=none", "evaluation=none",
    f"trainer.epochs={EPOCHS}", f"trainer.steps_per_epoch={STEPS}", "data.num_train_examples=2000",
    "data.num_eval_examples=200", MOSTLY_WAITING,  # not done before the chief is killed
    "trainer.callbacks=[{_target_: tf_keras.callbacks.BackupAndRestore,"
    " backup_dir: '${hydra:runtime.output_dir}/backup'}]",
]  # fmt: skip


@pytest.mark.release
def test_a_chief_that_is_killed_within_an_epoch_resumes_from_the_backup_with_counts_that_are_right(start):
    """A death at the end of an epoch is one of `test_backup_and_restore_hook`, in one process."""
    cluster = start(*RUN)
    cluster.wait_for("epoch", 2)
    cluster.wait_for_step(2 * STEPS + 20)
    cluster.kill("chief-0")
    assert cluster.end() == 0, cluster.stderr
    result = cluster.result
    assert (result["steps"]["scheduled"], result["steps"]["applied"]) == (EPOCHS * STEPS, EPOCHS * STEPS)
    (restored,) = cluster.events("restored")
    assert restored["step"] % STEPS == 0
    epochs = [(event["epoch"], event["step"]) for event in cluster.events("epoch")]
    assert all(step == epoch * STEPS for epoch, step in epochs)
    assert epochs[-1] == (EPOCHS, EPOCHS * STEPS)
    assert [row["task"] for row in result["recoveries"]] == ["chief-0"]
    assert cluster.left() == []
