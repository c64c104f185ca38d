"""Features with lists of ids in models: how their rows are pooled, and by which weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import tensorflow as tf

from psrun.data.source import DataSource, Feature
from psrun.models.model import ArgumentError


def of_weights(features: Mapping[str, Feature]) -> set[str]:
    """The features that are only the weights of others."""
    return {feature.weights for feature in features.values() if feature.weights is not None}


def combiners(features: Mapping[str, Feature], num_ids: Iterable[str]) -> dict[str, str | None]:
    """The combiner of each list with ids."""
    return {name: features[name].combiner for name in num_ids if features[name].is_list}


def weights(
    features: Mapping[str, Feature], num_ids: Iterable[str], tensors: Mapping[str, tf.Tensor]
) -> dict[str, tf.Tensor]:
    """The weights of the ids of each list that has some."""
    return {name: tensors[weight_name] for name in num_ids if (weight_name := features[name].weights) is not None}


def check(source: DataSource, num_ids: Iterable[str], model: str, *, sequences: Iterable[str] = ()) -> None:
    """Checks that a model can pool the lists of the data.

    Args:
      num_ids: features with ids.
      sequences: lists that the model does not pool.

    Raises:
      ArgumentError: a list has no combiner or no ids, or its rows are pooled by 'max' and have weights.
    """
    problems, only_weights, with_ids = [], of_weights(source.features), set(num_ids)
    for name, feature in source.features.items():
        if not feature.is_list or name in only_weights or name in sequences:
            continue
        if name not in with_ids:
            message = f"{model} requires ids in lists, but {name} has none; set its vocabulary or num_buckets"
            problems.append(("", f"{message}, or remove it from the features"))
        elif feature.combiner is None:
            message = f"{model} pools lists, but {name} has no combiner; choose sum, mean, sqrtn or max"
            problems.append(("", message))
        elif feature.combiner == "max" and feature.weights is not None:
            message = f"{name} has the combiner max, which takes no weights; choose sum, mean or sqrtn"
            problems.append(("", f"{message}, or remove its weights"))
    if problems:
        raise ArgumentError(*problems)
