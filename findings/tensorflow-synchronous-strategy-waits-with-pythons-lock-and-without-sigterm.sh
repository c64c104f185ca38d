#!/usr/bin/env bash
# TensorFlow 2.21.0: MultiWorkerMirroredStrategy() waits for the other workers with Python's lock held, so that no thread
# of the process runs, and takes SIGTERM for itself without ending. Seen: a thread that prints twice a second is silent, and
# ten minutes after SIGTERM the process still waits. A start needs a barrier of its own before.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q tensorflow==2.21.0
cat > "$folder/wait.py" <<'END_OF_CODE'
import threading
import time

import tensorflow as tf


def tick():
    while True:
        print("tick", flush=True)
        time.sleep(0.5)


spec = tf.train.ClusterSpec({"worker": ["127.0.0.1:29871", "127.0.0.1:29872"]})  # nobody starts the second
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, task_type="worker", task_id=0, rpc_layer="grpc")
threading.Thread(target=tick, daemon=True).start()
tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
END_OF_CODE
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" "$folder/wait.py" > "$folder/out" 2> /dev/null &
pid=$!
until grep -q tick "$folder/out"; do sleep 0.2; done
sleep 8
before=$(wc -l < "$folder/out")
sleep 5
echo "ticks in 5 s: $(($(wc -l < "$folder/out") - before))"
[ "$(wc -l < "$folder/out")" = "$before" ]
kill -TERM "$pid"
sleep 10
kill -0 "$pid" && echo "still waits 10 s after SIGTERM"
kill -KILL "$pid"
