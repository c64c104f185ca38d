"""Metrics of the probabilities of binary labels that are sums and counts: workers add to them within their steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from psrun.tf_internals.strategies import takes_scattered

_OCTAVES = 31  # of the distance of a probability from 0 or 1; smaller distances share a counter
_MANTISSA = 23  # bits of a float32
_QUARTER = 125  # the exponent of 0.25 in a float32
_MOST_FINE = 4  # an octave has at least 2**(bits - _MOST_FINE) counters
# With more counters, an addition to all of them takes longer than one to the counters of a batch. With fewer, the
# steps of a closure can add to them on the worker (`psrun.closures.worker_variables`).
_BITS_SUMMED = 10
_SMALLEST = 1e-7  # the distance of probabilities from 0 and 1 in a loss, as in Keras


class Intervals:
    """The intervals in which an AUC counts scores; scores of one interval are equal.

    Args:
      from_logits, bits: see `AUC`.
    """

    def __init__(self, from_logits: bool = False, bits: int = 17) -> None:
        self.from_logits = from_logits
        octaves = np.arange(_OCTAVES)
        self._log_sizes = np.maximum(bits - octaves, bits - _MOST_FINE).astype(np.int32)
        sizes = 1 << self._log_sizes
        self._half = int(sizes.sum())
        self._begins = (self._half - np.cumsum(sizes)).astype(np.int32)

    def __len__(self) -> int:
        return 2 * self._half

    def of(self, score: Any) -> tf.Tensor:
        """(n,) the number of the interval of each score, rising with it: int32, from 0 on."""
        score = tf.cast(score, tf.float32)
        if self.from_logits:
            is_high = score > 0
            distance = tf.sigmoid(-tf.abs(score))
        else:
            is_high = score > 0.5
            distance = tf.where(is_high, 1 - score, score)
        bits = tf.bitcast(distance, tf.int32)
        octave = _QUARTER - tf.bitwise.right_shift(bits, _MANTISSA)
        known = tf.clip_by_value(octave, 0, _OCTAVES - 1)
        mantissa = tf.bitwise.bitwise_and(bits, (1 << _MANTISSA) - 1)
        within = tf.bitwise.right_shift(mantissa, _MANTISSA - tf.gather(self._log_sizes, known))
        place = tf.gather(self._begins, known) + within
        place = tf.where(octave < 0, self._half - 1, tf.where(octave >= _OCTAVES, 0, place))
        return tf.where(is_high, 2 * self._half - 1 - place, place)


class AUC(tf_keras.metrics.Metric):
    """The area under the ROC curve: the share of pairs of a positive and a negative example, by weight, in which the
    positive one has the higher score; of equal scores half of the pairs count.

    Scores are counted by class in intervals that become smaller towards 0 and 1, and scores of one interval are equal.
    A probability between 1/4 and 3/4 is known to 2**-(bits + 2), one close to 0 or 1 to 2**-(bits - 4) of its distance
    from there: the thresholds of Keras' AUC, 0.005 apart, do not tell the scores of rare clicks apart.

    A label other than 0 is positive. Scores beyond 0 and 1 count as these. Without both classes it is undefined, and 0
    as in Keras.

    Args:
      from_logits: whether predictions are logits.
      bits: 17 gives a million intervals, whose counters take 15 MB; 8 gives 1,800.
    """

    def __init__(self, name: str = "auc", dtype: Any = None, from_logits: bool = False, bits: int = 17) -> None:
        super().__init__(name=name, dtype=dtype)
        self.from_logits = from_logits
        self.bits = bits
        self.intervals = Intervals(from_logits, bits)
        # One row, which no partitioner cuts: scattered numbers are added to whole variables only.
        shape = (1, 2 * len(self.intervals))
        self.counts = self.add_weight(name="counts", shape=shape, initializer="zeros", dtype=tf.float64)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Counts examples; all arguments have the same number of values, or weights one for each example."""
        y_pred = tf.cast(y_pred, tf.float32)
        y_true = tf.convert_to_tensor(y_true)
        y_pred.shape.assert_is_compatible_with(y_true.shape)
        weight = _weights(y_pred, sample_weight)
        is_positive = tf.cast(tf.reshape(y_true, [-1]) != 0, tf.int32)
        place = self.intervals.of(tf.reshape(y_pred, [-1])) + len(self.intervals) * is_positive
        if self.bits > _BITS_SUMMED and takes_scattered(self.counts):
            self.counts.scatter_nd_add(tf.stack([tf.zeros_like(place), place], axis=1), weight)
        else:
            self.counts.assign_add(tf.math.unsorted_segment_sum(weight, place, 2 * len(self.intervals))[tf.newaxis])

    def result(self) -> tf.Tensor:
        negatives, positives = tf.unstack(tf.reshape(self.counts, [2, len(self.intervals)]))
        below = tf.cumsum(negatives, exclusive=True) + negatives / 2
        pairs = tf.reduce_sum(negatives) * tf.reduce_sum(positives)
        return tf.math.divide_no_nan(tf.reduce_sum(positives * below), pairs)

    def reset_state(self) -> None:
        self.counts.assign(np.zeros(self.counts.shape))

    def is_undefined(self) -> bool:
        totals = tf.reduce_sum(tf.reshape(self.counts, [2, len(self.intervals)]), axis=1)
        return bool(tf.reduce_any(tf.equal(totals, 0)))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "from_logits": self.from_logits, "bits": self.bits}


class _Sums(tf_keras.metrics.Metric):
    """A metric of the sums of losses, labels, predictions and weights over all examples."""

    def __init__(self, name: str, dtype: Any = None, from_logits: bool = False) -> None:
        super().__init__(name=name, dtype=dtype)
        self.from_logits = from_logits
        self.sums = self.add_weight(name="sums", shape=(1, 4), initializer="zeros", dtype=tf.float64)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds examples; all arguments have the same number of values, or weights one for each example."""
        y_pred = tf.convert_to_tensor(y_pred)
        y_true = tf.convert_to_tensor(y_true)
        y_pred.shape.assert_is_compatible_with(y_true.shape)
        weight = _weights(y_pred, sample_weight)
        label = tf.reshape(tf.cast(y_true, tf.float64), [-1])
        score = tf.reshape(tf.cast(y_pred, tf.float64), [-1])
        if self.from_logits:
            loss = tf.nn.sigmoid_cross_entropy_with_logits(label, score)
            probability = tf.sigmoid(score)
        else:
            probability = score
            clipped = tf.clip_by_value(score, _SMALLEST, 1 - _SMALLEST)
            loss = -label * tf.math.log(clipped) - (1 - label) * tf.math.log1p(-clipped)
        sums = [tf.reduce_sum(weight * each) for each in (loss, label, probability)]
        self.sums.assign_add(tf.stack([*sums, tf.reduce_sum(weight)])[tf.newaxis])

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "from_logits": self.from_logits}

    def reset_state(self) -> None:
        self.sums.assign(np.zeros(self.sums.shape))

    def _of_examples(self) -> list[tf.Tensor]:
        """The sums of losses, labels, predictions and weights."""
        return tf.unstack(tf.convert_to_tensor(self.sums)[0])


class LogLoss(_Sums):
    """The mean binary cross-entropy, in nats, without regularization."""

    def __init__(self, name: str = "log_loss", dtype: Any = None, from_logits: bool = False) -> None:
        super().__init__(name, dtype, from_logits)

    def result(self) -> tf.Tensor:
        loss, _, _, weight = self._of_examples()
        return tf.math.divide_no_nan(loss, weight)


class NormalizedEntropy(_Sums):
    """The log loss, divided by the log loss of a model that predicts the mean of the labels of the same examples: 1 is
    no better than that; less is better.

    He et al.: Practical Lessons from Predicting Clicks on Ads at Facebook, 2014.

    Undefined, and 0, without both classes.
    """

    def __init__(self, name: str = "normalized_entropy", dtype: Any = None, from_logits: bool = False) -> None:
        super().__init__(name, dtype, from_logits)

    def result(self) -> tf.Tensor:
        loss, label, _, weight = self._of_examples()
        rate = tf.math.divide_no_nan(label, weight)
        entropy = -tf.math.xlogy(rate, rate) - tf.math.xlog1py(1 - rate, -rate)
        return tf.math.divide_no_nan(loss, weight * entropy)

    def is_undefined(self) -> bool:
        _, label, _, weight = self._of_examples()
        return not 0 < float(label) < float(weight)


class Calibration(_Sums):
    """The sum of the predictions over the sum of the labels, by weight: 1 is best; more: the model promises more clicks
    than there are. Undefined, and 0, without a positive label.
    """

    def __init__(self, name: str = "calibration", dtype: Any = None, from_logits: bool = False) -> None:
        super().__init__(name, dtype, from_logits)

    def result(self) -> tf.Tensor:
        _, label, prediction, _ = self._of_examples()
        return tf.math.divide_no_nan(prediction, label)

    def is_undefined(self) -> bool:
        return not float(self._of_examples()[1]) > 0


# Metrics of the probabilities of a binary label by name; `psrun.config.rules.METRICS_OF_PROBABILITIES` lists them, too.
OF_PROBABILITIES: dict[str, type[tf_keras.metrics.Metric]] = {
    "auc": AUC,
    "log_loss": LogLoss,
    "normalized_entropy": NormalizedEntropy,
    "calibration": Calibration,
}


def _weights(values: tf.Tensor, sample_weight: Any) -> tf.Tensor:
    """The weight of each value, float64 (n,); 1 without weights."""
    if sample_weight is None:
        return tf.ones([tf.size(values)], tf.float64)
    weight = tf.cast(sample_weight, tf.float64)
    while weight.shape.rank < values.shape.rank:
        weight = weight[..., tf.newaxis]
    return tf.reshape(tf.broadcast_to(weight, tf.shape(values)), [-1])
