"""What layers and optimizers compute from a whole variable, where a partitioner cuts it into shards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import run_config, variables

from psrun.errors import ConfigError

BOUNDED = ("model=dense", "~model.hidden_units", "model._target_=user_models.bounded", "cluster=inprocess",
           "partitioner=fixed_shards", "evaluation=none")  # fmt: skip
ONE_STEP = ("cluster=inprocess", "partitioner=fixed_shards", "evaluation=none", "trainer.epochs=1", "model=dense",
            "trainer.steps_per_epoch=1", "trainer.steps_per_execution=1", "optimizer=sgd")  # fmt: skip

pytestmark = pytest.mark.inprocess


def weights(folder: Any) -> dict[str, np.ndarray]:
    return {name: value for name, value in variables(folder).items() if name.startswith("model") and "OPT" not in name}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("columns", "partitioner: is fixed_shards, which cuts bounded/kernel; its constraint MaxNorm .* all rows"),
        ("orthogonal", "which cuts bounded/kernel; its regularizer OrthogonalRegularizer .* partitioner=none"),
    ],
)
def test_what_depends_on_all_rows_is_refused_for_a_variable_in_shards(train, kind, message):
    with pytest.raises(ConfigError, match=message):
        train(*BOUNDED, f"+model.kind={kind}")


def test_a_plan_refuses_it_too():
    from psrun.data import load
    from psrun.roles import planner

    run = run_config(*BOUNDED, "+model.kind=columns", "cluster=local")
    source = load.load_source(run)
    with pytest.raises(ConfigError, match=r"constraint MaxNorm .* all rows"):
        planner.make(load.planned(run, source), source)


def test_a_constraint_of_each_row_holds_in_all_shards(train):
    _, folder = train(*BOUNDED, "+model.kind=rows", "optimizer=sgd", "optimizer.learning_rate=0.1")
    (kernel,) = (value for value in weights(folder).values() if len(value) == 10)
    assert np.linalg.norm(kernel, axis=1).max() == pytest.approx(0.1, rel=1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "pieces",
    [
        ("trainer=custom_loop", "consistency=sync"),
        ("trainer=fit", "cluster.replicas_per_worker=3"),
    ],
)
def test_clipnorm_bounds_the_gradient_of_the_whole_variable(train, pieces):
    """With learning rate 1 the step of a variable is its gradient, which is longer than `clipnorm`."""
    pieces = (*ONE_STEP, *pieces, "+optimizer.clipnorm=0.001")
    (_, before), (_, after) = (train(*pieces, f"optimizer.learning_rate={rate}", num_workers=1) for rate in (1e-12, 1))
    started, stepped = weights(before), weights(after)
    steps = [np.linalg.norm(stepped[name] - value) for name, value in started.items() if len(value) > 1]
    assert len(steps) >= 4
    assert steps == pytest.approx([0.001] * len(steps), rel=1e-2)
