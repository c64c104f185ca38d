"""Partitioners and trainers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from psrun.schema import at_least


@dataclass(frozen=True)
class NoPartitioner:
    kind: str


@dataclass(frozen=True)
class FixedShards:
    kind: str
    num_shards: int = at_least(1)


@dataclass(frozen=True)
class MinSize:
    kind: str
    min_shard_bytes: int = at_least(1)
    max_shards: int = at_least(1)


@dataclass(frozen=True)
class MaxSize:
    kind: str
    max_shard_bytes: int = at_least(1)
    max_shards: int | None = at_least(1)


Partitioner = NoPartitioner | FixedShards | MinSize | MaxSize


# Steps written out one after the other in the graph of an execution: more gain little.
MOST_WRITTEN_OUT = 10


@dataclass(frozen=True)
class _Steps:
    """What both trainers have.

    Attributes:
      steps_per_epoch: None for as many as a pass over the examples has.
      steps_per_execution: a number, or 'auto': chosen by what a step takes.
      prefetch_rows: whether rows of tables are asked for a step ahead, and so lack the worker's own last step.
      dense_sync_every: for how many steps the weights that are read as a whole are fetched and pushed once.
    """

    kind: str
    run_eagerly: bool
    prefetch_rows: bool
    epochs: int = at_least(1)
    steps_per_epoch: int | None = at_least(1)
    steps_per_execution: int | str = at_least(1, or_else="auto")
    dense_sync_every: int = at_least(1)

    @property
    def num_steps(self) -> int:
        """Steps of an epoch, of a run whose data was looked at (`program.planned`)."""
        assert self.steps_per_epoch is not None
        return self.steps_per_epoch

    @property
    def num_steps_packed(self) -> int:
        """Steps of an execution; ten where they are to be chosen and nobody measures."""
        packed = self.steps_per_execution
        return packed if isinstance(packed, int) else min(10, self.steps_per_epoch or 10)


@dataclass(frozen=True)
class CustomLoop(_Steps):
    pass


@dataclass(frozen=True)
class Fit(_Steps):
    callbacks: list[Any] = field(default_factory=list)


Trainer = CustomLoop | Fit
