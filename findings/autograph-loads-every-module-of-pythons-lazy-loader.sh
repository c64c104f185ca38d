#!/usr/bin/env bash
# TensorFlow 2.21.0, Python 3.11: the first function that AutoGraph converts loads every module that
# importlib.util.LazyLoader has left unloaded. AutoGraph calls inspect.getmodule, which asks each module in sys.modules
# for its `__file__`, and any attribute loads a lazy module. Seen: a module that nothing uses is unloaded before, and
# loaded after, a tf.function of one line. A program that makes slow imports lazy pays for them all at its first trace.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q tensorflow-cpu==2.21.0
cat >"$folder/rarely_used.py" <<'END'
import sys

sys.rarely_used_is_loaded = True
END
cat >"$folder/main.py" <<'END'
import importlib.util
import sys

import tensorflow as tf

spec = importlib.util.find_spec("rarely_used")
spec.loader = importlib.util.LazyLoader(spec.loader)
module = importlib.util.module_from_spec(spec)
sys.modules["rarely_used"] = module
spec.loader.exec_module(module)
before = hasattr(sys, "rarely_used_is_loaded")


@tf.function
def twice(x):
    return x + x


twice(tf.constant(1.0))
after = hasattr(sys, "rarely_used_is_loaded")
print(f"loaded before the first trace: {before}, after it: {after}")
assert (before, after) == (False, True)
END
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" "$folder/main.py"
