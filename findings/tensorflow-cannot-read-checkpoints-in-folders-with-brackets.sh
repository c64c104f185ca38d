#!/usr/bin/env bash
# TensorFlow 2.21.0: a checkpoint or SavedModel in a folder with [ ] * ? or a backslash in its path is written, but cannot
# be read: "Failed to find any matching files". The reader searches the prefix as a pattern and then opens the prefix
# itself, so that it cannot be escaped. `latest_checkpoint` returns None there, which looks as if nothing were saved. Hydra's
# `override_dirname` makes such folders of lists. A link without these characters helps.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q tensorflow==2.21.0
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" - <<'END_OF_CODE'
import os

import tensorflow as tf

for folder, readable in (("plain", True), ("units=[64,32]", False)):
    checkpoint = tf.train.Checkpoint(v=tf.Variable(1.0))
    tf.train.CheckpointManager(checkpoint, folder, max_to_keep=1).save()
    assert os.path.exists(f"{folder}/ckpt-1.index")
    print(folder, "latest:", tf.train.latest_checkpoint(folder))
    assert bool(tf.train.latest_checkpoint(folder)) == readable
    try:
        checkpoint.restore(f"{folder}/ckpt-1").assert_consumed()
        assert readable
    except tf.errors.NotFoundError as error:
        print(f"{folder}:", str(error).splitlines()[0])
        assert not readable
os.symlink("units=[64,32]", "link")
checkpoint.restore("link/ckpt-1").assert_consumed()
END_OF_CODE
