"""By what evaluation examples are grouped: their users, and the segments that metrics are also reported by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from psrun.config import advice
from psrun.data.source import Feature
from psrun.errors import ConfigError, Problem

USER = "evaluation.user"
ITEM = "evaluation.item"
_BY = "evaluation.by"
_HASHES = 2**63 - 1


class EvaluationKeys:
    """The columns of evaluation examples by which metrics group them.

    Args:
      features: of the data.
      user: the feature with the users; None for none.
      by: the features of the segments.

    Raises:
      ConfigError: the data has no such feature, or it is no single value per example.
    """

    def __init__(self, features: Mapping[str, Feature], user: str | None, by: Sequence[str]) -> None:
        named = [] if user is None else [(USER, user)]
        wrong = [
            problem
            for key, name in [*named, *((f"{_BY}[{index}]", name) for index, name in enumerate(by))]
            for problem in problems(key, name, features)
        ]
        if wrong:
            raise ConfigError(wrong)
        self._features = features
        self._user = user
        self._by = by

    def of(self, features: Mapping[str, tf.Tensor]) -> dict[str, Any]:
        """The keys of a batch, (n,) each: `user`, a hash of the value (int64); `by`: texts or float32, by feature."""
        keys: dict[str, Any] = {"by": {name: _segment(features[name], self._features[name]) for name in self._by}}
        if self._user is not None:
            keys["user"] = tf.strings.to_hash_bucket_fast(_texts(features[self._user]), _HASHES)
        return keys


def problems(key: str, name: str, features: Mapping[str, Feature]) -> Iterator[Problem]:
    """Why a feature cannot group examples."""
    if name not in features:
        yield Problem(key, advice.no_such_feature(name, features))
        return
    feature = features[name]
    if feature.is_list or feature.shape not in ((), (1,)):
        yield Problem(key, f"is '{name}', which has several values for an example; choose a feature with one")
    elif key in (USER, ITEM) and feature.dtype.is_floating:
        yield Problem(key, f"is '{name}', which holds numbers with fractions; choose integers or strings")


def _texts(values: tf.Tensor) -> tf.Tensor:
    flat = tf.reshape(values, [-1])
    return flat if flat.dtype == tf.string else tf.strings.as_string(flat)


def _segment(values: tf.Tensor, feature: Feature) -> tf.Tensor:
    """Numbers as float32; what has ids, and strings, as text."""
    has_ids = feature.vocabulary is not None or feature.num_buckets is not None
    is_number = values.dtype != tf.string and (values.dtype.is_floating or not has_ids)
    return tf.cast(tf.reshape(values, [-1]), tf.float32) if is_number else _texts(values)
