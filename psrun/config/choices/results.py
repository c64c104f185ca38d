"""What comes of a training: evaluations, checkpoints, and who else is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from psrun.config.schema import at_least, one_of


@dataclass(frozen=True)
class NoEvaluation:
    kind: str


@dataclass(frozen=True)
class Evaluated:
    """`batch_size`: examples of a batch that is evaluated; None for as many as a step trains on."""

    kind: str
    batch_size: int | None = at_least(1)


@dataclass(frozen=True)
class Validation(Evaluated):
    every: int = at_least(1)


@dataclass(frozen=True)
class Direct(Evaluated):
    every: int = at_least(1)


@dataclass(frozen=True)
class Distributed(Evaluated):
    every: int = at_least(1)


@dataclass(frozen=True)
class Exact(Evaluated):
    """`num_shards`: in how many closures the data is evaluated; None for a few a worker."""

    every: int = at_least(1)
    num_shards: int | None = at_least(1)


@dataclass(frozen=True)
class Sidecar(Evaluated):
    """Evaluation by the evaluator task.

    Attributes:
      every: whether each checkpoint is evaluated, or always the newest.
      wait_s: how long the evaluator waits for a first checkpoint, or for a chief that is gone, and others for it.
      max_evaluations: after how many it ends; None for as many as there are.
      checkpoint_dir: where checkpoints are that psrun does not take; None for those of the run.
      callbacks: Keras callbacks, called around each evaluation; a mapping with a _target_ each.
    """

    every: str = one_of("each", "latest")
    wait_s: float = at_least(1)
    max_evaluations: int | None = at_least(1)
    checkpoint_dir: str | None = None
    callbacks: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class SidecarThread(Sidecar):
    """The same by the last worker, which is set aside for it and never joins the cluster."""


BetweenEpochs = Direct | Distributed | Exact
Evaluation = NoEvaluation | Validation | BetweenEpochs | Sidecar


@dataclass(frozen=True)
class NoCheckpoints:
    kind: str


@dataclass(frozen=True)
class EpochCheckpoints:
    """When checkpoints are taken (also at the end), and which ones are kept: the newest, and the best by a metric."""

    kind: str
    best_metric: str | None
    best_mode: str = one_of("max", "min")
    every_epochs: int | None = at_least(1)
    every_steps: int | None = at_least(1)
    every_s: float | None = at_least(0)
    max_to_keep: int = at_least(1)


Checkpoints = NoCheckpoints | EpochCheckpoints


@dataclass(frozen=True)
class NoTracker:
    kind: str


@dataclass(frozen=True)
class TensorBoard:
    kind: str


@dataclass(frozen=True)
class MLflow:
    """`tracking_uri`: of a server or a database, or a folder. `experiment`: that runs are filed under."""

    kind: str
    tracking_uri: str
    experiment: str


Tracker = NoTracker | TensorBoard | MLflow
