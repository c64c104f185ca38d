"""The scores of a model for pairs of users and items, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf

from psrun.models.model import Model
from psrun.program.batch_checks import any_number
from psrun.recsys.interactions import Interactions
from psrun.tf_internals.tracing import unconverted

_DEVICE = "/CPU:0"
_AT_ONCE = 8192  # examples of which a network computes scores or vectors at a time
_LEAST = 256  # examples in such a batch


@dataclass(frozen=True)
class ItemVectors:
    """The vectors of all items, in which equal vectors are one row, so that their items have equal scores.

    A product of matrices with two equal columns may have columns that differ in the last bit: in NumPy, and in
    TensorFlow on some processors.

    Attributes:
      distinct: (m, dim), an array or a variable.
      place: (items,) where the vector of each item is in `distinct`.
    """

    distinct: Any
    place: Any

    @classmethod
    def of(cls, vectors: np.ndarray) -> ItemVectors:
        """Of one vector for each item, (items, dim)."""
        vectors = np.ascontiguousarray(vectors) + 0  # makes 0 of -0
        width = vectors.dtype.itemsize * vectors.shape[1]
        rows = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(vectors), [None, pa.py_buffer(vectors)])
        place = rows.dictionary_encode().indices.to_numpy()
        _, first = np.unique(place, return_index=True)
        return cls(vectors[first], place)

    def products(self, query: Any) -> tf.Tensor:
        """The scores of all items for queries (n, dim): (n, items)."""
        scores = tf.matmul(query, self.distinct, transpose_b=True)
        if self.distinct.shape[0] == self.place.shape[0]:
            return scores
        return tf.gather(scores, self.place, axis=1)


class PairScores:
    """The scores of a model for pairs of users and items, in this process.

    Items that are equal for the model have equal scores for a user, whatever their places are.

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
        self._items: ItemVectors | None = None

    def refresh(self) -> None:
        """Computes the vectors of towers with the current variables."""
        if self._towers is not None:
            count = max(self._known.num_users, self._known.num_items)
            users = np.minimum(np.arange(count), self._known.num_users - 1)
            items = np.minimum(np.arange(count), self._known.num_items - 1)
            parts = [*self._outputs(users, items)]
            self._query = np.concatenate([part["query"] for part in parts])[: self._known.num_users]
            self._item = np.concatenate([part["item"] for part in parts])[: self._known.num_items]
            self._items = ItemVectors.of(self._item)

    @property
    def item_vectors(self) -> np.ndarray:
        """(items, dim) of a model with towers."""
        return self._item

    def top(self, users: np.ndarray, k: int, excluded: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """The k items with the highest scores and their scores, (users, k), by falling score and rising number.

        Args:
          excluded: pairs of a place in `users` and an item, whose score becomes -inf.
        """
        return top(self._scores(users), k, excluded)

    def of_all_items(self, users: np.ndarray) -> np.ndarray:
        """(users, items)."""
        return self._scores(users).numpy()

    def _scores(self, users: np.ndarray) -> tf.Tensor:
        if self._items is not None:
            with tf.device(_DEVICE):
                return self._items.products(self._query[users])
        every = np.arange(self._known.num_items)
        pairs = self.of_pairs(np.repeat(users, len(every)), np.tile(every, len(users)))
        return tf.constant(pairs.reshape(len(users), len(every)))

    def of_pairs(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """(n,) of pairs; only scores of one call are compared with each other."""
        if self._towers is not None:
            return np.einsum("nd,nd->n", self._query[users], self._item[items])
        return np.concatenate([np.asarray(part).reshape(-1) for part in self._outputs(users, items)])[: len(users)]

    def _outputs(self, users: np.ndarray, items: np.ndarray) -> Iterator[Any]:
        """The outputs of the network for pairs (n,), in batches of one size; the last batch is padded.

        Outputs of equal rows may differ in the last bit by the size of the batch, and within a batch whose size is no
        multiple of the number of rows that a matrix product takes together.
        """
        size = min(_AT_ONCE, max(_LEAST, 1 << (len(users) - 1).bit_length()))
        for at in range(0, len(users), size):
            rows = np.minimum(np.arange(at, at + size), len(users) - 1)
            features = {
                **{name: tf.gather(each, users[rows]) for name, each in self._known.users.items()},
                **{name: tf.gather(each, items[rows]) for name, each in self._known.items.items()},
            }
            yield tf.nest.map_structure(lambda each: each.numpy(), self._forward(features))

    def _vectors(self, features: dict[str, Any]) -> Any:
        assert self._towers is not None
        return self._towers.vectors(self._model.preprocessed(features), training=False)

    def _score(self, features: dict[str, Any]) -> Any:
        return self._model.network(self._model.preprocessed(features), training=False)


_Pairs = tuple[np.ndarray, np.ndarray]
_NO_PAIRS: _Pairs = (np.zeros(0, np.int64), np.zeros(0, np.int64))


def top(scores: Any, k: int, excluded: _Pairs = _NO_PAIRS) -> _Pairs:
    """The k items with the highest scores (users, items); see `PairScores.top`."""
    with tf.device(_DEVICE):
        if len(excluded[0]):
            places = np.stack(excluded, axis=1)
            scores = tf.tensor_scatter_nd_update(scores, places, tf.fill([len(places)], -np.inf))
        found = tf.math.top_k(scores, min(k, scores.shape[1]))
    return found.indices.numpy(), found.values.numpy()
