"""What psrun refuses of optimizers, by the key that they came with."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import tensorflow as tf
import tf_keras
from support import run_config

from psrun.errors import ConfigError
from psrun.program import make_optimizer
from psrun.tf_internals import keras

pytestmark = pytest.mark.tensorflow

BASKET = (
    "~model.embedding_dim", "~data.num_train_examples", "~data.num_eval_examples", "data._target_=embeddings.Basket",
    "data.global_batch_size=8", "evaluation=none", "model._target_=embeddings.basket",
)  # fmt: skip


class Lamb(tf_keras.optimizers.SGD):
    """The length of a step depends on the norm of the whole variable."""

    def update_step(self, gradient: Any, variable: Any) -> None:
        gradient = tf.convert_to_tensor(gradient)
        trust = tf.norm(variable) / (tf.norm(gradient) + 1e-6)
        variable.assign_sub(self.learning_rate * trust * gradient)


class ByRow(tf_keras.optimizers.Adam):
    """Steps by row."""


class Noisy(tf_keras.optimizers.SGD):
    def update_step(self, gradient: Any, variable: Any) -> None:
        super().update_step(tf.convert_to_tensor(gradient) + tf.random.normal(variable.shape), variable)


class Choosy(tf_keras.optimizers.SGD):
    def build(self, var_list: Any) -> None:
        if not any("prediction" in variable.name for variable in var_list):
            raise KeyError("prediction")
        super().build(var_list)


def with_averages(learning_rate: float) -> Any:
    return tf_keras.optimizers.Adam(learning_rate, use_ema=True)


def centralized(learning_rate: float) -> Any:
    """The mean of a gradient over the rows is taken away."""
    return tf_keras.optimizers.legacy.SGD(
        learning_rate,
        gradient_transformers=[
            lambda pairs: [(each - tf.reduce_mean(tf.convert_to_tensor(each), 0), variable) for each, variable in pairs]
        ],
    )


def nothing(learning_rate: float) -> None:
    """A function that forgot to return its optimizer."""


def scaled_nadam() -> Any:
    return tf_keras.mixed_precision.LossScaleOptimizer(tf_keras.optimizers.Nadam())


def network(source: Any, *, kind: str) -> Any:
    """With a second optimizer."""
    made = {"Adafactor": tf_keras.optimizers.Adafactor, "Averaged": lambda: with_averages(0.1)}
    model = tf_keras.Sequential([tf_keras.Input((10,)), tf_keras.layers.Dense(4, name="dense")])
    model.add(tf_keras.layers.Dense(1, name="prediction"))
    model.second = made[kind]()
    return model


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("with_averages", "optimizer: Adam has use_ema=True, but evaluations, checkpoints and exports use the weights"),
        ("scaled_nadam", "optimizer: Nadam of tf-keras counts steps .* use tf_keras.optimizers.legacy.Nadam, or Adam"),
    ],
)
def test_an_optimizer_that_keras_does_not_keep_its_word_about_is_refused(target, message):
    pieces = [f"optimizer._target_=test_make_optimizer.{target}"]
    pieces += ["~optimizer.learning_rate"] if target == "scaled_nadam" else []
    with pytest.raises(ConfigError, match=message):
        make_optimizer.make_optimizer(run_config(*pieces))
    # A run of an earlier release can be evaluated and exported.
    make_optimizer.make_optimizer(run_config(*pieces, "mode=export", "resume=here"))


@pytest.mark.parametrize("name", ["test_make_optimizer.nothing", "tensorflow.compat.v1.train.AdagradOptimizer"])
def test_what_is_no_optimizer_is_refused(name):
    with pytest.raises(ConfigError, match=rf"optimizer._target_: {name} returned .*, not an optimizer of tf_keras"):
        make_optimizer.make_optimizer(run_config(f"optimizer._target_={name}"))


def test_optimizers_of_a_model_are_found():
    inner, outer, compiled = (tf_keras.optimizers.SGD() for _ in range(3))
    layer, network = tf_keras.layers.Dense(1), tf_keras.Sequential()
    layer.own = {"one": inner}
    network.add(layer)
    network.several = [outer]
    network.compile(compiled, "mse")
    assert {id(each) for each in keras.optimizers_within(network)} == {id(inner), id(outer), id(compiled)}
    assert {id(each) for each in make_optimizer.others_of(network)} == {id(inner), id(outer)}


@pytest.mark.parametrize(
    ("make", "by_row"),
    [
        (lambda: tf_keras.optimizers.Adafactor(0.1), False),
        (lambda: tf_keras.optimizers.Adam(0.1), True),
        (lambda: Lamb(0.1), False),
        (lambda: Noisy(0.1), True),
    ],
)
def test_steps_of_shards_are_compared_with_those_of_the_whole(make, by_row):
    assert make_optimizer.equal_in_shards(make) == by_row


CUT = ("cluster=local", "partitioner=fixed_shards", "model=dense", "data=regression")
STACKED = (*BASKET, "cluster=none")
OWN = "optimizer._target_=test_make_optimizer."


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ((*CUT, "optimizer._target_=tf_keras.optimizers.Adafactor"),
         "partitioner: is fixed_shards, which cuts dense/kernel, but Adafactor .* all rows .* set partitioner=none"),
        ((*CUT, f"{OWN}Lamb", "optimizer.learning_rate=1e-9"), "which cuts dense/kernel, but Lamb"),
        ((*CUT, f"{OWN}ByRow"), None),
        ((*CUT, f"{OWN}centralized"), "which cuts dense/kernel, but SGD computes"),
        ((*STACKED, f"{OWN}Lamb"), "optimizer: Lamb computes .* several tables .*item.*; use stack=false, or choose"),
        ((*STACKED, f"{OWN}Lamb", "+model.stack=false"), None),
    ],
)  # fmt: skip
def test_an_optimizer_that_needs_all_rows_is_refused_for_shards_and_stacks(pieces, message):
    from psrun.data import load
    from psrun.roles import planner

    run = run_config(*pieces)
    with pytest.raises(ConfigError, match=message) if message else contextlib.nullcontext():
        planner.make(run, load.load_source(run))


def test_an_optimizer_that_cannot_be_tried_is_a_warning():
    from psrun.data import load
    from psrun.roles import planner

    run = run_config(*CUT, f"{OWN}Choosy")
    (warning,) = planner.make(run, load.load_source(run)).warnings
    assert warning.startswith("Choosy could not be tried on other variables (KeyError: 'prediction')")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("Adafactor", "partitioner: is fixed_shards, which cuts dense/kernel, but Adafactor"),
        ("Averaged", "model: Adam has use_ema=True"),
    ],
)
def test_optimizers_that_a_model_brings_are_checked_as_that_of_the_run(kind, message):
    from psrun.data import load
    from psrun.roles import planner

    run = run_config(*CUT, "~model.hidden_units", "model._target_=test_make_optimizer.network", f"+model.kind={kind}")
    with pytest.raises(ConfigError, match=message):
        planner.make(run, load.load_source(run))


def test_an_optimizer_like_that_of_a_model_can_be_made():
    own = Lamb(0.1, clipnorm=0.5)
    own.build([tf.Variable([1.0])])
    like = make_optimizer.like(own, run_config())
    assert (type(like), like.clipnorm) == (Lamb, 0.5)
    assert not make_optimizer.equal_in_shards(lambda: make_optimizer.like(own, run_config()))
