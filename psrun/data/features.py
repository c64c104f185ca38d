"""Generated string features, as in TensorFlow's parameter server tutorial."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from psrun.data.source import ArraySource, Feature

VOCABULARY = ("avenger", "ironman", "batman", "hulk", "spiderman", "kingkong", "wonder_woman")
NAMES_PER_EXAMPLE = 3


class HeroFeatures(ArraySource):
    """Three hero names per example, drawn with replacement; the label is 1 if one of them is 'avenger'."""

    def __init__(self, *, num_train_examples: int = 10000, num_eval_examples: int = 2000, seed: int = 1) -> None:
        rng = np.random.default_rng(seed)
        super().__init__(
            features={"features": Feature((NAMES_PER_EXAMPLE,), tf.string, VOCABULARY)},
            task="binary",
            train=_examples(rng, num_train_examples),
            evaluation=_examples(rng, num_eval_examples),
        )


def _examples(rng: np.random.Generator, num_examples: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    ids = rng.integers(len(VOCABULARY), size=(num_examples, NAMES_PER_EXAMPLE))
    labels = np.any(ids == VOCABULARY.index("avenger"), axis=1, keepdims=True)
    return {"features": np.array(VOCABULARY, dtype=bytes)[ids]}, labels.astype(np.float32)
