"""Optimizers and schedules named by `_target_`: one worker trains as the same model by tf-keras alone."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from support import variables

from psrun.data.source import Feature

pytestmark = pytest.mark.inprocess

EXAMPLES, BATCH, STEPS, EPOCHS = 120, 10, 12, 2
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


class InOrder:
    """Examples in batches that are always the same."""

    def __init__(self) -> None:
        self.features, self.task, self.num_classes, self.facts = {"x": Feature((4,), tf.float32)}, "regression", 1, {}
        self.num_train_examples, self.num_eval_examples = EXAMPLES, 0

    def train(self, *, batch_size: int, seed: tf.Tensor) -> tf.data.Dataset:
        return batches(batch_size)

    def evaluation(self, *, batch_size: int) -> tf.data.Dataset:
        raise NotImplementedError


def batches(batch_size: int) -> tf.data.Dataset:
    rng = np.random.default_rng(7)
    x = rng.normal(size=(EXAMPLES, 4)).astype(np.float32)
    y = (x.sum(axis=1, keepdims=True) + np.sin(x[:, :1])).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices(({"x": x}, y)).batch(batch_size, drop_remainder=True).repeat()


def network(source: object) -> tf_keras.Model:
    """Initial values that do not depend on how a variable is partitioned."""
    x = tf_keras.Input((4,), name="x")
    hidden = tf_keras.layers.Dense(6, activation="tanh", kernel_initializer=tf_keras.initializers.Constant(0.1))(x)
    weights = [np.linspace(-0.5, 0.5, 6, dtype=np.float32)[:, np.newaxis], np.zeros(1, np.float32)]
    last = tf_keras.layers.Dense(1, kernel_initializer=lambda shape, dtype=None, **_: tf.constant(weights[0]))
    return tf_keras.Model({"x": x}, last(hidden))


class WarmUp(tf_keras.optimizers.schedules.LearningRateSchedule):
    """Linear from 0 to `peak` in `steps` steps."""

    def __init__(self, peak: float, steps: int) -> None:
        self.peak, self.steps = peak, steps

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        return self.peak * tf.minimum(1.0, (tf.cast(step, tf.float32) + 1) / self.steps)


DECAY = (
    "optimizer.learning_rate={_target_: tf_keras.optimizers.schedules.ExponentialDecay, "
    "initial_learning_rate: 0.01, decay_steps: 5, decay_rate: 0.7}"
)
WARM_UP = "optimizer.learning_rate={_target_: test_keras_equivalence.WarmUp, peak: 0.05, steps: 9}"


def decay() -> tf_keras.optimizers.schedules.LearningRateSchedule:
    return tf_keras.optimizers.schedules.ExponentialDecay(0.01, decay_steps=5, decay_rate=0.7)


# One step with each optimizer and option is in test_optimizer_steps.py.
CASES = [
    ("custom_loop", ("optimizer._target_=tf_keras.optimizers.AdamW", DECAY, "partitioner=fixed_shards",
                     "+optimizer.weight_decay=0.3", "+optimizer.clipnorm=0.05", "+optimizer.amsgrad=true"),
     lambda: tf_keras.optimizers.AdamW(decay(), weight_decay=0.3, clipnorm=0.05, amsgrad=True)),
    ("fit", ("optimizer._target_=tf_keras.optimizers.legacy.Adam", WARM_UP),
     lambda: tf_keras.optimizers.legacy.Adam(WarmUp(0.05, 9))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("trainer", "pieces", "optimizer"),
    [pytest.param(*case, marks=pytest.mark.thorough if index else ()) for index, case in enumerate(CASES)],
)
def test_one_worker_trains_as_keras_alone(train, tmp_path, trainer, pieces, optimizer):
    alone = network(None)
    alone.compile(optimizer=optimizer(), loss="mean_squared_error", metrics=["mean_absolute_error"])
    history = alone.fit(batches(BATCH), epochs=EPOCHS, steps_per_epoch=STEPS, verbose=0).history
    path = tf.train.Checkpoint(model=alone, optimizer=alone.optimizer).write(str(tmp_path / "alone"))
    reader = tf.train.load_checkpoint(path)
    expected = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if "GRAPH" not in name}

    result, folder = train(
        "model=dense", "~model.hidden_units", "model._target_=test_keras_equivalence.network", "evaluation=none",
        "~data.num_features", "~data.num_train_examples", "~data.num_eval_examples", "~data.noise",
        "data._target_=test_keras_equivalence.InOrder", f"data.global_batch_size={BATCH}", f"trainer={trainer}",
        *pieces,
        num_workers=1,
    )  # fmt: skip
    held = variables(folder)
    assert len(expected) > 4
    for name, values in expected.items():
        np.testing.assert_allclose(held[name], values, **CLOSE, err_msg=name)
    for name, value in {"loss": "loss", "mae": "mean_absolute_error"}.items():
        assert result["metrics"][name] == pytest.approx(history[value][-1], rel=1e-5)
