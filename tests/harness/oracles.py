"""Programs written by hand after TensorFlow's tutorial and the RFC for Model.fit with parameter servers.

Their data comes in one order, and their initial weights depend on places alone, however a variable is cut: what psrun
trains on the same pieces with one worker must come out the same. `python oracles.py` runs the mirrored one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from psrun.data.source import Feature
from psrun.models.model import Model

EPOCHS, STEPS, BATCH_SIZE, EVAL_BATCH_SIZE = 2, 8, 16, 8
HEROES = ("avenger", "ironman", "batman", "hulk", "spiderman", "kingkong", "wonder_woman")
LABELS = ("no", "yes")
_EXAMPLES = 64


class Pattern(tf_keras.initializers.Initializer):
    """Values that depend on their places in the whole variable alone, so that shards hold what the whole would."""

    def __call__(self, shape: Any, dtype: Any = None, **kwargs: Any) -> tf.Tensor:
        values = 0.3 * np.sin(np.arange(np.prod(shape), dtype=np.float32)).reshape(shape)
        begin = kwargs.get("partition_offset") or [0] * len(shape)
        sizes = kwargs.get("partition_shape") or shape
        return tf.constant(values[tuple(slice(at, at + size) for at, size in zip(begin, sizes))], dtype or tf.float32)


class Ordered:
    """Examples in one order, whatever the seed and the worker: heroes, numbers or images, by `kind`."""

    facts: dict[str, Any] = {}
    num_train_examples = num_eval_examples = _EXAMPLES

    def __init__(self, *, kind: str) -> None:
        shape, dtype, self.task = {
            "heroes": ((3,), tf.string, "binary"),
            "numbers": ((10,), tf.float32, "regression"),
            "images": ((28, 28, 1), tf.float32, "multiclass"),
        }[kind]
        name = "features" if kind == "heroes" else "x"
        self.features = {name: Feature(shape, dtype)}
        self.num_classes = 10 if kind == "images" else 1
        self._examples = examples(kind)

    def train(self, *, batch_size: int, seed: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(self._examples).repeat().batch(batch_size, drop_remainder=True)

    def evaluation(self, *, batch_size: int) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(self._examples).batch(batch_size)


def examples(kind: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Features by name and labels of all examples."""
    rng = np.random.default_rng(7)
    if kind == "heroes":
        chosen = np.array([rng.permutation(HEROES)[:3] for _ in range(_EXAMPLES)])
        return {"features": chosen.astype(bytes)}, np.any(chosen == "avenger", axis=1)[:, None].astype(np.float32)
    if kind == "numbers":
        return {"x": rng.uniform(size=(_EXAMPLES, 10)).astype(np.float32)}, rng.uniform(size=_EXAMPLES).astype(
            "float32"
        )
    return {"x": rng.uniform(size=(_EXAMPLES, 28, 28, 1)).astype(np.float32)}, rng.integers(10, size=_EXAMPLES)


# -- models: of psrun a function of the source, by hand what that returns


def hero_lookup() -> tf_keras.Model:
    raw = tf_keras.Input((3,), dtype=tf.string, name="features")
    return tf_keras.Model({"features": raw}, {"features": tf_keras.layers.StringLookup(vocabulary=HEROES)(raw)})


def heroes(source: Any = None) -> Model:
    """The tutorial's: look up, embed, average, one unit."""
    lookup = hero_lookup()
    ids = tf_keras.Input((3,), dtype=tf.int64, name="features")
    table = tf_keras.layers.Embedding(len(HEROES) + 1, 20, embeddings_initializer=Pattern())
    unit = tf_keras.layers.Dense(1, activation="sigmoid", kernel_initializer=Pattern())
    network = tf_keras.Model({"features": ids}, unit(tf.reduce_mean(table(ids), axis=1)))
    accuracy = lambda: [tf_keras.metrics.BinaryAccuracy(name="accuracy")]  # noqa: E731
    return Model(network, lookup, metrics=accuracy)


def ten_units(source: Any = None) -> tf_keras.Model:
    """The tutorial's for Model.fit."""
    return tf_keras.Sequential([tf_keras.layers.Dense(10, kernel_initializer=Pattern())])


def convolutions(source: Any = None) -> tf_keras.Model:
    """Of images."""
    layers = tf_keras.layers
    return tf_keras.Sequential(
        [
            layers.Conv2D(8, 3, activation="relu", kernel_initializer=Pattern(), input_shape=(28, 28, 1)),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(16, activation="relu", kernel_initializer=Pattern()),
            layers.Dense(10, activation="softmax", kernel_initializer=Pattern()),
        ]
    )


# -- programs


def custom_loop(
    strategy: Any, coordinator: Any, optimizer: Callable[[], Any]
) -> tuple[tf_keras.Model, Any, dict[str, float]]:
    """The tutorial's custom training loop; returns model, optimizer and the metrics of the last epoch."""
    with strategy.scope():
        definition = heroes()
        model, lookup, opt = definition.network, definition.preprocessing, optimizer()
        accuracy, mean_loss = tf_keras.metrics.Accuracy(), tf_keras.metrics.Mean()
        opt.build(model.trainable_variables)
        _ = accuracy.variables, mean_loss.variables

    def dataset_fn(_: Any) -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices(examples("heroes")).repeat().batch(BATCH_SIZE)
        return dataset.map(lambda features, label: (lookup(features), label))

    @tf.function
    def per_worker_dataset_fn() -> Any:
        return strategy.distribute_datasets_from_function(dataset_fn)

    @tf.function
    def step_fn(iterator: Iterator[Any]) -> None:
        def replica_fn(batch_data: Any, labels: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                pred = model(batch_data, training=True)
                no_reduction = tf_keras.losses.Reduction.NONE
                per_example_loss = tf_keras.losses.BinaryCrossentropy(reduction=no_reduction)(labels, pred)
                loss = tf.nn.compute_average_loss(per_example_loss)
                gradients = tape.gradient(loss, model.trainable_variables)
            opt.apply_gradients(zip(gradients, model.trainable_variables))
            accuracy.update_state(labels, tf.cast(tf.greater(pred, 0.5), tf.int64))
            mean_loss.update_state(loss)

        batch_data, labels = next(iterator)
        strategy.run(replica_fn, args=(batch_data, labels))

    iterator = iter(coordinator.create_per_worker_dataset(per_worker_dataset_fn))
    for _ in range(EPOCHS):
        accuracy.reset_state()
        mean_loss.reset_state()
        for _ in range(STEPS):
            coordinator.schedule(step_fn, args=(iterator,))
            coordinator.join()  # step after step, as one worker with one closure at a time does them
    return model, opt, {"loss": float(mean_loss.result()), "accuracy": float(accuracy.result())}


def direct_evaluation(model: tf_keras.Model) -> float:
    """The tutorial's inline evaluation on the coordinator: the accuracy."""
    lookup, accuracy = hero_lookup(), tf_keras.metrics.Accuracy()
    for features, labels in tf.data.Dataset.from_tensor_slices(examples("heroes")).batch(EVAL_BATCH_SIZE):
        pred = model(lookup(features), training=False)
        accuracy.update_state(labels, tf.cast(tf.greater(pred, 0.5), tf.int64))
    return float(accuracy.result())


def fit(
    strategy: Any, model: Callable[[], tf_keras.Model], kind: str, optimizer: Callable[[], Any], **compiled: Any
) -> tuple[tf_keras.Model, Any, dict[str, float]]:
    """The RFC's user journey; returns model, optimizer and the metrics of the last epoch."""

    def dataset_fn(_: Any) -> tf.data.Dataset:
        features, labels = examples(kind)
        return tf.data.Dataset.from_tensor_slices((features["x"], labels)).repeat().batch(BATCH_SIZE)

    with strategy.scope():
        network, opt = model(), optimizer()
        network.compile(optimizer=opt, **compiled)
        network.build((None, *examples(kind)[0]["x"].shape[1:]))
        opt.build(network.trainable_variables)
    creator = tf_keras.utils.experimental.DatasetCreator(dataset_fn)
    history = network.fit(creator, epochs=EPOCHS, steps_per_epoch=STEPS, verbose=0).history
    return network, opt, {name: values[-1] for name, values in history.items()}


def mirrored(path: Path) -> None:
    """The guide's custom loop with MirroredStrategy on two devices; writes the final weights to `path`.npz."""
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    with strategy.scope():
        model, optimizer = convolutions(), tf_keras.optimizers.SGD(0.1)
    features, labels = examples("images")
    dataset = tf.data.Dataset.from_tensor_slices((features["x"], labels)).repeat().batch(BATCH_SIZE)
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    per_example = tf_keras.losses.SparseCategoricalCrossentropy(reduction=tf_keras.losses.Reduction.NONE)

    @tf.function
    def step_fn(iterator: Iterator[Any]) -> None:
        def replica_fn(inputs: Any) -> None:
            images, targets = inputs
            with tf.GradientTape() as tape:
                loss = tf.nn.compute_average_loss(per_example(targets, model(images)), global_batch_size=BATCH_SIZE)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))

        strategy.run(replica_fn, args=(next(iterator),))

    for _ in range(EPOCHS * STEPS):
        step_fn(iterator)
    tf.train.Checkpoint(model=model, optimizer=optimizer).write(str(path))


if __name__ == "__main__":
    mirrored(Path(sys.argv[1]))
