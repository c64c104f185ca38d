#!/usr/bin/env bash
# TensorFlow 2.21.0: under ParameterServerStrategy, a step that looks up in a StaticHashTable within a branch of tf.cond
# ends in "You must feed a value for placeholder tensor". Model.fit makes such branches for several steps per execution.
# Seen: the same look-up outside of a branch works, also in tf.while_loop.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q tensorflow==2.21.0 portpicker
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" - <<'END_OF_CODE'
import os

import portpicker
import tensorflow as tf

names = {job: [f"localhost:{portpicker.pick_unused_port()}"] for job in ("worker", "ps")}
spec = tf.train.ClusterSpec(names)
servers = [tf.distribute.Server(spec, job_name=job, protocol="grpc") for job in names]
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    words = tf.lookup.KeyValueTensorInitializer(tf.constant(["a"]), tf.constant([1]))
    table = tf.lookup.StaticHashTable(words, -1)
    total = tf.Variable(0)


def look_up():
    return table.lookup(tf.constant("a"))


@tf.function
def plain():
    total.assign_add(look_up())


@tf.function
def branch():
    total.assign_add(tf.cond(total > 0, look_up, lambda: 0))


coordinator.schedule(plain)
coordinator.join()
assert int(total) == 1
coordinator.schedule(branch)
try:
    coordinator.join()
except tf.errors.InvalidArgumentError as error:
    print(*[line for line in str(error).splitlines() if "You must feed a value" in line][:1], flush=True)
    os._exit(0)  # the threads of the coordinator do not end by themselves
print("the branch worked", flush=True)
os._exit(1)
END_OF_CODE
