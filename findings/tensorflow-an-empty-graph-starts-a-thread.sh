#!/usr/bin/env bash
# TensorFlow 2.21.0: `tf.Graph()` starts a native thread, which stays when the graph is gone; `import tensorflow` starts
# none, and TensorFlow's context, with its thread pools, is not initialized by either. Seen: one thread more after the
# first empty graph, none more after a second. A process that only wants to import TensorFlow once and then fork, and
# builds a graph "to warm up", has a thread that its children lack.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q tensorflow-cpu==2.21.0
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" - <<'END'
import gc
import os

import numpy as np  # with the threads of its linear algebra


def threads():
    return len(os.listdir("/proc/self/task"))


before = threads()
import tensorflow as tf
from tensorflow.python.eager import context

imported = threads()
graph = tf.Graph()
first = threads()
del graph
gc.collect()
graph = tf.Graph()
second = threads()
handle = context.context()._context_handle
print(f"threads: NumPy {before}, import {imported}, first graph {first}, second graph {second}; context {handle}")
assert imported == before and first == second == imported + 1 and handle is None
END
