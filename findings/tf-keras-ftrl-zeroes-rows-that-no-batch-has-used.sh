#!/usr/bin/env bash
# tf-keras 2.21.0 on TensorFlow 2.21.0: the first step of `tf_keras.optimizers.Ftrl` sets every row of an embedding
# that the batch does not use to 0, whatever it was initialized with: FTRL computes weights from sums of gradients,
# which are 0 there, and this optimizer updates all rows. Seen: rows of 1 are 0 after a step that uses row 1 only.
# `tf_keras.optimizers.legacy.Ftrl` updates the rows of the batch and leaves the others at 1.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q tensorflow==2.21.0 tf-keras==2.21.0
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" - <<'END_OF_CODE'
import tensorflow as tf
import tf_keras

for kind, other_rows in ((tf_keras.optimizers.Ftrl, 0.0), (tf_keras.optimizers.legacy.Ftrl, 1.0)):
    table = tf.Variable(tf.ones([4, 1]))
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(tf.gather(table, [1]))
    kind(0.1).apply_gradients([(tape.gradient(total, table), table)])
    rows = table.numpy()[:, 0].round(4).tolist()
    print(f"{kind.__module__}: {rows} after a step with row 1")
    assert rows[0] == rows[2] == rows[3] == other_rows, rows
END_OF_CODE
