"""A loss function of the user: a step with it is that of `fit` of Keras 3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tf_keras

pytestmark = pytest.mark.tensorflow

NUM_CLASSES = 300


def focal(y_true: Any, y_pred: Any) -> Any:
    from keras import ops

    return ops.mean(y_true * (1 - y_pred) ** 2 + (1 - y_true) * y_pred**2, axis=-1)


def of_classes(y_true: Any, y_pred: Any) -> Any:
    import keras

    return keras.losses.sparse_categorical_crossentropy(y_true, y_pred)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize(
    ("loss", "width", "labels"),
    [
        pytest.param(focal, 1, np.array([[0], [1], [1], [0]]), id="a column"),
        pytest.param(focal, 1, np.array([0, 1, 1, 0]), id="numbers"),
        pytest.param(of_classes, NUM_CLASSES, np.array([0, 257, 299, 258]), id="classes"),
    ],
)
def test_a_function_gets_labels_of_integers_as_in_fit_of_keras3(
    loss: Callable[..., Any], width: int, labels: np.ndarray, policy: str
) -> None:
    import keras

    from psrun.keras3.adapter import Keras3Adapter
    from psrun.models.model import Model
    from psrun.program.adapters import ModelFunction

    def model() -> keras.Model:
        activation = "sigmoid" if width == 1 else "softmax"
        layer = keras.layers.Dense(width, activation, dtype=policy)
        return keras.Sequential([keras.Input((3,)), layer])

    returned = Keras3Adapter().adapt(ModelFunction(lambda: keras, model, seed=1))
    assert isinstance(returned, Model)
    network = returned.network
    alone = model()
    alone.set_weights([weight.numpy() for weight in network.weights])
    features = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)

    alone.compile(optimizer=keras.optimizers.SGD(1.0), loss=loss)
    expected = alone.train_on_batch(features, labels)
    network.compile(optimizer=tf_keras.optimizers.SGD(1.0), loss=loss)
    assert network.train_on_batch(features, labels) == pytest.approx(float(expected), rel=1e-6)
    for own, value in zip(network.weights, alone.get_weights()):
        np.testing.assert_allclose(own.numpy(), value, rtol=1e-5, atol=1e-7)
