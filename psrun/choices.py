"""The choices of each group that psrun itself knows: one frozen dataclass each, named by the node's `kind`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from psrun.placement import RULES
from psrun.schema import at_least, one_of

ISOLATE = ("auto", True, False)


@dataclass(frozen=True)
class NoCluster:
    kind: str


@dataclass(frozen=True)
class OneDevice:
    kind: str
    device: str


@dataclass(frozen=True)
class Mirrored:
    kind: str
    num_replicas: int = at_least(1)


@dataclass(frozen=True)
class CentralStorage:
    kind: str
    num_replicas: int = at_least(1)


@dataclass(frozen=True)
class InProcess:
    kind: str
    num_workers: int = at_least(1)
    num_ps: int = at_least(0)
    placement: str = one_of(*RULES)
    isolate: Any = one_of(*ISOLATE)


@dataclass(frozen=True)
class Restart:
    """How a supervisor restarts tasks.

    Attributes:
      budget: restarts in all, over all tasks; the next failure after them ends the run.
      backoff_s: before a task's second restart; twice as long before each further one, up to max_backoff_s.
      heartbeat_timeout_s: a task that has not been heard of for so long hangs.
      progress_timeout_s: no step for so long, and for progress_factor times the slowest step seen, is a hang.
      start_timeout_s: from a chief's start to its first step.
      stop_timeout_s: how long tasks may take to end when told to.
    """

    budget: int = at_least(0)
    backoff_s: float = at_least(0)
    max_backoff_s: float = at_least(0)
    heartbeat_timeout_s: float = at_least(2)
    progress_timeout_s: float = at_least(1)
    progress_factor: float = at_least(1)
    start_timeout_s: float = at_least(1)
    stop_timeout_s: float = at_least(1)


@dataclass(frozen=True)
class Local:
    kind: str
    restart: Restart
    num_workers: int = at_least(1)
    num_ps: int = at_least(1)
    placement: str = one_of(*RULES)
    isolate: Any = one_of(*ISOLATE)
    connect_timeout_s: float = at_least(1)
    chief_timeout_s: float = at_least(1)


@dataclass(frozen=True)
class MultiWorkerMirrored:
    kind: str
    restart: Restart
    num_workers: int = at_least(1)
    isolate: Any = one_of(*ISOLATE)


@dataclass(frozen=True)
class Unsupervised:
    """A cluster whose tasks somebody else starts.

    Attributes:
      connect_timeout_s: how long the chief waits for every server to come up, and later for any worker to come back.
      chief_timeout_s: how long a server waits for a chief that was never there or has gone.
      heartbeat_timeout_s: a server that has not answered the chief for so long hangs or is cut off.
      start_timeout_s: no first step for so long, or no end of an evaluation or a save, is a hang.
      progress_timeout_s: no step for so long, and for progress_factor times the slowest step seen, is a hang.
    """

    kind: str
    placement: str = one_of(*RULES)
    connect_timeout_s: float = at_least(1)
    chief_timeout_s: float = at_least(1)
    heartbeat_timeout_s: float = at_least(5)
    start_timeout_s: float = at_least(1)
    progress_timeout_s: float = at_least(1)
    progress_factor: float = at_least(1)


@dataclass(frozen=True)
class TfConfig(Unsupervised):
    """One whose addresses are in the environment variable TF_CONFIG."""


@dataclass(frozen=True)
class Static(Unsupervised):
    """One whose addresses are in the configuration."""

    addresses: dict[str, Any] = field(kw_only=True)


ParameterServers = InProcess | Local | Unsupervised
Supervised = Local | MultiWorkerMirrored
Synchronous = OneDevice | Mirrored | CentralStorage | MultiWorkerMirrored
Cluster = NoCluster | Synchronous | ParameterServers


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
    """

    every: str = one_of("each", "latest")
    wait_s: float = at_least(1)


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

KINDS: dict[str, dict[str, type]] = {
    "cluster": {
        "none": NoCluster,
        "one_device": OneDevice,
        "mirrored": Mirrored,
        "central_storage": CentralStorage,
        "inprocess": InProcess,
        "local": Local,
        "multi_worker_mirrored": MultiWorkerMirrored,
        "tf_config": TfConfig,
        "static": Static,
    },
    "partitioner": {"none": NoPartitioner, "fixed_shards": FixedShards, "min_size": MinSize, "max_size": MaxSize},
    "trainer": {"custom_loop": CustomLoop, "fit": Fit},
    "evaluation": {
        "none": NoEvaluation,
        "validation": Validation,
        "direct": Direct,
        "distributed": Distributed,
        "exact": Exact,
        "sidecar": Sidecar,
        "sidecar_thread": SidecarThread,
    },
    "checkpoint": {"none": NoCheckpoints, "epoch": EpochCheckpoints},
}
