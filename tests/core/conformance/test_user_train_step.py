"""Models with a `train_step` of their own: what it returns is reported and checked, whoever trains."""

from __future__ import annotations

import math

import pytest
from support import HARNESS, STEPS

from psrun.errors import NonFiniteLossError
from psrun.training.actions import Checks


def own(name: str, *overrides: str) -> list[str]:
    return ["model=dense", "~model.hidden_units", f"model._target_=user_models.{name}", "optimizer=sgd", *overrides]


CASES = [
    (("trainer=custom_loop", "cluster=inprocess", "trainer.steps_per_execution=5", "+model.aggregates=false"), 2),
    (("trainer=fit", "cluster=none", "trainer.steps_per_execution=1"), 1),
    *(
        pytest.param(pieces, 1, marks=pytest.mark.thorough)
        for pieces in [
            ("trainer=fit", "cluster=inprocess", "trainer.steps_per_execution=1"),
            ("trainer=custom_loop", "cluster=inprocess", "trainer.dense_sync_every=2"),
            ("trainer=fit", "cluster=none", "trainer.run_eagerly=true"),
            ("trainer=own_loop", "trainer._target_=user_code.plain", "cluster=none"),
        ]
    ),
]


@pytest.mark.inprocess
@pytest.mark.parametrize(("pieces", "workers"), CASES)
def test_what_the_step_returns_is_reported(train, pieces, workers):
    """The last value of plain ones, of metrics the total of all workers."""
    result, _ = train(*own("steps"), *pieces, num_workers=workers)
    metrics = result["metrics"]
    reported = ["counted", "loss", "at"] if "trainer=own_loop" in pieces else ["loss", "at", "counted"]
    assert list(metrics) == [*reported, "val_loss", "val_mae"]
    assert metrics["counted"] == STEPS
    if workers == 1:
        assert metrics["at"] == 2 * STEPS
    assert 0.2 < metrics["loss"] < 5


@pytest.mark.thorough
@pytest.mark.parametrize("trainer", ["custom_loop", "fit"])
def test_what_several_replicas_return_is_added_up_as_keras_does_it(psrun, trainer):
    few = ["trainer.epochs=1", "trainer.steps_per_epoch=4", "trainer.steps_per_execution=2"]
    cluster = ("cluster=mirrored", "cluster.num_replicas=2", "checkpoint=none", f"trainer={trainer}")
    done = psrun(*own("steps", *few), *cluster, PYTHONPATH=str(HARNESS))
    assert done.code == 0, done.stderr
    assert [done.result["metrics"][name] for name in ("at", "counted")] == [8, 8]


@pytest.mark.tensorflow
@pytest.mark.parametrize("trainer", ["custom_loop", pytest.param("fit", marks=pytest.mark.thorough)])
def test_metrics_that_no_step_updates_are_not_reported_as_0(train, trainer):
    run = ("cluster=none", f"trainer={trainer}", "evaluation=none", "trainer.epochs=1")
    keras, _ = train("model=dense", "model.hidden_units=[4]", "optimizer=sgd", *run)
    compiled, _ = train(*own("guide"), *run)
    assert compiled["metrics"] == pytest.approx(keras["metrics"], rel=1e-5)
    without, _ = train(*own("guide", "+model.with_loss=false"), *run)
    assert without["metrics"] == pytest.approx({"mae": keras["metrics"]["mae"]}, rel=1e-5)
    plain, _ = train(*own("guide", "+model.plain=true", "+model.with_loss=false"), *run)
    assert plain["metrics"]["mae"] == 7.0
    assert plain["metrics"]["loss"] > 0.1


@pytest.mark.inprocess
@pytest.mark.parametrize(
    ("trainer", "cluster"),
    [("custom_loop", "none"), ("fit", "none"), pytest.param("fit", "inprocess", marks=pytest.mark.thorough)],
)
def test_a_loss_that_is_returned_as_nan_ends_the_run_before_a_checkpoint(train, trainer, cluster, tmp_path):
    """Also where it was NaN in one step only, within an execution."""
    pieces = own("steps", "+model.nan_at=5", f"trainer={trainer}", f"cluster={cluster}", "checkpoint.every_steps=6")
    with pytest.raises(NonFiniteLossError):
        train(*pieces, num_workers=1)
    assert not [*tmp_path.glob("run0/checkpoints/*.index")]


@pytest.mark.tensorflow
def test_metrics_to_follow_are_those_that_the_step_returns(train):
    pieces = own("steps", "cluster=none", "checkpoint=none", "early_stopping.mode=min", "trainer.epochs=4")
    result, _ = train(*pieces, "early_stopping.metric=loss", "early_stopping.patience=1", "early_stopping.min_delta=99")
    assert result["steps"]["applied"] == 2 * STEPS
    assert math.isfinite(result["metrics"]["loss"])


@pytest.mark.tensorflow
@pytest.mark.parametrize("trainer", ["custom_loop", "fit"])
def test_the_running_loss_is_that_of_the_running_epoch(train, monkeypatch, trainer):
    running = []

    def noted(self, context):
        running.append((self._run.monitor.loss(), context.metrics["loss"]))

    monkeypatch.setattr(Checks, "loss", noted)
    train(*own("steps", "cluster=none", "evaluation=none"), f"trainer={trainer}", "trainer.epochs=3",
          "trainer.steps_per_epoch=1", "trainer.steps_per_execution=1")  # fmt: skip
    assert len(running) == 3
    assert all(during == pytest.approx(at_end) for during, at_end in running)
