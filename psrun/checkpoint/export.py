"""Writes a trained model as a SavedModel that takes raw features and does not need psrun."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import tensorflow as tf

from psrun.checkpoint.load_model import DEVICE, LoadedModel, predict, signature
from psrun.errors import ExportError

_ABOUT = "psrun.json"


def write(trained: LoadedModel, folder: Path) -> Path:
    """Writes `folder`/STEP, the layout for TensorFlow Serving; replaces an export of the same step.

    The signature `serving_default` takes a batch of raw features by name, strings included, and returns `prediction`
    (or the names of the model's outputs). If classes have names and the prediction is one probability per class, it
    also returns `class`, the name of the most probable one. assets.extra/psrun.json has all names, in order.

    Raises:
      ExportError: TensorFlow cannot save the model, or the disk is full or cannot be written to.
    """
    root = tf.Module()
    # Objects of the preprocessing, such as lookup tables, are saved only if the root refers to them.
    parts = (trained.model.network, trained.model.preprocessing)
    root.parts = [part for part in parts if isinstance(part, tf.Module)]

    def serve(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        outputs = predict(trained.model, trained.source, features)
        if isinstance(outputs, dict):
            return outputs
        names = trained.class_names
        if names is None or outputs.shape.as_list()[1:] != [len(names)]:
            return {"prediction": outputs}
        return {"prediction": outputs, "class": tf.gather(tf.constant(names), tf.argmax(outputs, axis=1))}

    root.serve = tf.function(serve, input_signature=[signature(trained.source)])
    final = folder / str(trained.checkpoint.step)
    part = folder / f".{final.name}.{os.getpid()}"
    try:
        with tf.device(DEVICE):
            tf.saved_model.save(root, str(part), signatures=root.serve)
        about = part / "assets.extra"
        about.mkdir()
        (about / _ABOUT).write_text(json.dumps(_about(trained), indent=2) + "\n", encoding="utf-8")
        _replace(final, part)
    except (tf.errors.OpError, OSError, AssertionError, ValueError) as error:
        shutil.rmtree(part, ignore_errors=True)
        raise ExportError(f"the model could not be exported to {final}: {error}") from error
    return final


def _about(trained: LoadedModel) -> dict[str, object]:
    held, names = trained.checkpoint, trained.class_names
    about = {"step": held.step, "config_sha256": held.config_sha256, "psrun": held.psrun, "saved_at": held.saved_at}
    return {**about, "label_vocabulary": list(names)} if names else about


def _replace(final: Path, part: Path) -> None:
    """Replaces `final` by `part`; for a moment, readers see neither."""
    old = final.with_name(f"{part.name}.old")
    if final.exists():
        final.rename(old)
    part.rename(final)
    shutil.rmtree(old, ignore_errors=True)
