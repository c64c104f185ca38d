"""Features that are lists: from files, in batches, and through training and evaluation."""

from __future__ import annotations

import pytest
from list_features import NUM_EVAL, own_data

thorough = pytest.mark.thorough
ONCE = ("trainer.epochs=2", "trainer.steps_per_epoch=null")


@pytest.mark.inprocess
@pytest.mark.parametrize(
    "pieces",
    [
        ("trainer=custom_loop", "evaluation=exact", "data.audit=true"),
        ("trainer=fit", "evaluation=validation", "data.visitation=dynamic"),
        ("cluster=none", "trainer=fit", "evaluation=validation"),
        ("trainer=custom_loop", "evaluation=direct", "data.visitation=every_worker"),
        ("trainer=fit", "evaluation=distributed", "data.visitation=once"),
        ("cluster=none", "trainer=custom_loop", "evaluation=exact"),
        ("cluster=mirrored", "trainer=custom_loop", "evaluation=direct"),
        ("trainer=custom_loop", "evaluation=exact", "data.visitation=dynamic", "trainer.steps_per_execution=auto"),
        ("+data.sample_weights=true", "evaluation=exact"),
    ],
)
def test_lists_pass_through_training_and_evaluation(train, pieces):
    result, _ = train(*own_data(*ONCE, "data.visitation=once"), *pieces)
    assert result["metrics"]["loss"] < 10
    assert result["evaluation"]["examples_seen"] == NUM_EVAL
