"""The rows of a stack for a batch, by feature."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from psrun.layers import pooling
from psrun.layers.fetch import Fetch
from psrun.layers.pooling import Rows
from psrun.layers.stack import Stack, StackIds


@dataclass(frozen=True)
class StackFetch:
    """Rows of a stack that are being fetched.

    Attributes:
      ids: whose rows they are.
    """

    stack: Stack
    fetch: Fetch
    ids: StackIds

    def block(self, inputs: Mapping[str, Any], weights: Mapping[str, tf.Tensor | None]) -> tf.Tensor | None:
        """(batch, ids of an example over all features, dim); None unless a single operation gives that.

        Args:
          inputs, weights: as of `by_feature`.
        """
        groups = self._groups()
        if not groups:
            return self._columns(self.fetch.rows())
        combiner, names = groups[0]
        if self.ids.columns or len(groups) > 1 or combiner is None:
            return None
        return tf.transpose(_pooled(self.fetch.rows(), names, combiner, inputs, weights), [1, 0, 2])

    def by_feature(
        self, inputs: Mapping[str, Any], weights: Mapping[str, tf.Tensor | None]
    ) -> Iterator[tuple[str, tf.Tensor]]:
        """Rows of each feature: (batch, dim) if they are pooled, else of the shape of its ids and, as last axis, dim.

        Args:
          inputs: ids by feature.
          weights: as `pooling.checked_weights` returns them.
        """
        groups, columns = self._groups(), self.ids.columns
        sizes = [sum(self.ids.lists[name] for name in names) for _, names in groups]
        if columns:
            sizes = [self.ids.num_in_columns, *sizes]
        parts = self.fetch.rows().split(sizes)
        if columns:
            split = tf.split(self._columns(parts.pop(0)), list(columns.values()), axis=1)
            for name, rows in zip(columns, split):
                yield name, pooling.shaped(rows, inputs[name])
        for (combiner, names), part in zip(groups, parts, strict=True):
            if combiner is None:
                yield names[0], pooling.shaped(part.gathered(), inputs[names[0]])
            else:
                yield from zip(names, tf.unstack(_pooled(part, names, combiner, inputs, weights), len(names)))

    def _groups(self) -> list[tuple[str | None, list[str]]]:
        """Features that are pooled together, and each that is not."""
        groups: list[tuple[str | None, list[str]]] = []
        for name in self.ids.lists:
            combiner = self.stack.combiners.get(name)
            if combiner is not None and groups and groups[-1][0] == combiner:
                groups[-1][1].append(name)
            else:
                groups.append((combiner, [name]))
        return groups

    def _columns(self, rows: Rows) -> tf.Tensor:
        return tf.reshape(rows.gathered(), [-1, sum(self.ids.columns.values()), self.stack.dim])


def _pooled(
    rows: Rows, names: Sequence[str], combiner: str, inputs: Mapping[str, Any], weights: Mapping[str, tf.Tensor | None]
) -> tf.Tensor:
    return pooling.pooled(rows, [inputs[name] for name in names], combiner, [weights.get(name) for name in names])
