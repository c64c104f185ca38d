"""The inputs of a model of Keras 3 against the features of the data."""

from __future__ import annotations

import pytest
import tensorflow as tf

from psrun.errors import ConfigError
from psrun.program import batch_checks

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize("by_name", [True, False])
def test_an_input_that_the_features_lack_is_named(by_name: bool) -> None:
    import keras

    from psrun.keras3.adapter import Keras3Adapter
    from psrun.program.adapters import ModelFunction

    def model() -> keras.Model:
        user = keras.Input((2,), name="user")
        numbers = keras.Input((2,), name="x" if by_name else "nums")
        inputs = {"user": user, "nums": numbers} if by_name else [user, numbers]
        return keras.Model(inputs, keras.layers.Add()([user, numbers]))

    network = Keras3Adapter().adapt(ModelFunction(lambda: keras, model, seed=1)).network
    features = {"user": tf.zeros((4, 2)), "x": tf.zeros((4, 2))}
    specs = tf.nest.map_structure(tf.type_spec_from_value, features)
    with pytest.raises(ConfigError) as raised, batch_checks.checking_inputs(network, specs):
        network(features)
    (problem,) = raised.value.problems
    expected = "has the input nums, but the features are user, x; give both the same name"
    assert (problem.key, problem.message) == ("model", expected)
