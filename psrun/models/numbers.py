"""Numbers as a network takes them: clipped, by bins, and with a mark where one is missing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from psrun.data.source import Feature

CLIP = 5.0  # deviations; a larger number of a few examples would dominate the linear part


@tf_keras.utils.register_keras_serializable(package="psrun")
class NumberEncoding(tf_keras.layers.Layer):
    """Standardized numbers, with NaN for missing ones, as (numbers, codes).

    `numbers` are the inputs, clipped where the column has boundaries, 0 where missing. `codes` are, for each column
    with boundaries, one number per bin: -0.5 below the bin, 0.5 above it and linear inside, 0 where missing; and for
    each nullable column 1 where missing. A network on codes can bend at every boundary. They are the piecewise linear
    encoding of Gorishniy et al., "On Embeddings for Numerical Features in Tabular Deep Learning", NeurIPS 2022, moved
    by a half so that its mean is about 0.

    Args:
      boundaries: increasing numbers for each column; empty for a column without codes.
      nullable: for each column whether it may be missing.

    Call arguments:
      inputs: (batch, columns).

    Returns:
      (batch, columns) and (batch, codes); the second may have no columns.
    """

    def __init__(self, boundaries: Sequence[Sequence[float]], nullable: Sequence[bool], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if len(boundaries) != len(nullable):
            raise ValueError(f"there are boundaries of {len(boundaries)} columns, but nullable of {len(nullable)}")
        self.boundaries = [[float(each) for each in column] for column in boundaries]
        self.nullable = [bool(each) for each in nullable]
        bins = [
            (column, low, high - low)
            for column, edges in enumerate(self.boundaries)
            for low, high in itertools.pairwise(edges)
            if np.float32(high) > np.float32(low)
        ]
        self._columns = np.array([column for column, _, _ in bins], np.int32)
        self._lows = np.array([low for _, low, _ in bins], np.float32)
        self._widths = np.array([width for _, _, width in bins], np.float32)
        self._marked: np.ndarray = np.flatnonzero(self.nullable).astype(np.int32)
        self._limits = np.array([CLIP if edges else math.inf for edges in self.boundaries], np.float32)

    def call(self, inputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        missing = tf.math.is_nan(inputs)
        numbers = tf.clip_by_value(tf.where(missing, 0.0, inputs), -self._limits, self._limits)
        values = tf.gather(inputs, self._columns, axis=1)
        inside = tf.clip_by_value((values - self._lows) / self._widths, 0.0, 1.0) - 0.5
        codes = tf.where(tf.math.is_nan(values), 0.0, inside)
        marks = tf.cast(tf.gather(missing, self._marked, axis=1), inputs.dtype)
        return numbers, tf.concat([codes, marks], 1)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "boundaries": self.boundaries, "nullable": self.nullable}


def encoded(
    tensors: Mapping[str, tf.Tensor], features: Mapping[str, Feature]
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """The numbers of the features in `tensors` side by side, and their codes; each a list of one tensor, or of none.

    Args:
      tensors: (batch, *shape) of float32 by feature, as `psrun.models.model.prepared` returns them with keep_missing.
    """
    if not tensors:
        return [], []
    flat = [tf_keras.layers.Flatten()(tensor) for tensor in tensors.values()]
    widths = [tensor.shape[1] for tensor in flat]
    together = flat[0] if len(flat) == 1 else tf_keras.layers.Concatenate()(flat)
    boundaries = [edges for name, width in zip(tensors, widths) for edges in [standardized(features[name])] * width]
    nullable = [each for name, width in zip(tensors, widths) for each in [features[name].nullable] * width]
    if not any(boundaries) and not any(nullable):
        return [together], []
    numbers, codes = NumberEncoding(boundaries, nullable)(together)
    return [numbers], [codes] if codes.shape[1] else []


def standardized(feature: Feature) -> list[float]:
    """The boundaries on the scale on which models get the feature."""
    edges = [math.log1p(max(edge, 0.0)) for edge in feature.boundaries] if feature.logarithm else feature.boundaries
    return [(edge - feature.mean) / feature.deviation for edge in edges]
