"""Partitioners and trainers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from psrun.config.schema import AUTO, at_least
from psrun.config.targets import Target


class _Partitioner:
    """The interface of every partitioner.

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
    """A custom partitioner, or a callable that returns one, by name.

    Attributes:
      PARAMETERS: the arguments of TensorFlow's call.
    """

    PARAMETERS: ClassVar[tuple[str, ...]] = ("shape", "dtype")
    target: Target

    @property
    def kind(self) -> str:
        return self.target.name


Partitioner = NoPartitioner | FixedShards | MinSize | MaxSize | OwnPartitioner


# Steps unrolled in the graph of an execution: more gain little.
MAX_UNROLLED_STEPS = 10


@dataclass(frozen=True)
class Hook:
    """A callable of a `HookContext` that psrun calls during training; exactly one period is set.

    Attributes:
      every_epochs: call after every N epochs, while no step runs.
      every_steps: call after every N applied steps, concurrently with steps.
      every_s: call every N seconds, concurrently with steps.
    """

    PARAMETERS: ClassVar[tuple[str, ...]] = ("context",)
    target: Target
    every_epochs: int | None = None
    every_steps: int | None = None
    every_s: float | None = None


class _Trainer:
    """The interface of every trainer.

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
    """Common options of trainers.

    Attributes:
      epochs: a number; 'auto': as the data recommends, or 5.
      steps_per_epoch: a number; None for one pass over the examples; 'auto': as the data recommends, or 100.
      steps_per_execution: a number; 'auto': chosen by the measured time of a step; None: ten, or the epoch if it is
        shorter.
      prefetch_rows: whether to fetch table rows one step ahead, without the worker's own last update.
      dense_sync_every: the number of steps between two fetches and pushes of the dense weights.
      hooks: callables to call during training.
    """

    kind: str
    run_eagerly: bool
    prefetch_rows: bool
    epochs: int | str = at_least(1, or_else=AUTO)
    steps_per_epoch: int | str | None = at_least(1, or_else=AUTO)
    steps_per_execution: int | str | None = at_least(1, or_else=AUTO)
    dense_sync_every: int = at_least(1)
    hooks: list[Any] = field(default_factory=list)

    @property
    def num_epochs(self) -> int:
        """Epochs of the training; defined after `load.planned` has inspected the data."""
        assert isinstance(self.epochs, int)
        return self.epochs

    @property
    def num_steps(self) -> int:
        """Steps of an epoch; defined after `load.planned` has inspected the data."""
        assert isinstance(self.steps_per_epoch, int)
        return self.steps_per_epoch

    @property
    def num_steps_packed(self) -> int:
        """Steps of an execution: as configured, else ten, or the epoch if it is shorter."""
        if isinstance(self.steps_per_execution, int):
            return self.steps_per_execution
        return min(10, self.steps_per_epoch) if isinstance(self.steps_per_epoch, int) else 10


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
      PARAMETERS: the arguments of psrun's call.
    """

    PARAMETERS: ClassVar[tuple[str, ...]] = ("program", "session")
    has_fixed_epochs = False
    target: Target = field(kw_only=True)


Trainer = CustomLoop | Fit | OwnLoop

# By name, as `kind` in conf/.
PARTITIONERS: dict[str, type] = {
    "none": NoPartitioner,
    "fixed_shards": FixedShards,
    "min_size": MinSize,
    "max_size": MaxSize,
}
TRAINERS: dict[str, type] = {"custom_loop": CustomLoop, "fit": Fit}
