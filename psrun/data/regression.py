"""Generated regression data with a known noise floor."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from psrun.data.source import ArraySource, Feature


class Regression(ArraySource):
    """y = x . w + sin(3 x_0) + noise, with x uniform in [-1, 1) and w drawn once from the seed.

    Args:
      noise: standard deviation of the Gaussian noise; its square is the lowest possible mean squared error.
    """

    def __init__(
        self,
        *,
        num_features: int = 10,
        num_train_examples: int = 10000,
        num_eval_examples: int = 2000,
        noise: float = 0.1,
        seed: int = 1,
    ) -> None:
        rng = np.random.default_rng(seed)
        weights = rng.normal(size=(num_features, 1)) / np.sqrt(num_features)

        def examples(num_examples: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
            x = rng.uniform(-1, 1, size=(num_examples, num_features))
            y = x @ weights + np.sin(3 * x[:, :1]) + noise * rng.normal(size=(num_examples, 1))
            return {"x": x.astype(np.float32)}, y.astype(np.float32)

        super().__init__(
            features={"x": Feature((num_features,), tf.float32)},
            task="regression",
            train=examples(num_train_examples),
            evaluation=examples(num_eval_examples),
            facts={"noise_variance": noise**2},
        )
