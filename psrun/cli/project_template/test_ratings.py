"""Tests of the data and the model."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from ratings import Ratings, factorization


def test_the_model_returns_a_probability_for_each_example() -> None:
    source = Ratings(num_train_examples=100, num_eval_examples=30)
    examples, _ = next(iter(source.evaluation(batch_size=30)))
    predictions = factorization(source)(examples)
    assert predictions.shape == (30, 1)
    assert np.all((predictions >= 0) & (predictions <= 1))


def test_the_same_seed_makes_the_same_examples() -> None:
    first, second = (Ratings(num_train_examples=100, num_eval_examples=30, seed=7) for _ in range(2))
    batches = [source.train(batch_size=10, seed=tf.constant(1, tf.int64)) for source in (first, second)]
    for one, other in zip(*(batch.take(2) for batch in batches)):
        np.testing.assert_array_equal(one[1], other[1])
