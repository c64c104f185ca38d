"""Early stopping and learning rates that fall, by the metrics of epochs and of evaluations, also after a resume."""

from __future__ import annotations

import math

import pytest
import tf_keras
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_training import Killed, Script, ScriptedTraining, _Program

from psrun.config.run_config import EarlyStopping
from psrun.training.metric_policies import Plateau

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize(
    ("mode", "min_delta", "values", "reached"),
    [
        ("max", 0.0, [0.5, 0.6, 0.6, 0.5, 0.7], [False, False, False, True, False]),
        ("min", 0.0, [3, 2, 2, 2, 2, 2], [False, False, False, True, False, True]),
        ("max", 0.2, [0.5, 0.6, 0.7], [False, False, True]),
        ("min", 0.0, [math.nan, math.nan, 1.0], [False, True, False]),
    ],
)
def test_a_plateau_is_reached_when_patience_runs_out(mode, min_delta, values, reached):
    plateau = Plateau(EarlyStopping("val_auc", mode, 2, min_delta))
    assert [plateau.reached({"val_auc": value}) for value in values] == reached
    assert not plateau.reached({"loss": 0.1})  # without the metric nothing counts


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    first=st.floats(-4, 4),  # Keras never stops in the first epoch, also where it has NaN and patience is 1
    values=st.lists(st.floats(-4, 4) | st.just(math.nan), max_size=12),
    mode=st.sampled_from(["max", "min"]),
    patience=st.integers(1, 3),
    min_delta=st.sampled_from([0.0, 0.5]),
)
def test_a_plateau_is_that_of_keras(first, values, mode, patience, min_delta):
    keras = tf_keras.callbacks.EarlyStopping(
        monitor="m", mode=mode, patience=patience, min_delta=min_delta, restore_best_weights=False
    )
    keras.model = tf_keras.Sequential()
    keras.on_train_begin()
    plateau = Plateau(EarlyStopping("m", mode, patience, min_delta))
    for epoch, value in enumerate([first, *values]):
        keras.on_epoch_end(epoch, {"m": value})
        assert plateau.reached({"m": value}) == keras.model.stop_training
        if keras.model.stop_training:
            return  # Keras is over


RULE = {"metric": "val_auc", "mode": "max", "patience": 2, "min_delta": 1.0}
STILL = Script(evaluation=lambda step: {"auc": 0.5})


def die(run) -> None:
    raise Killed


def trained(path, *, epochs: int, **keys) -> ScriptedTraining:
    return ScriptedTraining(path, trainer__epochs=epochs, trainer__steps_per_epoch=2, **keys)


def test_the_learning_rate_falls_by_evaluations_to_its_minimum_and_each_change_is_reported(tmp_path):
    done = trained(tmp_path / "run", epochs=7, reduce_lr={**RULE, "factor": 0.5, "min_lr": 0.2})
    done.train(STILL)
    # The first evaluation sets the mark; two more do not pass it.
    assert [(event.step, event.data["value"]) for event in done.of("learning_rate")] == [(6, 0.25), (10, 0.2)]


def test_training_ends_with_the_reason_when_an_evaluation_does_not_improve(tmp_path):
    done = trained(tmp_path / "run", epochs=9, early_stopping=RULE)
    assert done.train(STILL).steps["applied"] == 6
    assert done.folder.why_ends_early == "val_auc has not improved in 2 evaluations"


@pytest.mark.parametrize("killed", [3, 5, 8, 13, 15])
def test_a_resumed_run_has_the_learning_rate_and_the_patience_of_its_checkpoint(tmp_path, killed):
    """Of whatever happened after that checkpoint nothing counts."""
    rules = {"reduce_lr": {**RULE, "factor": 0.5, "min_lr": 0.01}, "early_stopping": {**RULE, "patience": 7}}
    rates = []
    for name, ends in (("whole", False), ("cut", True)):
        done = trained(tmp_path / name, epochs=8, checkpoint__every_epochs=3, **rules)
        if ends:
            with pytest.raises(Killed):
                done.train(Script(evaluation=STILL.evaluation, at={f"scheduled {killed}": die}, packed=1))
        run = done.train(Script(evaluation=STILL.evaluation, packed=1))
        rates.append((done.program.optimizer.learning_rate, run.steps["applied"], done.folder.why_ends_early))
    assert rates[0] == rates[1]
    assert rates[0][0] == 0.0625  # after evaluations 3, 5 and 7


def test_a_metric_that_the_trainer_reports_as_val_counts_once(tmp_path, monkeypatch):
    """A loop of the user may report one under the name of a metric of the evaluation."""
    monkeypatch.setattr(_Program, "metrics", lambda self: {"loss": 1.0, "val_auc": 0.25})
    done = trained(tmp_path / "run", epochs=9, early_stopping=RULE)
    assert done.train(STILL).steps["applied"] == 6
