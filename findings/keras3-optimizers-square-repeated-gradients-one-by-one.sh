#!/usr/bin/env bash
# Keras 3.15.1 on TensorFlow 2.21.0: an optimizer squares the entries of a sparse gradient before it sums those of the
# same row. Seen: with an id four times in a batch, Adam's and Adagrad's first step of its row is twice the step with
# the same gradient as a dense tensor (0.2 and 0.198 against 0.1 and 0.0997). SGD agrees. tf_keras 2.21 sums first.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q tensorflow==2.21.0 keras==3.15.1
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" - <<'END_OF_CODE'
import keras
import tensorflow as tf

IDS = tf.constant([1, 1, 1, 1, 2])


def first_step(name: str, *, dense: bool) -> float:
    table = keras.Variable(tf.ones([4, 2]))
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(tf.gather(table.value, IDS))
    gradient = tape.gradient(total, table.value)
    optimizer = getattr(keras.optimizers, name)(0.1)
    optimizer.apply([tf.convert_to_tensor(gradient) if dense else gradient], [table])
    return 1 - float(table.value[1, 0])


for name, ratio in (("SGD", 1), ("Adagrad", 2), ("Adam", 2), ("RMSprop", 2)):
    sparse, dense = first_step(name, dense=False), first_step(name, dense=True)
    print(f"{name}: {sparse:.4f} with a sparse gradient, {dense:.4f} with the same gradient as a dense tensor")
    assert abs(sparse / dense - ratio) < 0.02, (name, sparse, dense)
END_OF_CODE
