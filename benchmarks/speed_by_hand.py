"""The clicks model trained without psrun, in the ways that benchmarks/speed.py holds psrun against.

    python benchmarks/speed_by_hand.py KIND [--rows N] [--optimizer adagrad|adam] [--report FILE]

Kinds: `tutorial` (parameter servers, custom loop, one step a call), `packed` (the same, 20 steps a call), `fit` (Keras
fit, 20 steps an execution), `local` (no distribution, 20 steps a call), `limit` (parameter servers, everything that is
known to help written out by hand), `local_limit` (the same without distribution) and `dlrm` (DLRM in the way of
`limit`, for benchmarks/dlrm.py). Those of PyTorch are kinds of torch_by_hand.py.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ["GRPC_FAIL_FAST"] = "use_caller"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import clicks
import limit_by_hand
import portpicker
import tensorflow as tf
import tf_keras
from by_hand import Steps, parsed, report, timed
from click_examples import ADAM_RATE, INITIAL_ACCUMULATOR, LEARNING_RATE
from tensorflow.python.eager import context

KINDS = ("tutorial", "packed", "fit", "local", "limit", "local_limit", "dlrm")
NUM_INTER_OP_THREADS = 16


def start_cluster(options: argparse.Namespace) -> tf.distribute.ParameterServerStrategy:
    """Servers in this process, and the strategy that trains on them."""
    tf.config.threading.set_inter_op_parallelism_threads(NUM_INTER_OP_THREADS)
    jobs = {"worker": options.num_workers, "ps": options.num_ps}
    spec = tf.train.ClusterSpec(
        {job: [f"localhost:{portpicker.pick_unused_port()}" for _ in range(n)] for job, n in jobs.items()}
    )
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=NUM_INTER_OP_THREADS)
    if options.kind in ("limit", "dlrm"):
        config.intra_op_parallelism_threads = 1
        calm = tf.compat.v1.ConfigProto.Experimental(disable_thread_spinning=True)
        context.context()._config = tf.compat.v1.ConfigProto(experimental=calm)
    for job, count in jobs.items():
        for index in range(count):
            tf.distribute.Server(spec, job_name=job, task_index=index, protocol="grpc", config=config)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(256 << 10, options.num_ps)
    return tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)


def make_dataset(source: clicks.Clicks, options: argparse.Namespace) -> tf.data.Dataset:
    return source.train(batch_size=options.batch_size, seed=tf.constant(1, tf.int64)).prefetch(2)


def make_optimizer(name: str) -> Any:
    """The fastest that Keras has: Adagrad's legacy form has a kernel for sparse gradients, Adam has no such form."""
    if name == "adam":
        return tf_keras.optimizers.Adam(ADAM_RATE)
    return tf_keras.optimizers.legacy.Adagrad(LEARNING_RATE, initial_accumulator_value=INITIAL_ACCUMULATOR)


def build(model: tf_keras.Model, optimizer: Any) -> None:
    if isinstance(optimizer, tf_keras.optimizers.legacy.Optimizer):
        _ = optimizer.iterations
        optimizer._create_all_weights(model.trainable_variables)
    else:
        optimizer.build(model.trainable_variables)


def keras_loop(options: argparse.Namespace, source: clicks.Clicks, strategy: Any, packed: int) -> tuple[Steps, Any]:
    """A function that does a number of steps in a custom loop with a Keras model; with it what must be kept alive."""
    scope = strategy.scope() if strategy else tf.name_scope("")
    with scope:
        model = clicks.clicks(source, dim=options.dim)
        optimizer = make_optimizer(options.optimizer)
        build(model, optimizer)
        loss_function = tf_keras.losses.BinaryCrossentropy(reduction=tf_keras.losses.Reduction.NONE)
        metrics = [tf_keras.metrics.AUC(), tf_keras.metrics.BinaryAccuracy()]
        mean_loss = tf_keras.metrics.Mean()

    def step(features: Any, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            predictions = model(features, training=True)
            loss = tf.nn.compute_average_loss(loss_function(labels, predictions))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        mean_loss.update_state(loss)
        for metric in metrics:
            metric.update_state(labels, predictions)

    @tf.function
    def steps(iterator: Any) -> None:
        if packed == 1:
            (strategy.run if strategy else _run)(step, args=next(iterator))
        else:
            for _ in tf.range(packed):
                (strategy.run if strategy else _run)(step, args=next(iterator))

    return scheduled(options, source, strategy, steps, packed)


def _run(function: Callable[..., None], args: Any) -> None:
    function(*args)


def scheduled(
    options: argparse.Namespace, source: clicks.Clicks, strategy: Any, steps: Any, packed: int
) -> tuple[Steps, Any]:
    if strategy is None:
        iterator = iter(make_dataset(source, options))
        return lambda count: [steps(iterator) for _ in range(count // packed)] and None, iterator
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    iterator = iter(coordinator.create_per_worker_dataset(lambda: make_dataset(source, options)))

    def train(count: int) -> None:
        for _ in range(count // packed):
            coordinator.schedule(steps, args=(iterator,))
        coordinator.join()

    return train, coordinator


def keras_fit(options: argparse.Namespace, source: clicks.Clicks) -> tuple[Steps, Any]:
    """Model.fit, an epoch for each call."""
    with start_cluster(options).scope():
        model = clicks.clicks(source, dim=options.dim)
        optimizer = make_optimizer(options.optimizer)
        build(model, optimizer)
        metrics = [tf_keras.metrics.AUC(), tf_keras.metrics.BinaryAccuracy()]
        model.compile(
            optimizer, tf_keras.losses.BinaryCrossentropy(), metrics, steps_per_execution=options.steps_per_execution
        )
    times: list[float] = []

    class Clock(tf_keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            times.append(time.monotonic())

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            times.append(time.monotonic())

    creator = tf_keras.utils.experimental.DatasetCreator(lambda context: make_dataset(source, options))
    model.fit(creator, epochs=1 + options.windows, steps_per_epoch=options.steps, verbose=0, callbacks=[Clock()])
    options.rates = [options.steps / (end - begin) for begin, end in zip(times[2::2], times[3::2])]
    return lambda count: None, model


def limit(options: argparse.Namespace, source: clicks.Clicks, strategy: Any) -> tuple[Steps, Any]:
    """All in plain TensorFlow (limit_by_hand.py)."""
    network = limit_by_hand.Dlrm if options.kind == "dlrm" else limit_by_hand.Perceptron
    steps = limit_by_hand.Limit(options, network(options.dim), remote=strategy is not None).steps()
    return scheduled(options, source, strategy, steps, limit_by_hand.UNROLLED)


def ready(options: argparse.Namespace) -> tuple[Steps, Any]:
    """A function that does a number of steps of the kind; with it what must be kept alive."""
    source = clicks.Clicks(rows=options.rows, skew=options.skew)
    remote = start_cluster(options) if options.kind in ("tutorial", "packed", "limit", "dlrm") else None
    if options.kind == "fit":
        return keras_fit(options, source)
    if options.kind in ("limit", "local_limit", "dlrm"):
        return limit(options, source, remote)
    return keras_loop(options, source, remote, 1 if options.kind == "tutorial" else options.steps_per_execution)


def main() -> None:
    options = parsed(__doc__, KINDS)
    train, kept = ready(options)
    report(options.rates or timed(train, options), options)
    os._exit(0 if kept else 1)


if __name__ == "__main__":
    main()
