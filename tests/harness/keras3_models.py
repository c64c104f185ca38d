"""Models of Keras 3 and of tf-keras with the same layers, as people write them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tf_keras

from psrun import layers
from psrun.data.source import ArraySource, Feature
from psrun.keras3 import layers as keras3
from psrun.models.model import Model


class Sequences(ArraySource):
    """Sequences of 6 words of 40, and a number; the label is whether a word below 10 occurs."""

    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        words = rng.integers(40, size=(96, 6))
        features = {"words": words, "number": rng.normal(size=(96, 1)).astype(np.float32)}
        label = (words < 10).any(axis=1, keepdims=True).astype(np.float32)
        super().__init__(
            features={"words": Feature((6,), tf.int64), "number": Feature((1,), tf.float32)}, task="binary",
            train=(features, label), evaluation=(features, label),
        )  # fmt: skip


def twin(source, *, library: str = "keras", kind: str = "functional", regularizer: str | None = "l2") -> Any:
    """The same small network in one of the two libraries, from equal weights."""
    k = keras if library == "keras" else tf_keras
    constant = k.initializers.Constant

    def layers():
        yield k.layers.Dense(6, activation="tanh", kernel_initializer=constant(0.1), name="first")
        yield k.layers.BatchNormalization(name="normal")
        yield k.layers.Dense(1, kernel_initializer=constant(0.3), name="last", kernel_regularizer=regularizer)

    if kind == "sequential":
        return k.Sequential([*layers()])
    inputs = {name: k.Input(feature.shape, dtype="float32", name=name) for name, feature in source.features.items()}
    tensor = next(iter(inputs.values()))
    for layer in layers():
        tensor = layer(tensor)
    return k.Model(inputs, tensor)


def reading(source, *, library: str = "keras") -> Any:
    """Words through an Embedding, attention and an LSTM, from equal weights."""
    k = keras if library == "keras" else tf_keras
    words, number = k.Input((6,), dtype="int64", name="words"), k.Input((1,), name="number")
    seeded = weights_of(k)
    vectors = k.layers.Embedding(40, 4, embeddings_initializer=seeded(1), name="word")(words)
    seen = k.layers.MultiHeadAttention(2, 3, kernel_initializer=seeded(2), name="attention")(vectors, vectors)
    seen = k.layers.LayerNormalization(name="normal")(seen + vectors)
    last = k.layers.LSTM(3, kernel_initializer=seeded(3), recurrent_initializer=seeded(4), name="lstm")(seen)
    both = k.layers.Concatenate()([last, number])
    return k.Model([words, number], k.layers.Dense(1, "sigmoid", kernel_initializer=seeded(5), name="score")(both))


def weights_of(k: Any) -> Any:
    """Initializers of a library by a number, whose values are the same in both."""

    def seeded(number: int) -> Any:
        class Fixed(k.initializers.Initializer):
            def __call__(self, shape, dtype=None, **_):
                return tf.constant(np.random.default_rng(number).normal(scale=0.4, size=tuple(shape)), dtype)

        return Fixed()

    return seeded


class Subclassed(keras.Model):
    """A model that makes its variables when it is called, with Dropout, a loss in a layer and a psrun table."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.word = keras3.Embedding(20_000, 4, combiner=None)
        self.rest = [keras.layers.Dense(5, "relu"), keras.layers.Dropout(dropout), keras.layers.BatchNormalization()]
        self.score = keras.layers.Dense(1, "sigmoid")

    def call(self, inputs, training=None):
        tensor = keras.ops.mean(self.word(inputs["words"]), axis=1)
        for layer in self.rest:
            tensor = layer(tensor, training=training) if layer is not self.rest[0] else layer(tensor)
        self.add_loss(0.01 * keras.ops.mean(tensor**2))
        return self.score(keras.ops.concatenate([tensor, inputs["number"]], axis=1))


def subclassed(source, *, dropout: float = 0.4) -> keras.Model:
    return Subclassed(dropout)


def adapted(source) -> keras.Model:
    """A layer whose kernel stays as it is, beside one of rank 2 that is trained; computed by the global policy."""
    inputs = {name: keras.Input(feature.shape, name=name) for name, feature in source.features.items()}
    layer = keras.layers.Dense(6, "tanh", kernel_initializer=keras.initializers.Constant(0.1), name="adapted")
    tensor = keras.layers.Dense(1, name="last")(layer(next(iter(inputs.values()))))
    layer.enable_lora(2)
    return keras.Model(inputs, tensor)


def compiled(source) -> keras.Model:
    model = reading(source)
    model.compile(loss=keras.losses.BinaryCrossentropy(), metrics=["accuracy", keras.metrics.AUC(name="area")])
    return model


class Squares(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)


def bias(y_true, y_pred):
    return keras.ops.mean(y_pred - y_true, axis=-1)


def with_own_loss(source) -> keras.Model:
    """A loss and a metric of the user's, of operations of Keras 3."""
    model = reading(source)
    model.compile(loss=Squares(), metrics=["mse", bias])
    return model


def tables(source, *, library: str = "keras") -> Model:
    """A collection of stacked tables."""
    layer = keras3.EmbeddingCollection(
        [
            {"name": "a", "features": ("words",), "num_ids": 50, "dim": 4},
            {"name": "b", "features": ("others",), "num_ids": 60, "dim": 4},
        ],
        combiner="mean",
    )
    words, number = keras.Input((6,), dtype="int64", name="words"), keras.Input((1,), name="number")
    rows = layer({"words": words, "others": words + 1})
    both = keras.layers.Concatenate()([rows["words"], rows["others"], number])
    return Model(keras.Model([words, number], keras.layers.Dense(1, "sigmoid")(both)))


def sharded(source, *, library: str = "keras") -> Any:
    """A table of psrun and a layer with statistics; layers have the names that Keras gives them."""
    k, own = (keras, keras3) if library == "keras" else (tf_keras, layers)
    words, number = k.Input((6,), dtype="int64", name="words"), k.Input((1,), name="number")
    vectors = k.layers.GlobalAveragePooling1D()(own.Embedding(20_000, 4, name="word")(words))
    normal = k.layers.BatchNormalization()(k.layers.Concatenate()([vectors, number]))
    return k.Model([words, number], k.layers.Dense(1, "sigmoid")(k.layers.Dropout(0.2)(normal)))


def lists(source, *, library: str = "keras") -> Any:
    """Lists with weights and without a combiner, through stacked tables; from equal weights in both libraries."""
    k, own = (keras, keras3) if library == "keras" else (tf_keras, layers)
    seeded = weights_of(k)
    inputs = {
        name: k.Input(feature.shape, dtype=feature.dtype.name, name=name, ragged=feature.is_list)
        for name, feature in source.features.items()
    }
    tables = [
        {"name": name, "features": (name,), "num_ids": 50, "dim": 4, "initializer": k.initializers.Constant(0.1)}
        for name in ("pooled", "read")
    ]
    collection = own.EmbeddingCollection(tables, combiner={"pooled": "mean"}, name="tables")
    ids = {"pooled": inputs["history"], "read": inputs["history"]}
    rows = collection(ids, weights={"pooled": inputs["history_weights"]})
    seen = k.layers.LSTM(3, kernel_initializer=seeded(1), recurrent_initializer=seeded(2))(rows["read"])
    dense = k.layers.Dense(4, "tanh", kernel_initializer=seeded(3))(inputs["x"])
    both = k.layers.Concatenate()([rows["pooled"], seen, dense])
    return k.Model(inputs, k.layers.Dense(1, kernel_initializer=seeded(4), name="score")(both))


class Block(keras.layers.Layer):
    """An encoder of a transformer, of plain layers, as those of KerasHub."""

    def __init__(self, width: int, *, dropout: float = 0.1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.attention = keras.layers.MultiHeadAttention(2, width // 2, dropout=dropout)
        self.dense = keras.Sequential([keras.layers.Dense(2 * width, "gelu"), keras.layers.Dense(width)])
        self.normal = [keras.layers.LayerNormalization(), keras.layers.LayerNormalization()]
        self.dropout = keras.layers.Dropout(dropout)

    def build(self, input_shape):
        self.attention.build(input_shape, input_shape)
        self.dense.build(input_shape)
        for layer in self.normal:
            layer.build(input_shape)

    def call(self, tensor, training=None):
        seen = self.attention(tensor, tensor, training=training)
        tensor = self.normal[0](tensor + self.dropout(seen, training=training))
        return self.normal[1](tensor + self.dropout(self.dense(tensor), training=training))


class Places(keras.layers.Layer):
    """Adds an embedding of the place in the sequence."""

    def build(self, input_shape):
        self.places = self.add_weight(shape=input_shape[1:], initializer="glorot_uniform", name="places")

    def call(self, tensor):
        return tensor + self.places


def transformer(source) -> keras.Model:
    """A classifier of sequences with the architecture of KerasHub's encoders: nothing is downloaded."""
    words = keras.Input((6,), dtype="int64", name="words")
    tensor = Places(name="places")(keras3.Embedding(40, 8, name="word")(words))
    for number in range(2):
        tensor = Block(8, name=f"block_{number}")(tensor)
    tensor = keras.layers.GlobalAveragePooling1D()(tensor)
    return keras.Model({"words": words}, keras.layers.Dense(1, "sigmoid", name="score")(tensor))
