"""Generated clicks on many categories, a table each: `data=tables` of benchmarks/conf."""

from __future__ import annotations

import click_examples
import tensorflow as tf
from click_examples import NUM_EXAMPLES, NUM_NUMBERS

from psrun.data.source import ArraySource, Feature


class ManyTables(ArraySource):
    """The examples of `click_examples.of_tables`, with its arguments."""

    def __init__(
        self, *, num_tables: int, rows: int, skew: float = 0.0, num_examples: int = NUM_EXAMPLES, seed: int = 1
    ) -> None:
        examples = click_examples.of_tables(
            num_tables=num_tables, rows=rows, skew=skew, num_examples=num_examples, seed=seed
        )
        features = {name: Feature((1,), tf.int64, num_buckets=rows) for name in examples[0] if name != "numbers"}
        features["numbers"] = Feature((NUM_NUMBERS,), tf.float32)
        super().__init__(features=features, task="binary", train=examples, evaluation=examples)
