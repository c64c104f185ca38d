"""Clicks on items by users with a history of items, with a known truth: see `psrun.tables.histories`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from psrun.data.lists import of_lengths
from psrun.data.source import ArraySource, Feature
from psrun.tables import histories

NUM_ITEMS, MAX_VALUES = 60, 10
NUM_EVAL = 53  # the last batch of an evaluation is a small one
MODELS = {
    "din": ("model=din", "model.history=history", "model.target=item", "model.hidden_units=[8]"),
    "dlrm": ("model=dlrm", "model.embedding_dim=4"),
    "wide_deep": ("model=wide_deep", "model.embedding_dim=4"),
    "two_tower": ("model=two_tower", "model.query_features=[history,words]", "model.hidden_units=[8,4]"),
}


def arguments(model: str, *pieces: str) -> tuple[str, ...]:
    """The arguments of a run of a model on `Clicks`."""
    own = ("data=regression", "~data.num_train_examples", "~data.num_eval_examples", "~data.noise",
           "~data.num_features", "data._target_=list_models.Clicks", "data.global_batch_size=16")  # fmt: skip
    return (*MODELS[model], *own, *pieces)


class Clicks(ArraySource):
    """Examples with an item, the history, the seconds spent on each of its items, words and a number.

    Args:
      changes: to features, by name; those that are None are left out.
    """

    def __init__(
        self,
        *,
        num_train: int = 256,
        num_eval: int = NUM_EVAL,
        changes: dict[str, dict[str, Any] | None] | None = None,
    ) -> None:
        recipe = histories.Recipe(1, 1, num_values=NUM_ITEMS, num_groups=6, max_values=MAX_VALUES, signal=3.0)
        truth = histories.Truth(recipe, np.random.default_rng(1))

        def examples(count: int, seed: int) -> Any:
            rng = np.random.default_rng(seed)
            rows, probability = truth.draw(rng, count)
            held = np.arange(MAX_VALUES) < rows.lengths[:, np.newaxis]
            history = of_lengths(rows.history[held].astype(np.int64), rows.lengths)
            words = np.array([b"ant", b"bee", b"cat"])[history.values % 3]
            features = {
                "item": rows.items.reshape(-1, 1).astype(np.int64), "history": history,
                "seconds": of_lengths(rows.seconds[held].astype(np.float32), rows.lengths),
                "words": of_lengths(words, rows.lengths), "x": rng.normal(size=(count, 1)).astype(np.float32),
            }  # fmt: skip
            label = (rng.random(count) < probability).astype(np.float32)[:, np.newaxis]
            return {name: features[name] for name in described}, label

        items: dict[str, Any] = {"vocabulary": tuple(range(NUM_ITEMS)), "table": "item"}
        described = {
            "item": Feature((1,), tf.int64, **items),
            "history": Feature((None,), tf.int64, max_values=MAX_VALUES, weights="seconds", **items),
            "seconds": Feature((None,), tf.float32, max_values=MAX_VALUES),
            "words": Feature((None,), tf.string, num_buckets=7, max_values=MAX_VALUES, combiner="max"),
            "x": Feature((1,), tf.float32),
        }
        for name, change in (changes or {}).items():
            feature = described.pop(name)
            if change is not None:
                described[name] = replace(feature, **change)
        super().__init__(
            features=described, task="binary", train=examples(num_train, 5), evaluation=examples(num_eval, 9)
        )
