"""Optimizers that psrun makes, or refuses since their numbers would differ from those of Keras alone."""

from __future__ import annotations

import pytest
import tensorflow as tf
import tf_keras
from support import run_config
from user_optimizers import FailsLate, Lamb, Noisy

from psrun.data import loading
from psrun.errors import ConfigError
from psrun.optimizers import sparse
from psrun.program import make_optimizer
from psrun.roles import planner
from psrun.tf_internals import keras

pytestmark = pytest.mark.tensorflow

CUT = ("cluster=local", "partitioner=fixed_shards", "model=dense", "data=regression")
OWN = "optimizer._target_=user_optimizers."


def planned(*pieces: str) -> planner.Plan:
    run = run_config(*pieces)
    return planner.make(run, loading.load_source(run))


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


def test_an_own_optimizer_that_steps_by_row_is_allowed():
    assert planned(*CUT, f"{OWN}ByRow").warnings == []


def test_an_optimizer_that_cannot_be_tried_is_a_warning():
    (warning,) = planned(*CUT, f"{OWN}Choosy").warnings
    assert "KeyError: 'prediction'" in warning


def test_an_optimizer_like_that_of_a_model_can_be_made():
    own = Lamb(0.1, clipnorm=0.5)
    own.build([tf.Variable([1.0])])
    like = make_optimizer.like(own, run_config())
    assert (type(like), like.clipnorm) == (Lamb, 0.5)
    assert not make_optimizer.equal_in_shards(lambda: make_optimizer.like(own, run_config()))


def test_a_rule_for_stale_updates_that_is_never_called_is_a_warning():
    (warning,) = planned(*CUT, f"{OWN}Fading", "optimizer.learning_rate=0.1").warnings
    assert warning == "late_rate of Fading is never called; set optimizer.staleness_aware=true"
    aware = ("optimizer.staleness_aware=true", "optimizer.learning_rate=0.1")
    assert planned(*CUT, "optimizer=sparse_adagrad", f"{OWN}Fading", *aware).warnings == []


def test_a_rule_for_stale_updates_that_raises_is_named_with_its_line():
    optimizer = FailsLate(0.1, staleness_aware=True)
    raises = pytest.raises(
        ConfigError, match=r"late_rate of FailsLate failed: TypeError: .*user_optimizers.py, line \d+"
    )
    with raises, sparse.applying_late(optimizer, tf.constant(2)):
        _ = optimizer.learning_rate
