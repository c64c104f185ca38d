"""Writing a trained model as a SavedModel that takes raw features and loads where there is no psrun."""

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
    """Writes `folder`/STEP, the layout that TensorFlow Serving wants; one of the same step is replaced.

    The signature `serving_default` takes a batch of raw features by name, strings included, and returns `prediction`
    (or what the model's outputs are called). Where classes have names and the prediction is one probability a class, it
    also returns `class`, the name of the most probable one. assets.extra/psrun.json has all names, in order.

    Raises:
      ExportError: the model holds something that TensorFlow cannot save, or the disk is full or cannot be written to.
    """
    root = tf.Module()
    # Also what the preprocessing refers to, such as lookup tables, must be found from the root to be saved.
    parts = (trained.model.network, trained.model.preprocessing)
    root.parts = [part for part in parts if isinstance(part, tf.Module)]

    def serve(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        found = predict(trained.model, trained.source, features)
        if isinstance(found, dict):
            return found
        names = trained.class_names
        if names is None or found.shape.as_list()[1:] != [len(names)]:
            return {"prediction": found}
        return {"prediction": found, "class": tf.gather(tf.constant(names), tf.argmax(found, axis=1))}

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
    """Puts `part` where `final` is; readers see the one or the other, but for a moment none."""
    old = final.with_name(f"{part.name}.old")
    if final.exists():
        final.rename(old)
    part.rename(final)
    shutil.rmtree(old, ignore_errors=True)
