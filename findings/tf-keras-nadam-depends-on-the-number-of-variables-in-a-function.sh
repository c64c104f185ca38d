#!/usr/bin/env bash
# tf-keras 2.21.0 on TensorFlow 2.21.0: `tf_keras.optimizers.Nadam` counts in a Python attribute how often it has
# multiplied its momentum schedule. In a tf.function the count stands still, and the product is multiplied once for
# each variable in each step but the first. Seen: three variables of the same value and gradient are 0.8164 after two
# steps without a function, and 0.8298, 0.8641 and 0.8739 after two steps in one. `tf_keras.optimizers.legacy.Nadam`
# and Adam give the same numbers in both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q tensorflow==2.21.0 tf-keras==2.21.0
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" - <<'END_OF_CODE'
import tensorflow as tf
import tf_keras


def after_two_steps(kind: type, *, traced: bool) -> list[float]:
    variables = [tf.Variable(1.0) for _ in range(3)]
    optimizer = kind(0.1)

    def step() -> None:
        optimizer.apply_gradients([(tf.constant(0.5), each) for each in variables])

    run = tf.function(step) if traced else step
    for _ in range(2):
        run()
    return [round(float(each), 4) for each in variables]


optimizers = tf_keras.optimizers
for kind, agree in ((optimizers.Nadam, False), (optimizers.legacy.Nadam, True), (optimizers.Adam, True)):
    eager, traced = (after_two_steps(kind, traced=traced) for traced in (False, True))
    print(f"{kind.__module__}.{kind.__name__}: {eager} without a function, {traced} in a function")
    assert (eager == traced) == agree, (eager, traced)
    assert len({*eager}) == 1, eager
END_OF_CODE
