"""The scores of a model for pairs of users and items, in this process."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from psrun.models.model import Model
from psrun.program.interactions import Interactions
from psrun.program.zeros import any_number
from psrun.tf_internals.tracing import unconverted

_DEVICE = "/CPU:0"
_AT_ONCE = 8192  # examples of which a network computes scores or vectors at a time


class PairScores:
    """The scores of a model for pairs of users and items, in this process.

    Args:
      known: with the features of all users and items.
    """

    def __init__(self, model: Model, known: Interactions) -> None:
        self._known = known
        self._model = model
        self._towers = model.towers
        forward = self._score if self._towers is None else self._vectors
        features = {**known.users, **known.items}
        spec = {name: any_number(tf.type_spec_from_value(each)) for name, each in features.items()}
        # Traced now, because a trace is sent to all workers, of which one may hang.
        self._forward = unconverted(forward).get_concrete_function(spec)
        self._query: np.ndarray = np.zeros((0, 0))
        self._item: np.ndarray = np.zeros((0, 0))

    def refresh(self) -> None:
        """Computes the vectors of towers with the current variables."""
        if self._towers is not None:
            count = max(self._known.num_users, self._known.num_items)
            users = np.minimum(np.arange(count), self._known.num_users - 1)
            items = np.minimum(np.arange(count), self._known.num_items - 1)
            parts = [self._of(users[at : at + _AT_ONCE], items[at : at + _AT_ONCE]) for at in range(0, count, _AT_ONCE)]
            self._query = np.concatenate([part["query"] for part in parts])[: self._known.num_users]
            self._item = np.concatenate([part["item"] for part in parts])[: self._known.num_items]

    @property
    def item_vectors(self) -> np.ndarray:
        """(items, dim) of a model with towers."""
        return self._item

    def top(self, users: np.ndarray, k: int, excluded: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """The k items with the highest scores and their scores, (users, k), by falling score and rising number.

        Args:
          excluded: pairs of a place in `users` and an item, whose score becomes -inf.
        """
        if self._towers is not None:
            return top_of_products(self._query[users], self._item, k, excluded)
        return _top(tf.constant(self.of_all_items(users)), k, excluded)

    def vectors_of(self, users: np.ndarray) -> np.ndarray:
        """(n, dim) of a model with towers."""
        return self._query[users]

    def of_all_items(self, users: np.ndarray) -> np.ndarray:
        """(users, items)."""
        if self._towers is not None:
            return self._query[users] @ self._item.T
        every = np.arange(self._known.num_items)
        pairs = self.of_pairs(np.repeat(users, len(every)), np.tile(every, len(users)))
        return pairs.reshape(len(users), len(every))

    def of_pairs(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """(n,) of pairs."""
        if self._towers is not None:
            return np.einsum("nd,nd->n", self._query[users], self._item[items])
        parts = [
            self._of(users[at : at + _AT_ONCE], items[at : at + _AT_ONCE]) for at in range(0, len(users), _AT_ONCE)
        ]
        return np.concatenate([np.asarray(part).reshape(-1) for part in parts])

    def _of(self, users: np.ndarray, items: np.ndarray) -> Any:
        features = {
            **{name: tf.gather(each, users) for name, each in self._known.users.items()},
            **{name: tf.gather(each, items) for name, each in self._known.items.items()},
        }
        return tf.nest.map_structure(lambda each: each.numpy(), self._forward(features))

    def _vectors(self, features: dict[str, Any]) -> Any:
        assert self._towers is not None
        return self._towers.vectors(self._model.preprocessed(features), training=False)

    def _score(self, features: dict[str, Any]) -> Any:
        return self._model.network(self._model.preprocessed(features), training=False)


_Pairs = tuple[np.ndarray, np.ndarray]
_NO_PAIRS: _Pairs = (np.zeros(0, np.int64), np.zeros(0, np.int64))


def top_of_products(query: np.ndarray, item: np.ndarray, k: int, excluded: _Pairs = _NO_PAIRS) -> _Pairs:
    """The k items whose vectors (items, dim) have the largest products with those of queries (n, dim); see
    `PairScores.top`.
    """
    with tf.device(_DEVICE):
        return _top(tf.matmul(query, item, transpose_b=True), k, excluded)


def _top(scores: tf.Tensor, k: int, excluded: _Pairs) -> _Pairs:
    with tf.device(_DEVICE):
        if len(excluded[0]):
            places = np.stack(excluded, axis=1)
            scores = tf.tensor_scatter_nd_update(scores, places, tf.fill([len(places)], -np.inf))
        found = tf.math.top_k(scores, min(k, scores.shape[1]))
    return found.indices.numpy(), found.values.numpy()
