"""Where the time of a step goes, measured on steps with known parts."""

from __future__ import annotations

import pytest

from psrun.closures import measurements, scheduling
from psrun.closures.measurements import step_time

pytestmark = pytest.mark.inprocess

QUICK, SLOW = "data._target_=psrun.data.datasets.Regression", "data._target_=slow_steps.Slow"
LATE = ("trainer.prefetch_rows=true", "trainer.dense_sync_every=2")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("planted", "model", "pieces"),
    [
        ("input", "quick", (SLOW, "trainer.steps_per_execution=1")),
        ("compute", "slow", (QUICK, "trainer.steps_per_execution=4")),
        ("traffic", "wide", (QUICK, "trainer.steps_per_execution=4", "trainer=fit")),
        # In functions and branches, and between rows and their gradients.
        ("compute", "slow_branch", (QUICK, "trainer.steps_per_execution=4")),
        ("compute", "slow_step", (QUICK, "trainer.steps_per_execution=4")),
        ("compute", "slow_rows", (QUICK, "trainer.steps_per_execution=4", *LATE)),
    ],
)
def test_the_bottleneck_is_what_was_made_slow(train, monkeypatch, planted, model, pieces):
    monkeypatch.setattr(measurements, "_EVERY_S", 0.0)
    if pieces[1:] != ("trainer.steps_per_execution=1",) and "trainer=fit" not in pieces:  # written out
        monkeypatch.setattr(scheduling, "_STEPS_TO_UNROLL_FOR", 1)
    result, _ = train(
        "model=dense", "~model.hidden_units", f"model._target_=slow_steps.{model}", "data.global_batch_size=8",
        "optimizer=sgd", "evaluation=none", *pieces,
        # Enough that the start of the input pipeline, up to a second on a busy machine, does not decide.
        "trainer.steps_per_epoch=36", "trainer.epochs=1", num_workers=1,
    )  # fmt: skip
    assert longest(result["step_time"]) == planted, result["step_time"]
    whole_s = sum(value for name, value in result["step_time"].items() if name.endswith("_s"))
    assert whole_s == pytest.approx(1 / result["steps_per_s"], rel=0.5)  # some of the closures are measured, not all


def longest(step_time: dict) -> str:
    """Of what workers spend in closures: what lies between them hangs on what else the machine does."""
    return max(("input", "traffic", "compute"), key=lambda name: step_time[f"{name}_s"])


def test_a_step_of_a_synchronous_worker_is_a_gradient(train, monkeypatch):
    """Updates of two gradients: two workers compute one each in the time of an update."""
    monkeypatch.setattr(measurements, "_EVERY_S", 0.0)
    result, _ = train(
        "model=embedding", "consistency=sync", "cluster=inprocess", "evaluation=none",
        "trainer.steps_per_execution=1", "trainer.steps_per_epoch=60", "trainer.epochs=1", num_workers=2,
    )  # fmt: skip
    whole_s = sum(value for name, value in result["step_time"].items() if name.endswith("_s"))
    assert whole_s == pytest.approx(1 / result["steps_per_s"], rel=0.2)


@pytest.mark.thorough
def test_the_time_of_the_first_batch_counts_as_time_to_the_first_step(train, monkeypatch):
    monkeypatch.setattr(measurements, "_EVERY_S", 0.0)
    result, _ = train(
        "model=dense", "~model.hidden_units", "model._target_=slow_steps.quick", "data._target_=slow_steps.LateFirst",
        "data.visitation=once", "data.global_batch_size=8", "optimizer=sgd", "evaluation=none",
        "trainer.steps_per_execution=4", "trainer.steps_per_epoch=12", "trainer.epochs=1", num_workers=1,
    )  # fmt: skip
    assert result["step_time"]["input_s"] < 1 / result["steps_per_s"]


def test_the_bottleneck_is_the_longest_stage():
    assert step_time([0, 0.0, 0.0, 0.0, 0.0, 0.0], 0.1) is None
    measured = step_time([10, 0.5, 0.1, 0.2, 0.7, 0.053], 0.1)
    assert measured is not None
    assert (measured.input_s, measured.bottleneck) == (0.05, "input")
    assert measured.deviation == pytest.approx(0.02 / 0.07)  # steps of 0.05 and 0.09 s, by turns
