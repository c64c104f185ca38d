#!/usr/bin/env bash
# tf-keras 2.21.0 on TensorFlow 2.21.0: under ParameterServerStrategy with a partitioner, Adafactor computes its means
# over the rows of each shard. Seen: two steps of a variable of six rows in two shards differ from those of the
# variable in one piece by 27 % of the largest change, without a warning. The other optimizers of tf_keras agree.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q tensorflow==2.21.0 tf-keras==2.21.0
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" - <<'END_OF_CODE'
import os
import socket

import numpy as np
import tensorflow as tf
import tf_keras

KERAS = tf_keras.optimizers
START = np.linspace(-1, 1, 18, dtype=np.float32).reshape(6, 3)
GRADIENTS = np.random.default_rng(0).normal(size=(2, 6, 3)).astype(np.float32)


def port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def cluster() -> tf.distribute.ParameterServerStrategy:
    jobs = {"worker": 1, "ps": 2}
    spec = tf.train.ClusterSpec({job: [f"localhost:{port()}" for _ in range(n)] for job, n in jobs.items()})
    for job, n in jobs.items():
        for index in range(n):
            SERVERS.append(tf.distribute.Server(spec, job_name=job, task_index=index, protocol="grpc"))
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
    cut = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
    return tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=cut)


def on_shards(kind: type) -> np.ndarray:
    with STRATEGY.scope():
        variable, optimizer = tf.Variable(START, name="kernel"), kind(0.1)
        optimizer.build(variable.variables)

    def step(gradient: tf.Tensor) -> None:
        optimizer.apply_gradients(list(zip(tf.split(gradient, 2), variable.variables)))

    function = tf.function(lambda gradient: STRATEGY.run(step, args=(gradient,)))
    for gradient in GRADIENTS:
        COORDINATOR.schedule(function, args=(tf.constant(gradient),))
        COORDINATOR.join()
    return variable.numpy()


def whole(kind: type) -> np.ndarray:
    variable, optimizer = tf.Variable(START, name="kernel"), kind(0.1)
    for gradient in GRADIENTS:
        optimizer.apply_gradients([(tf.constant(gradient), variable)])
    return variable.numpy()


SERVERS = []
expected = {kind: whole(kind) for kind in (KERAS.Adam, KERAS.Adafactor)}
STRATEGY = cluster()
COORDINATOR = tf.distribute.coordinator.ClusterCoordinator(STRATEGY)
for kind, agree in ((KERAS.Adam, True), (KERAS.Adafactor, False)):
    difference = np.abs(on_shards(kind) - expected[kind]).max() / np.abs(expected[kind] - START).max()
    print(f"{kind.__name__}: shards differ from the whole by {difference:.1%} of the largest change", flush=True)
    assert (difference < 1e-4) == agree, difference
os._exit(0)  # the servers do not end
END_OF_CODE
