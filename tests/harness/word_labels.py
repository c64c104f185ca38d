"""A source whose labels are words or other values, and the same with class numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from psrun.data.source import ArraySource, Feature


class Labelled(ArraySource):
    """Two numbers an example; the class is the part of the line in which their sum lies.

    Args:
      values: of the labels, in the order of the classes; None for class numbers.
      wrong: the label of the first training example, where it differs.
    """

    def __init__(self, *, values: list[Any] | None = None, num_classes: int = 2, wrong: str | None = None) -> None:
        rng = np.random.default_rng(3)
        multiclass = num_classes > 2

        def examples(count: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
            x = rng.uniform(size=(count, 2)).astype(np.float32)
            classes = (x.sum(axis=1) / 2 * num_classes).astype(np.int64)
            if values is None:
                return {"x": x}, classes if multiclass else classes[:, np.newaxis].astype(np.float32)
            labels = np.array(values, dtype="S8" if isinstance(values[0], str) else None)[classes]
            if wrong is not None and count == 200:
                labels[:] = wrong
            return {"x": x}, labels

        super().__init__(
            features={"x": Feature((2,), tf.float32)}, task="multiclass" if multiclass else "binary",
            train=examples(200), evaluation=examples(50), num_classes=num_classes if multiclass else 1,
        )  # fmt: skip
