"""Layers whose variables, tables and resources are not ordinary weights, all of them in one model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf
import tf_keras
from tf_keras import layers

from psrun.data.source import ArraySource, Feature

WORDS = tuple(f"w{number}" for number in range(8))
TEXTS = tuple(f"{WORDS[number]} {WORDS[number * 3 % 8]}, and {WORDS[0]}" for number in range(8))
IDS = tuple(2**40 + number for number in range(8))
NUMBERS = np.arange(20.0)


class Examples(ArraySource):
    """A word, a text, an id that int32 does not hold, and a number: each alone determines the label, up to noise."""

    def __init__(self) -> None:
        super().__init__(
            features={
                "word": Feature((1,), tf.string),
                "text": Feature((1,), tf.string),
                "id": Feature((1,), tf.int64),
                "number": Feature((1,), tf.float32),
            },
            task="binary",
            train=examples(256, seed=1),
            evaluation=examples(101, seed=2),
        )


def examples(count: int, *, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Features of shape (count, 1), and labels of the same shape."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(8, size=(count, 1))
    label = (kind % 3 == 0) ^ (rng.uniform(size=(count, 1)) < 0.1)
    features = {
        "word": np.array(WORDS)[kind],
        "text": np.array(TEXTS)[kind],
        "id": np.array(IDS)[kind],
        "number": (2.0 * kind + rng.normal(size=(count, 1))).astype(np.float32),
    }
    return features, label.astype(np.float32)


class OwnTable(layers.Layer):
    """A static table, a table with words of a file, a counter, strings, and random numbers of a user."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(tf.constant(WORDS), tf.range(8, dtype=tf.int64)), default_value=-1
        )
        whole_line, number = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
        lines = tf.lookup.TextFileInitializer(words, tf.string, whole_line, tf.int64, number)
        self.lines = tf.lookup.StaticVocabularyTable(lines, 2)
        self.count = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.words = tf.Variable(WORDS, trainable=False)
        self.generator = tf.random.Generator.from_seed(1)

    def call(self, inputs, training=False):
        if training:
            self.count.assign_add(1)
        noise = self.generator.normal([8]) if training else 0.0
        known = tf.one_hot(self.table.lookup(inputs)[:, 0], 8)
        in_file = tf.one_hot(self.lines.lookup(inputs)[:, 0], 8)
        is_equal = tf.cast(inputs == self.words[tf.newaxis], tf.float32)
        return known + in_file + is_equal + 0.01 * noise


def _adapted(layer: layers.Layer, data: Sequence) -> layers.Layer:
    layer.adapt(np.array(data))
    return layer


def _embedded(rows: int) -> list[layers.Layer]:
    return [layers.Embedding(rows, 4), layers.Flatten()]


def parts(words: str) -> dict[str, list[list[layers.Layer]]]:
    """By feature, chains of layers that make numbers of it.

    Args:
      words: a file with one word per line.
    """
    return {
        "word": [
            [_adapted(layers.StringLookup(num_oov_indices=3), WORDS), *_embedded(11)],
            [_adapted(layers.StringLookup(output_mode="one_hot"), WORDS)],
            [_adapted(layers.StringLookup(output_mode="tf_idf", num_oov_indices=2), [[word] for word in WORDS])],
            [layers.StringLookup(vocabulary=WORDS), *_embedded(9)],
            [layers.StringLookup(vocabulary=words), *_embedded(9)],
            [layers.Hashing(16), *_embedded(16)],
            [OwnTable(words)],
        ],
        "text": [
            [_adapted(layers.TextVectorization(output_sequence_length=4), TEXTS), *_embedded(11)],
            [_adapted(layers.TextVectorization(output_mode="tf_idf"), TEXTS)],
            [layers.TextVectorization(vocabulary=WORDS, output_mode="multi_hot")],
        ],
        "id": [
            [_adapted(layers.IntegerLookup(), IDS), *_embedded(9)],
            [layers.IntegerLookup(vocabulary=IDS, output_mode="count")],
            [layers.Lambda(lambda ids: ids % 8), layers.CategoryEncoding(8, output_mode="multi_hot")],
        ],
        "number": [
            [_adapted(layers.Discretization(num_bins=4), NUMBERS), *_embedded(4)],
            [layers.Discretization(bin_boundaries=[4.0, 8.0], output_mode="one_hot")],
            [_adapted(layers.Normalization(), NUMBERS[:, np.newaxis]), layers.BatchNormalization()],
            [layers.Normalization(mean=10.0, variance=25.0), layers.Dropout(0.1, rng_type="stateful")],
        ],
    }


def _applied(chain: Iterable[layers.Layer], value: tf.Tensor) -> tf.Tensor:
    for layer in chain:
        value = layer(value)
    return tf.cast(value, tf.float32)


def network(source: Examples, *, words: str) -> tf_keras.Model:
    inputs = {name: tf_keras.Input(each.shape, dtype=each.dtype, name=name) for name, each in source.features.items()}
    values = [_applied(chain, inputs[name]) for name, chains in parts(words).items() for chain in chains]
    crossed = layers.HashedCrossing(16)((inputs["word"], inputs["id"]))
    values.append(_applied(_embedded(16), crossed))
    return tf_keras.Model(inputs, layers.Dense(1, activation="sigmoid")(layers.Concatenate()(values)))
