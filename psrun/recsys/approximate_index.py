"""Items with large products by faiss' inverted lists: faster than all products, and some items are missed."""

from __future__ import annotations

from typing import Any

import numpy as np

from psrun.errors import ConfigError, Problem

_TRAINED_ON = 100_000  # vectors, drawn
_SHARE = 16  # of the lists, one in so many is searched,
_LEAST = 16  # and so many at least


class ApproximateIndex:
    """The vectors of items, (items, dim), in sqrt(items) lists of similar ones.

    Each query reads a sixteenth of the lists, and 16 at least.

    Raises:
      ConfigError: faiss is not installed.
    """

    def __init__(self, items: np.ndarray) -> None:
        try:
            import faiss
        except ImportError as error:
            message = "'approximate' requires faiss: pip install 'psrun[faiss]', or choose exact"
            raise ConfigError([Problem("predict.index", message)]) from error
        count, dim = items.shape
        num_lists = max(1, int(count**0.5))
        items = np.ascontiguousarray(items, np.float32)
        self._lists: Any = faiss.IndexFlatIP(dim)
        self._index: Any = faiss.IndexIVFFlat(self._lists, dim, num_lists, faiss.METRIC_INNER_PRODUCT)
        drawn = np.random.default_rng(0).permutation(count)[:_TRAINED_ON]
        self._index.train(items[drawn])
        self._index.add(items)
        self._index.nprobe = max(_LEAST, num_lists // _SHARE)

    def top(self, query: np.ndarray, k: int, excluded: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """As `PairScores.top`; items that were not found have a score of -inf."""
        most = int(np.bincount(excluded[0]).max()) if len(excluded[0]) else 0
        scores, found = self._index.search(np.ascontiguousarray(query, np.float32), k + most)
        width = int(found.max()) + 2
        keys = excluded[0] * width + excluded[1]
        rows = np.arange(len(query))[:, np.newaxis]
        scores[np.isin(rows * width + found, keys[excluded[1] < width - 1]) | (found < 0)] = -np.inf
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(found, order, axis=1), np.take_along_axis(scores, order, axis=1)
