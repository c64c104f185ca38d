"""Writes a trained model as a SavedModel that takes raw features and does not need psrun."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from psrun.checkpoint.load_model import DEVICE, LoadedModel, predict, signature
from psrun.data.lists import length_name
from psrun.data.source import DataSource
from psrun.errors import ExportError
from psrun.files import is_pattern
from psrun.program.zeros import zeros
from psrun.recsys import interactions
from psrun.recsys.pair_scores import ItemVectors, PairScores

_ABOUT = "psrun.json"


def write(trained: LoadedModel, folder: Path, warn: Callable[[str], None]) -> Path:
    """Writes `folder`/STEP, the layout for TensorFlow Serving; replaces an export of the same step.

    The signature `serving_default` takes a batch of raw features by name, strings included, and returns `prediction`
    (or the names of the model's outputs). If classes have names and the prediction is one probability per class, it
    also returns `class`, the name of the most probable one. assets.extra/psrun.json has all names, in order. A list is
    a padded matrix, (batch, any width), and an input NAME_length with the number of its values, (batch,). Longer lists
    than `max_values` are truncated.

    With `export.top_k`, the signature `recommend` takes the features of users and returns `item`, the raw values of the
    items with the highest scores among those of all examples, and `score`: (batch, top_k). It leaves out none.

    Args:
      warn: prints a warning.

    Raises:
      ConfigError: the data lacks the features of users or items.
      ExportError: TensorFlow cannot save the model, or the disk is full or cannot be written to.
    """
    root = tf.Module()
    # Objects of the preprocessing, such as lookup tables, are saved only if the root refers to them.
    parts = (trained.model.network, trained.model.preprocessing)
    root.parts = [part for part in parts if isinstance(part, tf.Module)]

    def serve(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        outputs = predict(trained.model, trained.source, _without_padding(trained.source, features))
        if isinstance(outputs, dict):
            return outputs
        names = trained.class_names
        if names is None or outputs.shape.as_list()[1:] != [len(names)]:
            return {"prediction": outputs}
        return {"prediction": outputs, "class": tf.gather(tf.constant(names), tf.argmax(outputs, axis=1))}

    root.serve = tf.function(serve, input_signature=[_padded(trained.source)])
    signatures = {"serving_default": root.serve}
    if trained.recommends is not None:
        signatures["recommend"] = root.recommend = _recommending(root, trained)
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


def _recommending(root: tf.Module, trained: LoadedModel) -> Any:
    """The function of `recommend`; `root` gets its variables."""
    assert trained.recommends is not None
    top_k, evaluation = trained.recommends
    model = trained.model
    assert model.towers is not None
    known = interactions.of_run(evaluation, trained.source, model)
    scores = PairScores(model, known)
    scores.refresh()
    vectors = ItemVectors.of(scores.item_vectors)
    root.item_vectors = tf.Variable(vectors.distinct, trainable=False)
    root.item_places = tf.Variable(vectors.place, trainable=False)
    items = ItemVectors(root.item_vectors, root.item_places)
    root.items = tf.Variable(tf.reshape(known.items[evaluation.item or ""], [-1]), trainable=False)
    first = {name: values[:1] for name, values in known.items.items()}
    left_out = {name for each in (*first, *model.unused) for name in (each, length_name(each))}
    specs = {name: spec for name, spec in _padded(trained.source).items() if name not in left_out}
    towers = model.towers

    def recommend(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        count = tf.shape(next(iter(features.values())))[0]
        of_items = {name: tf.gather(values, tf.zeros([count], tf.int32)) for name, values in first.items()}
        unused = {name: zeros(spec) for name, spec in signature(trained.source).items() if name in model.unused}
        unused = {name: tf.gather(value, tf.zeros([count], tf.int32)) for name, value in unused.items()}
        whole = _without_padding(trained.source, features) | of_items | unused
        query = towers.vectors(model.preprocessed(whole), training=False)["query"]
        found = tf.math.top_k(items.products(query), min(top_k, known.num_items))
        return {"item": tf.gather(root.items, found.indices), "score": found.values}

    return tf.function(recommend, input_signature=[specs])


def _padded(source: DataSource) -> dict[str, tf.TensorSpec]:
    """The signature of a batch of raw features without RaggedTensors, which have no names in a SavedModel."""
    specs = {name: tf.TensorSpec(spec.shape, spec.dtype, name) for name, spec in signature(source).items()}
    lengths = {length_name(name) for name in _lists(source).values()}
    return {**specs, **{name: tf.TensorSpec([None], tf.int64, name) for name in lengths}}


def _without_padding(source: DataSource, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor | tf.RaggedTensor]:
    unpadded: dict[str, tf.Tensor | tf.RaggedTensor] = {
        name: features[name] for name in source.features if name in features
    }
    for name, of in _lists(source).items():
        if name not in features:  # of items, where those of users are recommended to
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
