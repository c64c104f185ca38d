"""Writes a trained model as a SavedModel that takes raw features and does not need psrun."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from psrun.checkpoint.load_model import DEVICE, LoadedModel, predict, signature
from psrun.data.lists import length_name
from psrun.data.source import DataSource
from psrun.errors import ExportError
from psrun.files import is_pattern

_ABOUT = "psrun.json"


def write(trained: LoadedModel, folder: Path, warn: Callable[[str], None]) -> Path:
    """Writes `folder`/STEP, the layout for TensorFlow Serving; replaces an export of the same step.

    The signature `serving_default` takes a batch of raw features by name, strings included, and returns `prediction`
    (or the names of the model's outputs). If classes have names and the prediction is one probability per class, it
    also returns `class`, the name of the most probable one. assets.extra/psrun.json has all names, in order. A list is
    a padded matrix, (batch, any width), and an input NAME_length with the number of its values, (batch,). Longer lists
    than `max_values` are truncated.

    With `export.top_k`, a part adds signatures (`psrun.parts.Part.outputs`). Its function takes the `RunConfig`, the
    object that is saved, which has to hold all variables, and the model; it returns functions by name.

    Args:
      warn: prints a warning.

    Raises:
      ConfigError: the model or the data has no such signature.
      ExportError: TensorFlow cannot save the model, or the disk is full or cannot be written to.
    """
    root = tf.Module()
    # Objects of the preprocessing, such as lookup tables, are saved only if the root refers to them.
    parts = (trained.model.network, trained.model.preprocessing)
    root.parts = [part for part in parts if isinstance(part, tf.Module)]

    def serve(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        outputs = predict(trained.model, trained.source, without_padding(trained.source, features))
        if isinstance(outputs, dict):
            return outputs
        names = trained.class_names
        if names is None or outputs.shape.as_list()[1:] != [len(names)]:
            return {"prediction": outputs}
        return {"prediction": outputs, "class": tf.gather(tf.constant(names), tf.argmax(outputs, axis=1))}

    root.serve = tf.function(serve, input_signature=[padded(trained.source)])
    signatures = {"serving_default": root.serve}
    if trained.more_signatures is not None:
        for name, function in trained.more_signatures(root, trained).items():
            setattr(root, name, function)
            signatures[name] = function
    final = folder / str(trained.checkpoint.step)
    part = folder / f".{final.name}.{os.getpid()}"
    try:
        with tf.device(DEVICE):
            tf.saved_model.save(root, str(part), signatures=signatures)
        about = part / "assets.extra"
        about.mkdir()
        (about / _ABOUT).write_text(json.dumps(_about(trained), indent=2) + "\n", encoding="utf-8")
        _replace(final, part)
    except (tf.errors.OpError, OSError, AssertionError, ValueError) as error:
        shutil.rmtree(part, ignore_errors=True)
        raise ExportError(f"the model could not be exported to {final}: {error}") from error
    if is_pattern(final.absolute()):
        warn(f"TensorFlow takes {final} for a pattern and cannot load the model there: copy it to another folder")
    return final


def padded(source: DataSource) -> dict[str, tf.TensorSpec]:
    """The signature of a batch of raw features without RaggedTensors, which have no names in a SavedModel."""
    specs = {name: tf.TensorSpec(spec.shape, spec.dtype, name) for name, spec in signature(source).items()}
    lengths = {length_name(name) for name in _lists(source).values()}
    return {**specs, **{name: tf.TensorSpec([None], tf.int64, name) for name in lengths}}


def without_padding(source: DataSource, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor | tf.RaggedTensor]:
    """A batch of raw features as the data has them, from a batch of the signature `padded`."""
    unpadded: dict[str, tf.Tensor | tf.RaggedTensor] = {
        name: features[name] for name in source.features if name in features
    }
    for name, of in _lists(source).items():
        if name not in features:  # of a signature that takes some of the features
            continue
        feature = source.features[of]
        assert feature.max_values is not None
        whole = tf.RaggedTensor.from_tensor(features[name], lengths=features[length_name(of)])
        # Longer lists are truncated, as in training.
        if feature.keep == "last":
            unpadded[name] = whole[:, -feature.max_values :]
        else:
            unpadded[name] = whole[:, : feature.max_values]
    return unpadded


def _lists(source: DataSource) -> dict[str, str]:
    """The lists by name, each with the list whose lengths it has: weights have those of their values."""
    owners = {feature.weights: name for name, feature in source.features.items() if feature.weights is not None}
    return {name: owners.get(name, name) for name, feature in source.features.items() if feature.is_list}


def _about(trained: LoadedModel) -> dict[str, object]:
    manifest = trained.checkpoint
    names = trained.class_names
    about = {
        "step": manifest.step,
        "config_sha256": manifest.config_sha256,
        "psrun": manifest.psrun,
        "saved_at": manifest.saved_at,
    }
    return {**about, "label_vocabulary": list(names)} if names else about


def _replace(final: Path, part: Path) -> None:
    """Replaces `final` by `part`; for a moment, readers see neither."""
    old = final.with_name(f"{part.name}.old")
    if final.exists():
        final.rename(old)
    part.rename(final)
    shutil.rmtree(old, ignore_errors=True)
