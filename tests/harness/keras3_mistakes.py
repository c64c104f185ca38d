"""Models of Keras 3 with mistakes, which psrun refuses."""

from __future__ import annotations

import keras
import tf_keras


def _model(*layers: keras.Layer) -> keras.Model:
    return keras.Sequential([keras.Input((10,)), *layers, keras.layers.Dense(1)])


class Steps(keras.Model):
    def train_step(self, data):
        return {"loss": 0.0}


def own_step(source) -> keras.Model:
    base = _model()
    return Steps(base.inputs, base.outputs)


def large_table(source) -> keras.Model:
    ids = keras.Input((3,), dtype="int64", name="x")
    return keras.Model(ids, keras.layers.Embedding(100_001, 2, name="item")(ids))


def half(source) -> keras.Model:
    return _model(keras.layers.Dense(2, dtype="mixed_float16", name="half"))


def constrained(source) -> keras.Model:
    return _model(keras.layers.Dense(2, kernel_constraint="non_neg", name="kept"))


class Counting(keras.layers.Layer):
    def __init__(self) -> None:
        super().__init__(name="counting")
        self.seen = keras.metrics.Sum()

    def call(self, inputs):
        return inputs


def metric_in_layer(source) -> keras.Model:
    return _model(Counting())


class Holds(keras.layers.Layer):
    def __init__(self) -> None:
        super().__init__(name="holds")
        self.inner = [tf_keras.layers.Dense(2)]

    def call(self, inputs):
        return self.inner[0](inputs)


def of_tf_keras_within(source) -> keras.Model:
    return _model(Holds())


def of_keras3_within(source) -> tf_keras.Model:
    inputs = tf_keras.Input((10,))
    return tf_keras.Model(inputs, keras.layers.Dense(1)(inputs))


def in_a_sequential(source) -> tf_keras.Model:
    return tf_keras.Sequential([keras.layers.Dense(1)])


def on_an_input(source) -> object:
    return tf_keras.layers.Dense(1)(keras.Input((10,)))


def compiled(source, *, settings: dict) -> keras.Model:
    model = _model()
    if "optimizer" in settings:
        settings = {**settings, "optimizer": keras.optimizers.Adam(0.1)}
    model.compile(**{"loss": "mse", **settings})
    return model


class OwnMetric(keras.metrics.Mean):
    pass


def own_metric(source) -> keras.Model:
    model = _model()
    model.compile(loss="mse", metrics=[OwnMetric()])
    return model


class Halving(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.1 / (1 + step)


# Under names that are not those of Keras.
optimizer = keras.optimizers.SGD
Callback = keras.callbacks.Callback
