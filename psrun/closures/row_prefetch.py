"""Requests rows of tables one step ahead, so that they travel while the previous step computes."""

from __future__ import annotations

from typing import Any

import tf_keras

from psrun.closures.stage import Stage, Take
from psrun.errors import ConfigError, Problem
from psrun.program import lookups
from psrun.program.compiled_model import Program


class RowPrefetch(Stage):
    """The layers of a program whose rows can be prefetched.

    Raises:
      ConfigError: the program has no such layer.
    """

    def __init__(self, program: Program) -> None:
        network = program.network
        if (
            type(network).train_step is not tf_keras.Model.train_step
            or program.distribution.strategy.num_replicas_in_sync > 1
        ):
            raise ConfigError(
                [Problem("trainer.prefetch_rows", "is not supported with a custom train_step or several replicas per "
                         "worker; set it to false")]
            )  # fmt: skip
        self._lookups = [lookup for layer in lookups.of(network) if (lookup := lookups.Lookup.of(network, layer))]
        if not self._lookups:
            raise ConfigError(
                [Problem("trainer.prefetch_rows", "requires a psrun.layers.Embedding that is called once, on inputs of "
                         "the model; set it to false")]
            )  # fmt: skip

    def batches(self, take: Take, num_steps: int) -> Take:
        """Requests the rows of a batch before the previous step is traced, and so before that step updates them."""
        waiting: list[Any] = []
        left = num_steps

        def take_and_ask() -> None:
            nonlocal left
            left -= 1
            batch = take()
            features, _, _ = tf_keras.utils.unpack_x_y_sample_weight(batch)
            for lookup in self._lookups:
                lookup.fetch_ahead(features)
            waiting.append(batch)

        def next_batch() -> Any:
            for lookup in self._lookups:
                lookup.check(len(waiting))
            while left and len(waiting) < 2:
                take_and_ask()
            return waiting.pop(0)

        return next_batch
