"""A run of psrun's embedding model written by hand, after TensorFlow's parameter server tutorial and without psrun.

    python benchmarks/handwritten.py --loop custom --epochs 5 --steps-per-epoch 1000 --report out.json

benchmarks/overhead.py holds psrun against it. Cluster, data, model, metrics and packing are those of
`psrun cluster=inprocess model=embedding partitioner=fixed_shards evaluation=none checkpoint=none`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 3 has no parameter server support
os.environ["GRPC_FAIL_FAST"] = "use_caller"

import numpy as np
import portpicker
import tensorflow as tf
import tf_keras

NUM_WORKERS = 2
NUM_PS = 2
NUM_SHARDS = 2
NUM_INTER_OP_THREADS = 16
BATCH_SIZE = 64
NUM_EXAMPLES = 10000
EMBEDDING_DIM = 20
LEARNING_RATE = 0.05
VOCABULARY = ["avenger", "ironman", "batman", "hulk", "spiderman", "kingkong", "wonder_woman"]
NAMES_PER_EXAMPLE = 3
FIRST_STEP_POLL_S = 0.05  # as psrun polls


def start_cluster() -> tf.distribute.ParameterServerStrategy:
    """Servers in this process, and the strategy that trains on them."""
    tf.config.threading.set_inter_op_parallelism_threads(NUM_INTER_OP_THREADS)
    spec = tf.train.ClusterSpec(
        {
            "worker": [f"localhost:{portpicker.pick_unused_port()}" for _ in range(NUM_WORKERS)],
            "ps": [f"localhost:{portpicker.pick_unused_port()}" for _ in range(NUM_PS)],
        }
    )
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=NUM_INTER_OP_THREADS)
    for job in spec.jobs:
        for index in range(spec.num_tasks(job)):
            tf.distribute.Server(spec, job_name=job, task_index=index, protocol="grpc", config=config)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
    return tf.distribute.ParameterServerStrategy(
        resolver, variable_partitioner=tf.distribute.experimental.partitioners.FixedShardsPartitioner(NUM_SHARDS)
    )


def make_examples() -> tuple[np.ndarray, np.ndarray]:
    """Names, (NUM_EXAMPLES, NAMES_PER_EXAMPLE) strings, and labels, (NUM_EXAMPLES, 1): 1 with an avenger among them."""
    ids = np.random.default_rng(1).integers(len(VOCABULARY), size=(NUM_EXAMPLES, NAMES_PER_EXAMPLE))
    labels = np.any(ids == VOCABULARY.index("avenger"), axis=1, keepdims=True)
    return np.array(VOCABULARY, dtype=bytes)[ids], labels.astype(np.float32)


def make_dataset(lookup: tf_keras.layers.StringLookup) -> tf.data.Dataset:
    """Endless shuffled batches of ids and labels."""
    names, labels = (tf.constant(array) for array in make_examples())
    # The pipeline is psrun's, not the tutorial's (single examples, batched afterwards), which is slower: what is
    # compared is what psrun adds around the same work.
    rows = tf.data.Dataset.range(NUM_EXAMPLES).shuffle(NUM_EXAMPLES).repeat().batch(BATCH_SIZE, drop_remainder=True)
    return rows.map(lambda batch: (lookup(tf.gather(names, batch)), tf.gather(labels, batch))).prefetch(2)


def make_model(num_ids: int) -> tf_keras.Model:
    """Embed, average, one sigmoid unit."""
    ids = tf_keras.Input((NAMES_PER_EXAMPLE,), dtype=tf.int64)
    averaged = tf.reduce_mean(tf_keras.layers.Embedding(num_ids, EMBEDDING_DIM)(ids), axis=1)
    return tf_keras.Model(ids, tf_keras.layers.Dense(1, activation="sigmoid")(averaged))


def watch_first_step(optimizer: tf_keras.optimizers.Optimizer, report: dict[str, Any]) -> None:
    """Notes in `report` when the first step had been applied (seconds since 1970), from a separate thread."""

    def watch() -> None:
        while not int(optimizer.iterations):
            time.sleep(FIRST_STEP_POLL_S)
        report["first_step_at_s"] = time.time()

    threading.Thread(target=watch, daemon=True).start()


def train_custom(options: argparse.Namespace, report: dict[str, Any]) -> Any:
    """Trains with a custom loop. Returns what must outlive the training."""
    strategy = start_cluster()
    with strategy.scope():
        lookup = tf_keras.layers.StringLookup(vocabulary=VOCABULARY, num_oov_indices=1)
        model = make_model(lookup.vocabulary_size())
        optimizer = tf_keras.optimizers.Adagrad(LEARNING_RATE)
        optimizer.build(model.trainable_variables)
        loss_function = tf_keras.losses.BinaryCrossentropy(reduction=tf_keras.losses.Reduction.NONE)
        mean_loss = tf_keras.metrics.Mean(name="loss")
        metrics = [tf_keras.metrics.AUC(name="auc"), tf_keras.metrics.BinaryAccuracy(name="accuracy")]

    def replica_step(ids: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            predictions = model(ids, training=True)
            loss = tf.nn.compute_average_loss(loss_function(labels, predictions))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        mean_loss.update_state(loss)
        for metric in metrics:
            metric.update_state(labels, predictions)

    @tf.function
    def steps(iterator: Any, num_steps: tf.Tensor) -> None:
        for _ in tf.range(num_steps):
            strategy.run(replica_step, args=next(iterator))

    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    iterator = iter(coordinator.create_per_worker_dataset(lambda: make_dataset(lookup)))
    watch_first_step(optimizer, report)
    for epoch in range(1, options.epochs + 1):
        for metric in (mean_loss, *metrics):
            metric.reset_state()
        for _ in range(options.steps_per_epoch // options.steps_per_execution):
            coordinator.schedule(steps, args=(iterator, tf.constant(options.steps_per_execution)))
        coordinator.join()
        text = "  ".join(f"{metric.name} {float(metric.result()):.4g}" for metric in (mean_loss, *metrics))
        sys.stdout.write(f"epoch {epoch}  step {int(optimizer.iterations)}  {text}\n")
    report["steps"] = int(optimizer.iterations)
    return coordinator


def train_fit(options: argparse.Namespace, report: dict[str, Any]) -> Any:
    """Trains with Model.fit. Returns what must outlive the training."""
    strategy = start_cluster()
    with strategy.scope():
        lookup = tf_keras.layers.StringLookup(vocabulary=VOCABULARY, num_oov_indices=1)
        model = make_model(lookup.vocabulary_size())
        optimizer = tf_keras.optimizers.Adagrad(LEARNING_RATE)
        optimizer.build(model.trainable_variables)
        model.compile(
            optimizer=optimizer,
            loss=tf_keras.losses.BinaryCrossentropy(),
            metrics=[tf_keras.metrics.AUC(name="auc"), tf_keras.metrics.BinaryAccuracy(name="accuracy")],
            steps_per_execution=options.steps_per_execution,
        )
    watch_first_step(optimizer, report)
    model.fit(
        tf_keras.utils.experimental.DatasetCreator(lambda context: make_dataset(lookup)),
        epochs=options.epochs,
        steps_per_epoch=options.steps_per_epoch,
    )
    report["steps"] = int(optimizer.iterations)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loop", choices=("custom", "fit"), required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--steps-per-epoch", type=int, required=True)
    parser.add_argument("--steps-per-execution", type=int, default=10)
    parser.add_argument("--report", type=Path, required=True, help="file for the steps and the time of the first one")
    options = parser.parse_args()
    report: dict[str, Any] = {}
    # Letting go of a ClusterCoordinator takes up to a minute: it is kept, and the process ended under it.
    kept = (train_custom if options.loop == "custom" else train_fit)(options, report)
    options.report.write_text(json.dumps(report), encoding="utf-8")
    sys.stdout.flush()
    os._exit(0 if kept else 1)


if __name__ == "__main__":
    main()
