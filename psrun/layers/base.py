"""The common part of embedding layers: rows fetched before the layer is called, and undecided choices."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tf_keras


@dataclass(frozen=True)
class DeduplicationChoice:
    """A variable whose `deduplicate='auto'` is not decided yet: of a layer, or of a stack within it.

    Attributes:
      positions: int32 (n,), the rows that a batch looks up.
    """

    name: str
    positions: tf.Tensor
    decide: Callable[[bool], None]


class EmbeddingLayer(tf_keras.layers.Layer):
    """A layer that looks ids up in tables."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"autocast": False, **kwargs})  # half precision cannot represent ids
        self._ahead: Any = _UntrackedList()

    @abc.abstractmethod
    def fetch(self, ids: Any) -> Any:
        """Asks for the rows of ids: what `fetched` takes. Outside of any gradient."""

    @property
    @abc.abstractmethod
    def has_undecided(self) -> bool:
        """Whether `deduplicate='auto'` leaves anything open."""

    @abc.abstractmethod
    def undecided(self, ids: Any) -> list[DeduplicationChoice]:
        """The tables for which `deduplicate='auto'` is undecided, with the rows that ids look up."""

    def fetch_ahead(self, ids: Any) -> None:
        """Requests the rows that a later call for the same ids returns, in the order of the calls."""
        self._ahead.append(self.fetch(ids))

    def fetched(self, ids: Any) -> Any:
        """The fetch that was started ahead, or a new one."""
        return self._ahead.pop(0) if self._ahead else self.fetch(ids)

    @property
    def num_ahead(self) -> int:
        """The number of fetches that were started ahead and not used yet."""
        return len(self._ahead)

    def drop_ahead(self) -> None:
        """Discards the fetches that were started ahead."""
        self._ahead.clear()

    def title(self) -> str:
        """The name of the layer, with the names of its features in a functional model."""
        called_on = tf.nest.flatten([node.keras_inputs for node in self.inbound_nodes])
        features = {source.name for ids in called_on for source in tf_keras.utils.get_source_inputs(ids)}
        return f"{self.name} of {', '.join(sorted(features))}" if features else self.name


class _UntrackedList(list):
    """A list that Keras does not track: its tensors belong to a function that is being traced."""


def check(condition: tf.Tensor, *data: Any) -> list[tf.Operation]:
    """The check of a graph, for `tf.control_dependencies`; eagerly it is done at once, and the list is empty.

    `tf.debugging.Assert` would add a branch, and so another function call.

    Raises:
      tf.errors.InvalidArgumentError: when run: the condition is false. It shows `data`.
    """
    operation = tf.raw_ops.Assert(condition=condition, data=list(data))
    return [] if operation is None else [operation]
