"""The ids that embedding layers of a network are called on, from outside of the network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tf_keras

from psrun.errors import ConfigError, Problem
from psrun.layers.adapter import AdaptedModel
from psrun.layers.base import EmbeddingLayer
from psrun.layers.fetch import DISTINCT_TO_PAY
from psrun.tf_internals import keras


@dataclass(frozen=True)
class Deduplication:
    """Whether a layer deduplicates, and the share of distinct ids in the batch that decided it."""

    layer: str
    deduplicate: bool
    distinct: float


def of(network: tf_keras.Model) -> list[EmbeddingLayer]:
    """The embedding layers in a network."""
    return [layer for layer in keras.layers_within(network) if isinstance(layer, EmbeddingLayer)]


@dataclass(frozen=True)
class Lookup:
    """The ids of a layer, as a function of a network's features."""

    layer: EmbeddingLayer
    ids: Callable[[Any], Any]

    @classmethod
    def of(cls, network: tf_keras.Model, layer: EmbeddingLayer) -> Lookup | None:
        """None if there is no such function: the network is not a functional model, or calls the layer twice."""
        if isinstance(network, AdaptedModel):
            ids = network.ids_of(layer)
            return None if ids is None else cls(layer, ids)
        own = any(each is layer for each in network.layers)  # not in a nested model
        if not own or not keras.is_functional(network) or len(layer.inbound_nodes) != 1:
            return None
        names = [tensor.name for tensor in network.inputs]
        model = tf_keras.Model(network.inputs, layer.input)

        def of_features(features: Any) -> Any:
            by_name = isinstance(features, dict)
            return model([features[name] for name in names] if by_name else tf.nest.flatten(features))

        return cls(layer, of_features)

    def check(self, num_batches: int) -> None:
        """Drops prefetched rows after a failed trace.

        Raises:
          ConfigError: the layer was not called exactly once for each prefetched batch.
        """
        if num_batches == 0:
            self.layer.drop_ahead()
        elif self.layer.num_ahead != num_batches:
            message = f"requires that each step calls {self.layer.name} exactly once; set it to false"
            raise ConfigError([Problem("trainer.prefetch_rows", message)])

    def fetch_ahead(self, features: Any) -> None:
        """Prefetches the rows of a batch for a later call of the network."""
        self.layer.fetch_ahead(self.ids(features))


def decide(network: tf_keras.Model, features: Any) -> list[Deduplication]:
    """Decides `deduplicate='auto'` by a batch of features, for layers with ids that are a function of the features."""
    decisions = []
    for layer in of(network):
        lookup = Lookup.of(network, layer) if layer.has_undecided else None
        for undecided in layer.undecided(lookup.ids(features)) if lookup is not None else ():
            num_ids = int(tf.size(undecided.positions))
            distinct = int(tf.size(tf.unique(undecided.positions)[0])) / max(num_ids, 1)
            undecided.decide(distinct < DISTINCT_TO_PAY)
            decisions.append(Deduplication(undecided.name, distinct < DISTINCT_TO_PAY, round(distinct, 3)))
    return decisions
