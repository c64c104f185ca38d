"""A metric of lists of another package: the median error of the examples of each list, and of these the mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from psrun.parts import GatheredMetric
from psrun.program.compiled_model import Program


class MedianError(GatheredMetric):
    name = "median_error"


class MedianErrorGathering:
    """Examples whose first value has the same sign are a list."""

    metric_names = (MedianError.name,)

    def check(self) -> None:
        pass

    def columns(self, features: Mapping[str, Any]) -> Any:
        (values,) = features.values()
        return values[:, 0] > 0

    def begin(self, metrics: Sequence[Any]) -> Lists:
        return Lists()


class Lists:
    warnings = ()

    def __init__(self) -> None:
        self._rows: list[Any] = []

    def reset(self) -> None:
        self._rows = []

    def rows(self, columns: Any, label: Any, prediction: Any, weight: Any) -> Any:
        flat = tf.reshape(prediction, [-1])
        errors = tf.abs(flat - tf.cast(tf.reshape(label, [-1]), flat.dtype))
        return columns, errors

    def add(self, rows: Any) -> None:
        self._rows.append(rows)

    def result(self, progress: Callable[[], None]) -> tuple[Mapping[str, float | None], Mapping[str, Any]]:
        lists, errors = (np.concatenate(column) for column in zip(*self._rows))
        medians = [np.median(errors[lists == each]) for each in (False, True)]
        return {MedianError.name: float(np.mean(medians))}, {}


def gathering(program: Program) -> MedianErrorGathering | None:
    for metrics in program.gathered_metrics.values():
        if any(isinstance(metric, MedianError) for metric in metrics):
            return MedianErrorGathering()
    return None
