"""Partitioners and trainers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from psrun.config.schema import at_least
from psrun.config.targets import Target


class _Partitioner:
    """What every partitioner answers.

    Attributes:
      splits: whether it cuts variables into shards at all.
      num_shards: of every variable; None where that depends on the variable.
    """

    splits: ClassVar[bool] = True
    num_shards: int | None = None


@dataclass(frozen=True)
class NoPartitioner(_Partitioner):
    splits = False
    kind: str


@dataclass(frozen=True)
class FixedShards(_Partitioner):
    kind: str
    num_shards: int = at_least(1)


@dataclass(frozen=True)
class MinSize(_Partitioner):
    kind: str
    min_shard_bytes: int = at_least(1)
    max_shards: int = at_least(1)


@dataclass(frozen=True)
class MaxSize(_Partitioner):
    kind: str
    max_shard_bytes: int = at_least(1)
    max_shards: int | None = at_least(1)


@dataclass(frozen=True)
class OwnPartitioner(_Partitioner):
    """A callable as TensorFlow wants it, or what returns one, by name.

    Attributes:
      PARAMETERS: what TensorFlow calls it with.
    """

    PARAMETERS: ClassVar[tuple[str, ...]] = ("shape", "dtype")
    target: Target

    @property
    def kind(self) -> str:
        return self.target.name


Partitioner = NoPartitioner | FixedShards | MinSize | MaxSize | OwnPartitioner


# Steps written out one after the other in the graph of an execution: more gain little.
MOST_WRITTEN_OUT = 10


@dataclass(frozen=True)
class Hook:
    """A callable of a `HookContext` that is called while the run trains; one of the periods is given.

    Attributes:
      every_epochs: at the end of so many epochs, when no step runs.
      every_steps: when so many more steps were applied, beside the steps that run.
      every_s: after so many seconds, likewise.
    """

    PARAMETERS: ClassVar[tuple[str, ...]] = ("context",)
    target: Target
    every_epochs: int | None = None
    every_steps: int | None = None
    every_s: float | None = None


class _Trainer:
    """What every trainer answers.

    Attributes:
      has_fixed_epochs: whether every epoch has `steps_per_epoch` steps, unless the run is asked to end.
      uses_fit: whether Keras' fit trains.
      callbacks: of Keras, for its fit.
    """

    has_fixed_epochs: ClassVar[bool] = True
    uses_fit: ClassVar[bool] = False
    callbacks: Any = ()


@dataclass(frozen=True)
class _Steps(_Trainer):
    """What all trainers have.

    Attributes:
      steps_per_epoch: None for as many as a pass over the examples has.
      steps_per_execution: a number; 'auto': chosen by the measured time of a step; None: ten, or all steps of an epoch
        that has fewer.
      prefetch_rows: whether rows of tables are asked for a step ahead, and so lack the worker's own last step.
      dense_sync_every: for how many steps the weights that are read as a whole are fetched and pushed once.
      hooks: what is called while the run trains.
    """

    kind: str
    run_eagerly: bool
    prefetch_rows: bool
    epochs: int = at_least(1)
    steps_per_epoch: int | None = at_least(1)
    steps_per_execution: int | str | None = at_least(1, or_else="auto")
    dense_sync_every: int = at_least(1)
    hooks: list[Any] = field(default_factory=list)

    @property
    def num_steps(self) -> int:
        """Steps of an epoch, of a run whose data was looked at (`program.planned`)."""
        assert self.steps_per_epoch is not None
        return self.steps_per_epoch

    @property
    def num_steps_packed(self) -> int:
        """Steps of an execution: those that were asked for, else ten, or all of an epoch that has fewer."""
        packed = self.steps_per_execution
        return packed if isinstance(packed, int) else min(10, self.steps_per_epoch or 10)


@dataclass(frozen=True)
class CustomLoop(_Steps):
    pass


@dataclass(frozen=True)
class Fit(_Steps):
    uses_fit = True
    callbacks: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class OwnLoop(_Steps):
    """A callable of the program and a `LoopSession`, by name.

    Attributes:
      PARAMETERS: what psrun calls it with.
    """

    PARAMETERS: ClassVar[tuple[str, ...]] = ("program", "session")
    has_fixed_epochs = False
    target: Target = field(kw_only=True)


Trainer = CustomLoop | Fit | OwnLoop
