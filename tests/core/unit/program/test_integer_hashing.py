"""Ids for integers with `num_buckets`, and checkpoints in which integers had other ids."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from psrun.checkpoint.storage import Contents
from psrun.data.source import ArraySource, Feature
from psrun.errors import ConfigError
from psrun.models.model import IntegerHashing, Model, prepared

pytestmark = pytest.mark.tensorflow

INTEGERS = [0, 1, 6, 7, 8, -1, 10**6, 2**40 + 1, 2**63 - 1, -(2**63)]


def by_hand(number: int, num_buckets: int) -> int:
    if 0 <= number < num_buckets:
        return number
    upper = (number * 0x9E3779B97F4A7C15) % 2**64 >> 32
    return upper * num_buckets >> 32


@pytest.mark.parametrize("num_buckets", [1, 7, 20_000, 2**31])
def test_ids_are_those_by_hand(num_buckets):
    expected = [by_hand(number, num_buckets) for number in INTEGERS]
    ids = IntegerHashing(num_buckets)(np.array([INTEGERS]))
    assert ids.numpy().tolist() == [expected]
    lists = IntegerHashing(num_buckets)(tf.ragged.constant([INTEGERS[:3], [], INTEGERS[3:]], dtype=tf.int64))
    assert lists.to_list() == [expected[:3], [], expected[3:]]


@pytest.mark.parametrize("spacing", [1, 10, 1000, 2**20, 2**32])
def test_integers_at_equal_distances_do_not_crowd_in_few_ids(spacing):
    numbers = np.arange(10_000) * spacing + 2**21
    ids = IntegerHashing(10_000)(numbers).numpy()
    assert len(np.unique(ids)) > 0.6 * len(numbers)  # random ids: 1 - 1/e


def source(dtype: tf.DType) -> ArraySource:
    features = {"item": Feature((1,), dtype, num_buckets=7), "word": Feature((1,), tf.string, num_buckets=7)}
    values = np.array([[3], [4]]) if dtype.is_integer else np.array([["3"], ["4"]])
    words = np.array([["a"], ["b"]])
    examples = ({"item": values, "word": words}, np.array([[0.0], [1.0]], np.float32))
    return ArraySource(features=features, task="binary", train=examples, evaluation=examples)


def contents(dtype: tf.DType) -> Contents:
    preprocessing, _ = prepared(source(dtype))
    model = Model(tf_keras.Sequential(), preprocessing)
    return Contents("Adagrad", {}, {}, [], {}, hashed_integers=model.hashed_integers)


def test_a_checkpoint_with_ids_of_integers_as_text_is_refused():
    of_integers = contents(tf.int64)
    of_integers.check("ckpt-1", of_integers)
    as_before = replace(of_integers, hashed_integers={})
    with pytest.raises(ConfigError, match=r"model: has other ids for integers than the checkpoint ckpt-1: item; .*"):
        as_before.check("ckpt-1", of_integers)


def test_strings_have_the_ids_of_earlier_versions():
    of_strings = contents(tf.string)
    as_before = replace(of_strings, hashed_integers={})
    as_before.check("ckpt-1", of_strings)
    preprocessing, _ = prepared(source(tf.string))
    ids = preprocessing({"item": tf.constant([["3"]]), "word": tf.constant([["a"]])})
    assert ids["word"].numpy().tolist() == [[tf.strings.to_hash_bucket_fast("a", 7).numpy()]]
