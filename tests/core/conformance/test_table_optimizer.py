"""One optimizer for tables and another for dense weights: as by NumPy, in every mode, and in checkpoints."""

from __future__ import annotations

from typing import Any

import counting
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
import two_optimizers
from outcomes import check_equal, events
from support import SAME
from two_optimizers import by_norm

from psrun.checkpoint.checkpoints import logical_checkpoint
from psrun.checkpoint.storage import Contents, Store
from psrun.errors import ConfigError
from psrun.results.run_folder import RunFolder
from psrun.tf_internals.keras import CompositeOptimizer, parts_of

pytestmark = pytest.mark.inprocess

ADAM = ("optimizer=adam", "optimizer.learning_rate=0.01")
ROWWISE = (*ADAM, "table_optimizer=rowwise_adagrad", "table_optimizer.learning_rate=0.05")
ONE = "trainer.steps_per_execution=1"
SYNC = ("consistency=sync", ONE)
DECAY = "{{_target_: tf_keras.optimizers.schedules.ExponentialDecay, initial_learning_rate: {}, decay_steps: {}, "
DECAY += "decay_rate: 0.5}}"
LOWER = ("reduce_lr.metric=loss", "reduce_lr.mode=min", "reduce_lr.patience=1", "reduce_lr.min_delta=99")
ANEW = "the slots of tables start anew"


def values(folder: RunFolder) -> dict[str, np.ndarray]:
    """What the newest checkpoint holds, by the names in its manifest."""
    store = Store(folder.checkpoints)
    step = store.steps()[0]
    reader: Any = tf.train.load_checkpoint(store.prefix(step))
    return {name: reader.get_tensor(key) for name, key in store.manifest(step).contents.keys.items()}


def equal(folder: RunFolder, expected: dict[str, np.ndarray]) -> None:
    found = values(folder)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-6, err_msg=name)


def warnings(folder: RunFolder) -> list[str]:
    return [event["message"] for event in events(folder, "warning")]


@pytest.mark.parametrize(
    ("more", "num_workers"),
    [
        ((*SYNC, "partitioner=fixed_shards"), 2),
        pytest.param(("consistency=async",), 1, marks=pytest.mark.thorough),
        pytest.param(("consistency=async", "trainer=fit"), 1, marks=pytest.mark.thorough),
        pytest.param((*SYNC, "+model.keras_layer=true"), 2, marks=pytest.mark.thorough),
    ],
)
def test_a_run_is_as_by_numpy(train, more, num_workers):
    rowwise = two_optimizers.Rowwise()
    ids = two_optimizers.IDS if "+model.keras_layer=true" in more else two_optimizers.PLACES
    expected = two_optimizers.by_numpy(rowwise, steps=6, ids=ids)
    _, folder = train(*two_optimizers.ARGUMENTS, *ROWWISE, *more, num_workers=num_workers)
    equal(folder, {**expected, "accumulator/words/embeddings": rowwise.accumulator})
    (note,) = (event["text"] for event in events(folder, "note"))
    assert note == "RowwiseAdagrad updates words/embeddings; Adam updates all other variables"
    (epoch,) = events(folder, "epoch")
    assert (epoch["learning_rate"], epoch["table_learning_rate"]) == pytest.approx((0.01, 0.05))


def _decaying_sgd(rows: np.ndarray, gradient: np.ndarray, step: int) -> None:
    """All rows lose 0.3 times the learning rate in each step."""
    rows -= rows * 0.3 * 0.05
    rows -= gradient * 0.05


DECAYING_SGD = ("table_optimizer=sgd", "table_optimizer.learning_rate=0.05", "+table_optimizer.weight_decay=0.3")


@pytest.mark.parametrize(
    ("options", "update_table", "numbers"),
    [
        ((*ROWWISE, "+optimizer.clipnorm=0.2"), two_optimizers.Rowwise(),
         {"clip": lambda gradients: [by_norm([each], 0.2)[0] for each in gradients]}),
        ((*ROWWISE, "+optimizer.clipvalue=0.1"), two_optimizers.Rowwise(),
         {"clip": lambda gradients: [np.clip(each, -0.1, 0.1) for each in gradients]}),
        ((*ROWWISE, "+optimizer.weight_decay=0.3"), two_optimizers.Rowwise(), {"decay": 0.3}),
        ((*ADAM, *DECAYING_SGD), _decaying_sgd, {}),
    ],
    ids=["clipnorm", "clipvalue", "decay of dense weights", "decay of tables"],
)  # fmt: skip
def test_all_gradients_are_clipped_as_for_dense_weights_and_each_decays_its_own(train, options, update_table, numbers):
    expected = two_optimizers.by_numpy(update_table, steps=6, **numbers)
    _, folder = train(*two_optimizers.ARGUMENTS, *options, "partitioner=fixed_shards", num_workers=1)
    equal(folder, expected)


def test_each_has_its_schedule_and_gradients_are_clipped_together(train):
    """By one worker: of several, Keras takes the norm of the rows before it adds them up."""
    rates = lambda first, steps: lambda step: first * 0.5 ** (step / steps)  # noqa: E731
    rowwise = two_optimizers.Rowwise(rates(0.2, 1))
    expected = two_optimizers.by_numpy(rowwise, steps=6, rate=rates(0.02, 3), clip=lambda all: by_norm(all, 0.5))
    both = (
        "optimizer=adam", f"optimizer.learning_rate={DECAY.format(0.02, 3)}", "+optimizer.global_clipnorm=0.5",
        "table_optimizer=rowwise_adagrad", f"table_optimizer.learning_rate={DECAY.format(0.2, 1)}",
    )  # fmt: skip
    _, folder = train(*two_optimizers.ARGUMENTS, *both, "partitioner=fixed_shards", num_workers=1)
    equal(folder, expected)
    (epoch,) = events(folder, "epoch")
    assert (epoch["learning_rate"], epoch["table_learning_rate"]) == pytest.approx(
        (0.02 * 0.5 ** (5 / 3), 0.2 * 0.5**5)
    )


@pytest.mark.thorough
def test_ftrl_for_tables_is_as_by_numpy(train):
    expected = two_optimizers.by_numpy(two_optimizers.Ftrl(), steps=6)
    _, folder = train(*two_optimizers.ARGUMENTS, *ADAM, "table_optimizer=ftrl", *SYNC)
    equal(folder, expected)


@pytest.mark.thorough
def test_in_one_process_is_as_by_numpy(train):
    expected = two_optimizers.by_numpy(two_optimizers.Rowwise(), steps=6)
    _, folder = train(*two_optimizers.ARGUMENTS, *ROWWISE, "cluster=none")
    equal(folder, expected)


@pytest.mark.thorough
def test_a_scaled_loss_gives_the_same_numbers(train):
    expected = two_optimizers.by_numpy(two_optimizers.Rowwise(), steps=6)
    tf_keras.mixed_precision.set_global_policy("mixed_float16")  # of the model; its layers are of float64
    try:
        _, folder = train(*two_optimizers.ARGUMENTS, *ROWWISE, "cluster=none")
        equal(folder, expected)
        changed = ("table_optimizer=sparse_adagrad", "trainer.epochs=2")
        train(*two_optimizers.ARGUMENTS, *ADAM, *changed, "cluster=none", into=folder)
    finally:
        tf_keras.mixed_precision.set_global_policy("float32")
    (said,) = [text for text in warnings(folder) if ANEW in text]
    assert said.startswith("the optimizer is LossScaleOptimizerV3, SparseAdagrad for tables")


# -- every mode: tables and the dense variable count the examples by SGD with a rate of 1

MODES = {
    "async": ([], 1, None),
    "packed": (["trainer.steps_per_execution=4", "trainer.dense_sync_every=2"], 1, None),
    "bounded_delay": (["consistency=bounded_delay"], 1, None),
    "ssp": (["consistency=ssp", "consistency.staleness=1"], 1, None),
    "sync": (["consistency=sync", ONE], 2, None),
    "gba": (["consistency=gba", ONE], 2, None),
    "k_async": (["consistency=k_async", "consistency.gradients=2", ONE], 2, None),
    "hybrid": (["consistency=hybrid", "consistency.tolerance=1", ONE], 2, 1),
    "scheduled": (["consistency=scheduled", "consistency.schedule={0: sync}", ONE], 2, None),
}


@pytest.mark.parametrize(
    "mode", ["hybrid", *(pytest.param(mode, marks=pytest.mark.thorough) for mode in MODES if mode != "hybrid")]
)
def test_each_example_is_applied_once_by_each_optimizer(train, mode):
    options, gradients, of_rows = MODES[mode]
    run = [each for each in counting.arguments(examples=256, batch=8) if not each.startswith("optimizer")]
    rates = (
        "optimizer=sgd",
        "optimizer.learning_rate=1",
        "table_optimizer=sparse_sgd",
        "table_optimizer.learning_rate=1",
    )
    _, folder = train(*run, *rates, *options, "trainer.epochs=3")
    assert counting.wrong(folder.checkpoints, epochs=3, gradients=gradients, of_rows=of_rows) == []


# -- checkpoints


def _sgd(*, two: bool) -> Any:
    of_dense = tf_keras.optimizers.SGD(0.5)
    if not two:
        return of_dense
    return CompositeOptimizer(of_dense, tf_keras.optimizers.SGD(0.25), lambda variables: variables[:1])


@pytest.mark.parametrize("with_dense", [False, True])
@pytest.mark.parametrize("two", [False, True])
def test_the_rate_of_dense_weights_is_one_value_for_one_optimizer_and_for_two(two, with_dense, tmp_path):
    """Also where all else has the same keys: a callback may have lowered it."""
    inputs = tf_keras.Input((2,))
    outputs = tf_keras.layers.Flatten()(tf_keras.layers.Embedding(3, 2, name="table")(inputs))
    network = tf_keras.Model(inputs, tf_keras.layers.Dense(1)(outputs) if with_dense else outputs)
    before, after = _sgd(two=two), _sgd(two=not two)
    for optimizer in (before, after):
        optimizer.build(network.trainable_variables)
    before.learning_rate = 0.125
    first, second = logical_checkpoint(network, before), logical_checkpoint(network, after)
    saving = first.saving()
    saving.stage(copies=False)
    saving.write(str(tmp_path / "first"))
    second.restore(str(tmp_path / "first"), Contents.of("SGD", [], first.keys))
    rates = [float(part.learning_rate) for part in parts_of(after)]
    assert rates == ([0.125] if two else [0.125, 0.25])


def test_a_run_goes_on_in_another_layout(train, tmp_path):
    """In the middle, and from one optimizer to two: dense slots and the step go on, the slots of tables start anew."""
    rowwise = two_optimizers.Rowwise()
    expected = two_optimizers.by_numpy(rowwise, steps=12)
    run = (*two_optimizers.ARGUMENTS, *ROWWISE, *SYNC)
    _, folder = train(*run)
    train(*run, "partitioner=fixed_shards", "trainer.epochs=2", into=folder)
    equal(folder, {**expected, "accumulator/words/embeddings": rowwise.accumulator})
    assert not any(ANEW in text for text in warnings(folder))


def test_from_one_optimizer_to_two_and_back(train):
    rowwise = two_optimizers.Rowwise()
    adam = two_optimizers.Adam((two_optimizers.ROWS, two_optimizers.DIM))

    def update_table(rows: np.ndarray, gradient: np.ndarray, step: int) -> None:
        (adam if step < 6 else rowwise)(rows, gradient, step)

    expected = two_optimizers.by_numpy(update_table, steps=12)
    run = (*two_optimizers.ARGUMENTS, *SYNC)
    _, folder = train(*run, *ADAM)
    train(*run, *ROWWISE, "trainer.epochs=2", into=folder)
    equal(folder, {**expected, "accumulator/words/embeddings": rowwise.accumulator})
    (said,) = [text for text in warnings(folder) if ANEW in text]
    assert said.startswith("the optimizer is Adam, RowwiseAdagrad for tables, but the checkpoint")
    train(*run, *ADAM, "trainer.epochs=3", into=folder)
    assert len([text for text in warnings(folder) if ANEW in text]) == 2
    with pytest.raises(ConfigError, match="FTRL computes a row from its slots, which start anew"):
        train(*run, *ADAM, "table_optimizer=ftrl", "trainer.epochs=4", into=folder)


@pytest.mark.thorough
def test_tables_of_a_stack_start_anew_and_go_on_as_single_tables_do(train):
    run = (
        "~model.embedding_dim", "~data.num_train_examples", "~data.num_eval_examples", "data.visitation=once",
        "data._target_=embeddings.Basket", "data.global_batch_size=8", "evaluation=none",
        "model._target_=embeddings.basket",
    )  # fmt: skip
    apart, together = ("cluster=none", "+model.stack=false"), ("partitioner=none", "+model.stack=auto")
    folders = []
    for first, second, third in ((apart, apart, apart), (together, apart, together), (apart, together, apart)):
        _, folder = train(*run, *ADAM, *first, "trainer.epochs=1", num_workers=1)
        train(*run, *ROWWISE, *second, "trainer.epochs=2", num_workers=1, into=folder)
        train(*run, *ROWWISE, *third, "trainer.epochs=3", num_workers=1, into=folder)
        assert len([text for text in warnings(folder) if ANEW in text]) == 1
        folders.append(folder)
    whole = values(folders[0])
    assert {"accumulator/shop/embeddings", "m/dense/kernel"} <= {*whole}
    for folder in folders[1:]:
        check_equal(values(folder), whole, **SAME)


def test_the_rates_of_both_fall_and_a_resumed_run_has_them(train):
    run = (*two_optimizers.ARGUMENTS, *ROWWISE, *LOWER, "cluster=none")
    _, folder = train(*run, "trainer.epochs=2")
    _, folder = train(*run, "trainer.epochs=3", into=folder)
    rates = [(event["learning_rate"], event["table_learning_rate"]) for event in events(folder, "epoch")]
    assert rates == [pytest.approx((0.01, 0.05)), pytest.approx((0.01, 0.05)), pytest.approx((0.005, 0.025))]
    changes = [(event["value"], event["reason"]) for event in events(folder, "learning_rate")]
    assert [value for value, _ in changes] == pytest.approx([0.005, 0.025, 0.0025, 0.0125])
    assert changes[1][1] == f"table_optimizer: {changes[0][1]}"
    train(*run, "table_optimizer.learning_rate=0.1", "trainer.epochs=4", into=folder)
    last = events(folder, "epoch")[-1]
    assert (last["learning_rate"], last["table_learning_rate"]) == pytest.approx((0.0025, 0.1))


@pytest.mark.parametrize(
    ("then", "expected"),
    [
        (("table_optimizer.learning_rate=0.05",), 0.05),
        (("table_optimizer.learning_rate=0.05", *LOWER), 0.05),
        (("~table_optimizer.learning_rate",), 0.001),
    ],
)
def test_another_optimizer_of_tables_begins_with_its_own_rate(train, then, expected):
    run = (*two_optimizers.ARGUMENTS, *ADAM, "cluster=none")
    _, folder = train(*run, *ROWWISE[2:], *LOWER, "trainer.epochs=3")
    train(*run, "table_optimizer=sparse_adagrad", *then, "trainer.epochs=4", into=folder)
    last = events(folder, "epoch")[-1]
    assert (last["learning_rate"], last["table_learning_rate"]) == pytest.approx((0.0025, expected))
