#!/usr/bin/env bash
# tf_keras 2.21.0: `Model.variables` holds an object that is no variable for a StringLookup without a vocabulary
# argument.
# Seen: an object of the class VocabWeightHandler, without a name; code that reads the name of each variable ends in an
# AttributeError.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q tensorflow==2.21.0 tf_keras==2.21.0
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" - <<'END_OF_CODE'
import tensorflow as tf
import tf_keras

words = tf_keras.Input((1,), dtype=tf.string)
adapted = tf_keras.layers.StringLookup()
adapted.adapt(tf.constant(["a", "b"]))
given = tf_keras.layers.StringLookup(vocabulary=["a", "b"])
for layer, count in ((adapted, 1), (given, 0)):
    variables = tf_keras.Model(words, layer(words)).variables
    print(variables)
    assert len(variables) == count, variables
    assert not any(isinstance(each, tf.Variable) or hasattr(each, "name") for each in variables)
END_OF_CODE
