#!/usr/bin/env bash
# tf-keras 2.21.0 on TensorFlow 2.21.0: optimizers clip the gradient of an embedding before they sum the entries of a
# row. Seen: with an id four times in a batch, `clipvalue=0.1` and SGD with a learning rate of 1 the row moves by 0.4,
# not by 0.1; with `clipnorm=0.1` by 0.2, not by 0.1. The same gradient as a dense tensor moves it by 0.1.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q tensorflow==2.21.0 tf-keras==2.21.0
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" - <<'END_OF_CODE'
import tensorflow as tf
import tf_keras

IDS = tf.constant([1, 1, 1, 1])


def step_of_the_row(dense: bool, **clipping: float) -> float:
    table = tf.Variable(tf.ones([4, 1]))
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(tf.gather(table, IDS))
    gradient = tape.gradient(total, table)
    optimizer = tf_keras.optimizers.SGD(1.0, **clipping)
    optimizer.apply_gradients([(tf.convert_to_tensor(gradient) if dense else gradient, table)])
    return 1 - float(table[1, 0])


for option, expected in (("clipvalue", 0.4), ("clipnorm", 0.2), ("global_clipnorm", 0.2)):
    sparse, dense = (step_of_the_row(dense, **{option: 0.1}) for dense in (False, True))
    print(f"{option}=0.1: the row moves by {sparse:.2f}, with the same gradient as a dense tensor by {dense:.2f}")
    assert abs(sparse - expected) < 1e-3 and abs(dense - 0.1) < 1e-3, (option, sparse, dense)
END_OF_CODE
