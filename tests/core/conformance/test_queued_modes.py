"""Modes whose updates are of several gradients: equal to other modes where they have to be, each example once."""

from __future__ import annotations

import counting
import numpy as np
import pytest
from outcomes import check_equal
from support import TABLED, variables

from psrun.closures.input_streams import DealtInput, NextBatches
from psrun.errors import ConfigError

pytestmark = pytest.mark.inprocess

RUN = [
    "model=embedding", *TABLED, "model._target_=embeddings.model", "+model.embeddings_initializer=ones",
    "data.visitation=once", "trainer.steps_per_epoch=25", "trainer.epochs=2", "evaluation=none",
    "trainer.steps_per_execution=1",
]  # fmt: skip
GBA = "consistency=gba"
K_ASYNC = "consistency=k_async"
HYBRID = "consistency=hybrid"


def exactly_equal(first, second):
    held = variables(second)
    for name, value in variables(first).items():
        np.testing.assert_array_equal(held[name], value, err_msg=name)


@pytest.mark.parametrize("optimizer", ["sparse_adagrad", pytest.param("sgd", marks=pytest.mark.thorough)])
def test_a_global_batch_without_tolerance_is_synchronous_training_bit_by_bit(train, optimizer):
    run = [*RUN, "trainer=custom_loop", f"optimizer={optimizer}"]
    result, folder = train(*run, GBA, "consistency.tolerance=0")
    _, synchronous = train(*run, "consistency=sync")
    exactly_equal(folder, synchronous)
    assert result["consistency"]["gradients_applied"] == 100
    assert result["consistency"]["updates_dropped"] == {"worker-0": 0, "worker-1": 0}


@pytest.mark.parametrize("optimizer", ["sparse_adagrad", pytest.param("sgd", marks=pytest.mark.thorough)])
def test_updates_of_one_gradient_are_those_of_one_asynchronous_worker_bit_by_bit(train, optimizer):
    run = [*RUN, "trainer=custom_loop", f"optimizer={optimizer}"]
    _, folder = train(*run, K_ASYNC, "consistency.gradients=1", num_workers=1)
    _, asynchronous = train(*run, "consistency=async", num_workers=1)
    exactly_equal(folder, asynchronous)


def test_tables_and_dense_weights_in_one_queue_or_in_two_of_one_worker_are_equal(train):
    """With one worker, rows that are updated at once are updated when they are with the dense weights."""
    run = [*RUN, "trainer=custom_loop", "optimizer=sparse_adagrad"]
    result, folder = train(*run, HYBRID, "consistency.dense=sync", num_workers=1)
    _, synchronous = train(*run, "consistency=sync", num_workers=1)
    check_equal(variables(folder), variables(synchronous), rtol=1e-6, atol=1e-7)
    assert result["steps"] == {"applied": 50, "scheduled": 50, "repeated": 0}


MODES = {
    "gba": [GBA, "consistency.tolerance=2"],
    "gba of more gradients than workers": [GBA, "consistency.gradients=4", "consistency.tolerance=1"],
    "k_async": [K_ASYNC, "consistency.gradients=1"],
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("mode", MODES)
def test_each_example_is_applied_once_beside_a_slow_worker(train, mode):
    run = counting.arguments(examples=64, batch=8)
    slow = [*MODES[mode], "trainer.steps_per_execution=1", "cluster.slow_workers={0: 0.05}", "checkpoint.every_steps=3"]
    gradients = 4 if "more" in mode else 1 if mode == "k_async" else 2
    result, folder = train(*run, *slow, "trainer.epochs=4")
    assert result["steps"]["applied"] == 4 * 8 // gradients
    assert counting.wrong(folder.checkpoints, epochs=4, gradients=gradients) == []


@pytest.mark.thorough
def test_rows_are_applied_once_and_dense_weights_once_beside_a_slow_worker(train):
    run = counting.arguments(examples=64, batch=8)
    slow = [HYBRID, "trainer.steps_per_execution=1", "consistency.tolerance=1", "cluster.slow_workers={0: 0.05}",
            "checkpoint.every_steps=3"]  # fmt: skip
    result, folder = train(*run, *slow, "trainer.epochs=4")
    assert result["steps"]["applied"] == 16
    assert counting.wrong(folder.checkpoints, epochs=4, gradients=2, of_rows=1) == []


@pytest.mark.thorough
def test_what_a_mode_drops_and_how_old_its_gradients_are_is_recorded(train):
    result, _ = train(*RUN, "trainer=custom_loop", "optimizer=sgd", GBA, "consistency.tolerance=1",
                      "consistency.decay=0.5", "cluster.slow_workers={0: 0.1}")  # fmt: skip
    facts = result["consistency"]
    assert facts["updates_dropped"]["worker-0"] > facts["updates_dropped"]["worker-1"]
    assert 0.5 <= facts["weight"] <= 1
    assert result["staleness"]["max"] <= 1


REFUSED = {
    "a model without tables": (["model=dense"], "requires a model that looks up rows"),
    "the norm of all gradients": (["optimizer=sgd", "+optimizer.global_clipnorm=1.0"], "optimizer.global_clipnorm"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_hybrid_updates_name_what_they_do_not_support(train, case):
    pieces, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message):
        train(*pieces, HYBRID, "trainer.steps_per_execution=1", "evaluation=none")


def test_batches_whose_rows_are_updated_are_known_after_a_resume_and_dealt_first():
    dealt = DealtInput(lambda: None, NextBatches(12, (3, 7), (7,)))
    dealings = [dealt.deal(1) for _ in range(4)]
    assert [dealt.is_partly_applied(each) for each in dealings] == [False, True, False, False]
    dealt.deal_again([dealings[1], dealings[3]], partly=True)
    dealt.deal_again([dealings[2]])
    assert dealt.position() == (14, (7, 12, 13), (7, 13))


SCHEDULED = "consistency=scheduled"


@pytest.mark.thorough
@pytest.mark.parametrize("trainer", ["custom_loop", "fit"])
def test_a_mode_changes_within_an_epoch_without_the_loss_of_a_step(train, trainer):
    run = [*RUN, f"trainer={trainer}", "optimizer=sparse_adagrad"]
    gba = "{kind: gba, tolerance: 0}"
    result, folder = train(*run, SCHEDULED, f"consistency.schedule={{0: sync, 10: {gba}, 30: sync}}")
    _, synchronous = train(*run, "consistency=sync")
    exactly_equal(folder, synchronous)
    assert result["steps"] == {"applied": 50, "scheduled": 50, "repeated": 0}
    assert result["consistency"]["gradients_applied"] == 100


@pytest.mark.thorough
def test_each_example_is_applied_once_by_asynchronous_modes_that_follow_each_other(train):
    run = counting.arguments(examples=64, batch=8)
    modes = [SCHEDULED, "consistency.schedule={0: {kind: ssp, staleness: 0}, 5: async}", "checkpoint.every_steps=3"]
    result, folder = train(*run, *modes, "trainer.epochs=3", "trainer.steps_per_execution=2")
    assert counting.wrong(folder.checkpoints, epochs=3) == []
    assert result["steps"]["applied"] == 24
    result, _ = train(*run, *modes, "trainer.epochs=4", "trainer.steps_per_execution=2", into=folder)
    assert result["steps"]["applied"] == 32
    assert counting.wrong(folder.checkpoints, epochs=4) == []
