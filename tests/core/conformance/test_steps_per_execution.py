"""Steps packed in closures: what is kept on the worker, what is late, and how many there are."""

from __future__ import annotations

import numpy as np
import pytest
from outcomes import check_same, events
from support import STEPS, TABLED, variables

from psrun.closures import scheduling
from psrun.closures.scheduling import length_after, length_for

pytestmark = pytest.mark.inprocess


def test_as_many_steps_as_fill_a_tenth_of_a_second_and_an_epoch_evenly():
    assert [length_for(step_s, 1000, 2) for step_s in (1.0, 0.05, 0.02, 0.0125, 0.01, 0.002, 1e-9)] == [
        1,
        2,
        5,
        8,
        10,
        50,
        200,
    ]
    assert length_for(0.0125, 100, 2) == 5  # 8 would leave a rest, and 5 is more than half of it
    assert length_for(0.001, 7, 2) == 7
    assert length_for(0.001, 97, 2) == 90
    assert [length_for(0.02, 10_000, n) for n in (2, 30, 64, 256)] == [
        5,
        5,
        10,
        40,
    ]  # measurements.md: 11 and 42


@pytest.mark.parametrize(
    ("before", "step_s", "least", "wanted"),
    [
        (1, 1.0, 1, 1),
        (1, 0.05, 1, 10),  # in closures of one step most of that may be the dispatch: measured again with ten
        (10, 0.05, 1, 2),
        (10, 0.02, 1, 10),  # and not 5, which would be traced again
        (10, 0.002, 1, 50),
        (10, 0.05, 4, 4),
    ],
)
def test_short_steps_are_measured_again_with_ten(before, step_s, least, wanted):
    assert length_after(before, step_s, 1000, 2, least=least) == wanted


@pytest.mark.thorough
@pytest.mark.part("recsys")
@pytest.mark.parametrize(
    ("trainer", "optimizer"),
    [
        ("fit", "adam"),
        ("custom_loop", "sparse_adagrad"),
    ],
)
def test_unrolled_steps_give_the_numbers_of_one_process(train, unrolled, trainer, optimizer):
    """With a learning rate that follows the steps, and metrics: all of them are kept on the worker."""
    schedule = (
        "optimizer.learning_rate={_target_: tf_keras.optimizers.schedules.ExponentialDecay, "
        "initial_learning_rate: 0.02, decay_steps: 5, decay_rate: 0.7}"
    )
    model = ("model=wide_deep", "model.dropout=0")
    pieces = (*model, f"trainer={trainer}", f"optimizer={optimizer}", schedule, "trainer.epochs=4")
    (alone, here), (result, there) = (
        train(*pieces, f"cluster={cluster}", num_workers=1) for cluster in ("none", "inprocess")
    )
    assert (3, 3) in unrolled
    assert result["steps"] == alone["steps"] == {"applied": 4 * STEPS, "scheduled": 4 * STEPS, "repeated": 0}
    check_same(there, here)
    for name, value in alone["metrics"].items():
        assert result["metrics"][name] == pytest.approx(value, rel=1e-3, abs=1e-4), name


@pytest.mark.thorough
def test_a_metric_that_branches_and_assigns_counts_every_example(train, unrolled):
    """Tracing detects it; it is read and written each time, as without psrun."""
    result, _ = train(
        *TABLED, "model._target_=embeddings.branching", "trainer=custom_loop", "trainer.epochs=4", num_workers=1
    )
    assert len(unrolled) > 2  # more than once: the first time it was not known yet
    assert result["metrics"]["branching"] == pytest.approx(STEPS * 8 * (1e6 + 1))


@pytest.mark.thorough
@pytest.mark.parametrize(("slow_s", "unrolled"), [(0.0, 0), (1e9, 1)])
def test_slow_steps_are_not_unrolled(train, monkeypatch, traced, slow_s, unrolled):
    monkeypatch.setattr(scheduling, "_SLOW_STEP_S", slow_s)
    result, _ = train("trainer.epochs=3", "evaluation=none", "checkpoint=none", num_workers=1)
    assert result["steps"]["applied"] == 3 * STEPS
    assert [num_steps for _, num_steps in traced] == [None] + [3] * unrolled


@pytest.mark.thorough
def test_late_rows_and_weights_are_as_late_as_configured(train, unrolled):
    """Two steps that do not see each other are one step of both batches at twice the rate, on the same examples."""
    run = (*TABLED, "model._target_=embeddings.model", "optimizer=sparse_sgd", "trainer.epochs=9")
    two = ("trainer.steps_per_epoch=2", "trainer.steps_per_execution=2")
    one = ("trainer.steps_per_epoch=1", "trainer.steps_per_execution=1", "cluster=none", "data.global_batch_size=16")
    result, folder = train(*run, *two, "trainer.prefetch_rows=true", "trainer.dense_sync_every=2", num_workers=1)
    assert result["steps_per_execution"] == {"num_steps": 2, "step_s": None, "rows_late": 1, "weights_late": 1}
    late = variables(folder)
    in_time = variables(train(*run, *two, num_workers=1)[1])
    at_once = variables(train(*run, *one, "optimizer.learning_rate=0.2")[1])
    assert (2, 2) in unrolled
    differ = 0.0
    for name, values in at_once.items():
        if np.size(values) > 1:  # not the counters of steps and the learning rate
            np.testing.assert_allclose(late[name], values, rtol=1e-4, atol=1e-6, err_msg=name)
            differ = max(differ, np.abs(in_time[name] - values).max())
    assert differ > 1e-4


def test_the_number_of_steps_is_chosen_and_reported(train):
    short = ("trainer.steps_per_epoch=60", "evaluation=none", "checkpoint=none")
    result, folder = train("trainer=fit", "trainer.steps_per_execution=auto", *short)
    assert result["steps"]["applied"] == 120
    choice = result["steps_per_execution"]
    assert choice["step_s"] > 0
    assert 1 <= choice["num_steps"] <= 60
    assert [event["num_steps"] for event in events(folder, "packing")] == [choice["num_steps"]]


@pytest.mark.thorough
def test_weights_with_constraints_in_loops_and_in_branches_train_as_in_one_process(train, unrolled):
    """A constraint reads what the optimizer has just written; gradients come out of loops and branches."""
    pieces = (*TABLED, "model._target_=embeddings.constrained", "optimizer=adam", "trainer.epochs=3")
    (_, here), (_, there) = (train(*pieces, f"cluster={cluster}", num_workers=1) for cluster in ("none", "inprocess"))
    assert (3, 3) in unrolled
    held = check_same(there, here)
    (_, untrained) = train(*pieces, "trainer.epochs=1", "trainer.steps_per_epoch=1", "trainer.steps_per_execution=1")
    for name, values in variables(untrained).items():
        if "kernel" in name and "OPT" not in name:
            assert np.abs(held[name] - values).max() > 1e-6, name


@pytest.mark.thorough
def test_a_number_chosen_at_the_end_of_an_epoch_holds_in_the_next(train, monkeypatch):
    """Keras puts back the number that it had before the last, shorter execution of an epoch."""
    monkeypatch.setattr(scheduling, "length_for", lambda step_s, steps_per_epoch, num_workers: 4)
    result, _ = train(
        "trainer=fit",
        "trainer.steps_per_execution=auto",
        "trainer.steps_per_epoch=24",
        "trainer.epochs=8",
        "evaluation=none",
        "checkpoint=none",
        num_workers=1,
    )
    assert result["steps"]["applied"] == result["steps"]["scheduled"] == 8 * 24
    assert result["steps_per_execution"]["num_steps"] == 4
