"""The clicks model trained without psrun, in the ways that benchmarks/speed.py holds psrun against.

    python benchmarks/tensorflow_by_hand.py KIND [--rows N] [--optimizer adagrad|adam] [--report FILE]

Kinds: `tutorial` (parameter servers, custom loop, one step a call), `packed` (the same, 20 steps a call), `fit` (Keras
fit, 20 steps an execution), `local` (no distribution, 20 steps a call), `limit` (parameter servers, everything that is
known to help written out by hand), `local_limit` (the same without distribution) and `dlrm` (DLRM in the way of
`limit`, for benchmarks/dlrm.py). Those of PyTorch are kinds of torch_by_hand.py.

DLRM has one stacked table: ids are rows of the stack already. Rows are gathered and put back by vectorised kernels,
under a lock; all dense weights are one flat variable.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ["GRPC_FAIL_FAST"] = "use_caller"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import clicks
import portpicker
import tensorflow as tf
import tf_keras
from by_hand import (
    ADAM_RATE,
    DLRM_BOTTOM_UNITS,
    DLRM_TOP_UNITS,
    EPSILON,
    HIDDEN_UNITS,
    INITIAL_ACCUMULATOR,
    LEARNING_RATE,
    NUM_FEATURES,
    NUM_NUMBERS,
    Steps,
    parsed,
    report,
    timed,
)
from tensorflow.python.eager import context

UNROLLED = 10
BETA_1, BETA_2 = 0.9, 0.999


class Rule(Protocol):
    """The update rule of an optimizer, with slots of the shape of the values that begin as `start`."""

    num_slots: int
    start: float

    def rate(self, at: tf.Tensor) -> Any:
        """The learning rate after `at` steps."""

    def updated(self, values: tf.Tensor, slots: list[tf.Tensor], gradient: tf.Tensor, rate: Any) -> list[tf.Tensor]:
        """The new values and slots."""


class Adagrad:
    num_slots, start = 1, INITIAL_ACCUMULATOR

    def rate(self, at: tf.Tensor) -> Any:
        return LEARNING_RATE

    def updated(self, values: tf.Tensor, slots: list[tf.Tensor], gradient: tf.Tensor, rate: Any) -> list[tf.Tensor]:
        grown = slots[0] + tf.square(gradient)
        return [values - rate * gradient * tf.math.rsqrt(grown + EPSILON), grown]


class Adam:
    num_slots, start = 2, 0.0

    def rate(self, at: tf.Tensor) -> Any:
        now = tf.cast(at + 1, tf.float32)
        return ADAM_RATE * tf.sqrt(1 - tf.pow(BETA_2, now)) / (1 - tf.pow(BETA_1, now))

    def updated(self, values: tf.Tensor, slots: list[tf.Tensor], gradient: tf.Tensor, rate: Any) -> list[tf.Tensor]:
        m = slots[0] + (gradient - slots[0]) * (1 - BETA_1)
        v = slots[1] + (tf.square(gradient) - slots[1]) * (1 - BETA_2)
        return [values - rate * m / (tf.sqrt(v) + EPSILON), m, v]


RULES: dict[str, type[Rule]] = {"adagrad": Adagrad, "adam": Adam}


class Shard(NamedTuple):
    """A part of the table with its slots, and the lock under which they are written."""

    table: tf.Variable
    slots: list[tf.Variable]
    lock: tf.CriticalSection


Layers = Sequence[tuple[int, int]]  # (inputs, outputs) of each


def initial_weights(layers: Layers) -> tf.Tensor:
    """Kernels as of Glorot and biases of zero, all in a row."""
    parts = []
    for fan_in, fan_out in layers:
        parts += [tf.random.uniform([fan_in * fan_out], -1.0, 1.0) * (6.0 / (fan_in + fan_out)) ** 0.5]
        parts += [tf.zeros([fan_out])]
    return tf.concat(parts, 0)


def logits(hidden: tf.Tensor, layers: Layers, flat: tf.Tensor, at: int = 0) -> tf.Tensor:
    """The perceptron with the weights `flat` from `at` on, as `initial_weights` orders them."""
    for index, (fan_in, fan_out) in enumerate(layers):
        kernel = tf.reshape(flat[at : at + fan_in * fan_out], [fan_in, fan_out])
        at += fan_in * fan_out
        hidden = tf.matmul(hidden, kernel) + flat[at : at + fan_out]
        at += fan_out
        hidden = tf.nn.relu(hidden) if index + 1 < len(layers) else hidden
    return hidden


class Network(Protocol):
    """Dense layers over the rows of an example, (batch, NUM_FEATURES, dim), and its numbers."""

    layers: Layers

    def logits(self, rows: tf.Tensor, numbers: tf.Tensor, flat: tf.Tensor) -> tf.Tensor: ...


class Perceptron:
    def __init__(self, dim: int) -> None:
        self._width = NUM_FEATURES * dim
        self.layers: Layers = list(itertools.pairwise([self._width + NUM_NUMBERS, *HIDDEN_UNITS, 1]))

    def logits(self, rows: tf.Tensor, numbers: tf.Tensor, flat: tf.Tensor) -> tf.Tensor:
        return logits(tf.concat([tf.reshape(rows, [-1, self._width]), numbers], 1), self.layers, flat)


class Dlrm:
    """See `psrun.recsys.models.dlrm`, with its default layers."""

    def __init__(self, dim: int) -> None:
        self._vectors = NUM_FEATURES + 1
        pairs = [(row, column) for row in range(self._vectors) for column in range(row)]
        self._below = [row * self._vectors + column for row, column in pairs]
        self._bottom = list(itertools.pairwise([NUM_NUMBERS, *DLRM_BOTTOM_UNITS, dim]))
        self._top = list(itertools.pairwise([dim + len(pairs), *DLRM_TOP_UNITS, 1]))
        self.layers: Layers = [*self._bottom, *self._top]

    def logits(self, rows: tf.Tensor, numbers: tf.Tensor, flat: tf.Tensor) -> tf.Tensor:
        bottom = tf.nn.relu(logits(numbers, self._bottom, flat))
        vectors = tf.concat([bottom[:, None], rows], 1)
        products = tf.reshape(tf.matmul(vectors, vectors, transpose_b=True), [-1, self._vectors**2])
        top = tf.concat([bottom, tf.gather(products, self._below, axis=1)], 1)
        return logits(top, self._top, flat, sum((before + 1) * after for before, after in self._bottom))


class Limit:
    """Variables of the model, and its steps.

    Args:
      remote: whether there are parameter servers; else all lies in this process.
    """

    def __init__(self, options: argparse.Namespace, network: Network, *, remote: bool) -> None:
        self._remote = remote
        self._num_ps = options.num_ps if remote else 1
        self._share = -(-options.rows // self._num_ps)
        self._rule: Rule = RULES[options.optimizer]()
        self._network, self._dim = network, options.dim
        weights = initial_weights(network.layers)
        self._shards = [self._shard(ps, options.dim) for ps in range(self._num_ps)]
        with self._on(0):
            self._dense = [tf.Variable(weights), *self._slots(weights.shape)]
            self._iterations = tf.Variable(0, dtype=tf.int64)
        self._updaters = [self._updater(ps) for ps in range(self._num_ps)]

    def steps(self) -> Any:
        """A function of an iterator that does `UNROLLED` steps."""

        @tf.function
        def steps(iterator: Any) -> None:
            first = self._iterations.read_value()
            for index in range(UNROLLED):
                features, labels = next(iterator)
                self.step(features, labels, first + index)
            self._iterations.assign_add(UNROLLED)

        return steps

    def step(self, features: dict[str, tf.Tensor], labels: tf.Tensor, at: tf.Tensor) -> tf.Tensor:
        """One step after `at` others; returns the loss before it."""
        rate = self._rule.rate(at)
        local, places = self._divided(tf.reshape(features["ids"], [-1]))
        pulled = []
        for ps, shard in enumerate(self._shards):
            with self._on(ps):
                pulled.append(tf.gather(shard.table, local[ps]))
        flat = self._dense[0].read_value()
        with tf.GradientTape() as tape:
            tape.watch([pulled, flat])
            rows = tf.dynamic_stitch(places, pulled) if self._num_ps > 1 else pulled[0]
            rows = tf.reshape(rows, [-1, NUM_FEATURES, self._dim])
            logit = self._network.logits(rows, features["numbers"], flat)
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logit))
        by_shard, by_weight = tape.gradient(loss, [pulled, flat])
        for ps, update in enumerate(self._updaters):
            with self._on(ps):
                update(local[ps], by_shard[ps], tf.convert_to_tensor(rate))
        with self._on(0):
            slots = [slot.read_value() for slot in self._dense[1:]]
            new_values = self._rule.updated(self._dense[0].read_value(), slots, by_weight, rate)
            for variable, values in zip(self._dense, new_values):
                variable.assign(values)
        return loss

    def _on(self, ps: int) -> Any:
        return tf.device(f"/job:ps/task:{ps}/device:CPU:0" if self._remote else None)

    def _slots(self, shape: Sequence[int]) -> list[tf.Variable]:
        return [tf.Variable(tf.fill(shape, self._rule.start)) for _ in range(self._rule.num_slots)]

    def _shard(self, ps: int, dim: int) -> Shard:
        with self._on(ps):
            table = tf.Variable(tf.random.uniform([self._share, dim], -0.05, 0.05))
            return Shard(table, self._slots([self._share, dim]), tf.CriticalSection(shared_name=f"lock-{ps}"))

    def _divided(self, ids: tf.Tensor) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """For each shard: the rows of it that `ids` name, and where they stand in `ids`."""
        share, num_ps = self._share, self._num_ps
        which = tf.cast(ids >= share, tf.int32) if num_ps == 2 else tf.cast(ids // share, tf.int32)
        local = tf.dynamic_partition(ids - tf.cast(which, tf.int64) * share, which, num_ps)
        return local, tf.dynamic_partition(tf.range(tf.size(ids)), which, num_ps)

    def _updater(self, ps: int) -> Callable[..., None]:
        """A separate function, so that no lock is held while another one is waited for.

        It stays one: merged with its caller it would have rows sent to the worker and back.
        """
        table, slots, lock = self._shards[ps]

        def replace(rows: tf.Tensor, summed: tf.Tensor, rate: tf.Tensor) -> tf.Tensor:
            slot_rows = [tf.gather(slot, rows) for slot in slots]
            new_values = self._rule.updated(tf.gather(table, rows), slot_rows, summed, rate)
            for variable, values in zip([table, *slots], new_values):
                variable.scatter_update(tf.IndexedSlices(values, rows))
            return tf.size(rows)

        @tf.function(experimental_attributes={"_noinline": True})
        def update(rows: tf.Tensor, gradient: tf.Tensor, rate: tf.Tensor) -> None:
            with self._on(ps):
                distinct, position = tf.unique(rows)
                summed = tf.math.unsorted_segment_sum(gradient, position, tf.size(distinct))
                lock.execute(lambda: replace(distinct, summed, rate))

        return update


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

        def train_here(count: int) -> None:
            for _ in range(count // packed):
                steps(iterator)

        return train_here, iterator
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
    """All in plain TensorFlow."""
    network = Dlrm if options.kind == "dlrm" else Perceptron
    steps = Limit(options, network(options.dim), remote=strategy is not None).steps()
    return scheduled(options, source, strategy, steps, UNROLLED)


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
