"""The interactions of DLRM beside the plain formulas in float64."""

import numpy as np
import pytest
import tensorflow as tf

from psrun.recsys.models.dlrm import InteractionDense, Interactions

pytestmark = pytest.mark.tensorflow

BATCH, WIDTH, UNITS, DIM = 5, 3, 4, 6


def products_by_hand(vectors: np.ndarray) -> np.ndarray:
    """Of each vector with the vectors before it, for one example."""
    products = [first @ second for index, first in enumerate(vectors) for second in vectors[:index]]
    return np.array(products)


@pytest.fixture(params=[2, 3, 9])
def inputs(request):
    rng = np.random.default_rng(request.param)
    return rng.normal(size=(BATCH, WIDTH)), rng.normal(size=(BATCH, request.param, DIM))


def test_interactions_are_the_products_of_all_pairs(inputs):
    _, vectors = inputs
    expected = np.array([products_by_hand(each) for each in vectors])
    np.testing.assert_allclose(Interactions(dtype=tf.float64)(vectors), expected, rtol=1e-12)


def test_a_dense_layer_on_interactions_has_the_values_and_gradients_of_the_plain_formula(inputs):
    numbers, vectors = map(tf.Variable, inputs)
    layer = InteractionDense(UNITS, "tanh", dtype=tf.float64)
    layer([numbers, vectors])
    interactions = Interactions(dtype=tf.float64)
    expected_shape = [WIDTH + vectors.shape[1] * (vectors.shape[1] - 1) // 2, UNITS]
    assert layer.kernel.shape == expected_shape
    layer.bias.assign(np.random.default_rng(1).normal(size=UNITS))
    variables = [numbers, vectors, layer.kernel, layer.bias]
    with tf.GradientTape() as tape:
        outputs = layer([numbers, vectors])
        loss = tf.reduce_sum(outputs**3)
    with tf.GradientTape() as plain_tape:
        concatenated = tf.concat([numbers, interactions(vectors)], 1)
        plain = tf.tanh(tf.matmul(concatenated, layer.kernel) + layer.bias)
        plain_loss = tf.reduce_sum(plain**3)
    np.testing.assert_allclose(outputs, plain, rtol=1e-12)
    for gradient, expected in zip(tape.gradient(loss, variables), plain_tape.gradient(plain_loss, variables)):
        np.testing.assert_allclose(gradient, expected, rtol=1e-10, atol=1e-12)
