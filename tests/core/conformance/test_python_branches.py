"""What users bring may branch and loop on tensors in Python, as in a `tf.function`: AutoGraph converts it."""

from __future__ import annotations

import numpy as np
import pytest
from support import STEPS, run_config

from psrun.data import loading
from psrun.roles import planner

BROUGHT = ["model=dense", "~model.hidden_units", "model._target_=python_branches.model", "optimizer=sgd",
           "~data.num_train_examples", "~data.num_eval_examples", "~data.noise", "~data.num_features",
           "data.global_batch_size=8"]  # fmt: skip
SOURCE, STREAM, BRANCHING = (f"data._target_=python_branches.{name}" for name in ("Source", "Stream", "Branching"))


@pytest.mark.inprocess
@pytest.mark.parametrize(
    "pieces",
    [
        ("cluster=inprocess", SOURCE, "evaluation=exact"),
        ("cluster=none", STREAM, "trainer=fit", "+model.own_step=true"),
        *(
            pytest.param(pieces, marks=pytest.mark.thorough)
            for pieces in [
                ("cluster=inprocess", BRANCHING, "evaluation=distributed"),
                ("cluster=inprocess", STREAM, "trainer=fit", "+model.own_step=true", "evaluation=exact"),
                ("cluster=inprocess", SOURCE, "data.visitation=once", "+model.own_step=true"),
                ("cluster=inprocess", SOURCE, "trainer=own_loop", "trainer._target_=python_branches.loop"),
                ("cluster=inprocess", "cluster.replicas_per_worker=3", STREAM, "+model.own_step=true"),
                ("cluster=none", SOURCE, "+model.own_step=true"),
            ]
        ),
    ],
    ids=lambda pieces: " ".join(piece.removeprefix("data._target_=python_branches.") for piece in pieces),
)
def test_it_trains_and_is_evaluated(train, pieces):
    result, _ = train(*BROUGHT, "checkpoint=none", *pieces)
    assert result["steps"]["applied"] >= 2 * STEPS
    assert np.isfinite(result["metrics"]["val_error"])


@pytest.mark.inprocess
def test_it_is_planned():
    run = run_config(*BROUGHT, "+model.own_step=true", BRANCHING, "cluster=inprocess", "mode=plan")
    assert set(planner.make(run, loading.load_source(run)).traffic_by_variable) == {"dense/kernel", "dense/bias"}


@pytest.mark.inprocess
def test_it_predicts(train, predict):
    _, folder = train(*BROUGHT, "cluster=none", SOURCE)
    assert "64 predictions" in predict(folder, *BROUGHT, SOURCE, "cluster=none")
