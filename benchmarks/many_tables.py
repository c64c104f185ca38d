"""Generated clicks on many categories, with one table per category: `data=tables` of benchmarks/conf."""

from __future__ import annotations

from typing import Any

import click_examples
import numpy as np
import tensorflow as tf
from click_examples import NUM_EXAMPLES, NUM_NUMBERS

from psrun.data.lists import of_lengths
from psrun.data.source import ArraySource, Feature


class ManyTables(ArraySource):
    """The examples of `click_examples.of_tables`, with its arguments.

    Args:
      list_length: each feature is a list of this number of values; 0: one value, not a list.
    """

    def __init__(
        self,
        *,
        num_tables: int,
        rows: int,
        skew: float = 0.0,
        num_examples: int = NUM_EXAMPLES,
        list_length: int = 0,
        seed: int = 1,
    ) -> None:
        arrays, labels = click_examples.of_tables(
            num_tables=num_tables, rows=rows, width=max(1, list_length), skew=skew, num_examples=num_examples, seed=seed
        )
        values: dict[str, Any] = dict(arrays)
        features = {"numbers": Feature((NUM_NUMBERS,), tf.float32)}
        for name in arrays.keys() - features.keys():
            if list_length:
                features[name] = Feature((None,), tf.int64, num_buckets=rows, max_values=list_length)
                values[name] = of_lengths(arrays[name].ravel(), np.full(num_examples, list_length))
            else:
                features[name] = Feature((1,), tf.int64, num_buckets=rows)
        examples = values, labels
        super().__init__(features=features, task="binary", train=examples, evaluation=examples)
