"""The signature of an exported model that recommends items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from psrun.checkpoint.trained_model import LoadedModel, padded, signature, without_padding
from psrun.config.run_config import RunConfig
from psrun.data.lists import length_name
from psrun.program.batch_checks import zeros
from psrun.recsys import interactions
from psrun.recsys.pair_scores import ItemVectors, PairScores


def signatures(run: RunConfig, root: tf.Module, trained: LoadedModel) -> dict[str, Any]:
    """The function `recommend` of an export with `export.top_k`.

    It takes the features of users and returns `item`, the raw values of the items with the highest scores among the
    items of all examples, and `score`: (batch, top_k). It leaves out none.

    Args:
      root: gets the variables of the function.

    Raises:
      ConfigError: the data lacks the features of users or items.
    """
    model = trained.model
    top_k = run.export.top_k
    assert top_k is not None
    assert model.towers is not None
    known = interactions.of_run(run.evaluation, trained.source, model)
    scores = PairScores(model, known)
    scores.refresh()
    vectors = ItemVectors.of(scores.item_vectors)
    root.item_vectors = tf.Variable(vectors.distinct, trainable=False)
    root.item_places = tf.Variable(vectors.place, trainable=False)
    items = ItemVectors(root.item_vectors, root.item_places)
    root.items = tf.Variable(tf.reshape(known.items[run.evaluation.item or ""], [-1]), trainable=False)
    first_item = {name: values[:1] for name, values in known.items.items()}
    towers = model.towers

    def recommend(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        count = tf.shape(next(iter(features.values())))[0]
        # The vector of a user does not depend on these.
        others = _repeated(first_item, count) | _repeated(_unused(trained), count)
        whole = without_padding(trained.source, features) | others
        query = towers.vectors(model.preprocessed(whole), training=False)["query"]
        found = tf.math.top_k(items.products(query), min(top_k, known.num_items))
        return {"item": tf.gather(root.items, found.indices), "score": found.values}

    specs = _of_users(padded(trained.source), [*first_item, *model.unused])
    return {"recommend": tf.function(recommend, input_signature=[specs])}


def _of_users(specs: Mapping[str, tf.TensorSpec], others: list[str]) -> dict[str, tf.TensorSpec]:
    """The inputs without other features and the lengths of these."""
    left_out = {*others, *(length_name(name) for name in others)}
    return {name: spec for name, spec in specs.items() if name not in left_out}


def _unused(trained: LoadedModel) -> dict[str, tf.Tensor]:
    """One example of the features that the model ignores."""
    specs = signature(trained.source)
    return {name: zeros(specs[name]) for name in specs if name in trained.model.unused}


def _repeated(example: Mapping[str, Any], count: tf.Tensor) -> dict[str, Any]:
    """A batch of `count` examples that are equal to the first one."""
    return {name: tf.gather(values, tf.zeros([count], tf.int32)) for name, values in example.items()}
