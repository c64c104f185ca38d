"""Clusters: who there is, and how their tasks are watched over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from psrun.config.schema import at_least, one_of

ISOLATE = ("auto", True, False)
PLACEMENT_RULES = ("greedy", "round_robin")  # functions of psrun.cluster.placement


class _Cluster:
    """What every cluster answers; as it stands here, one of a single process that trains alone.

    Attributes:
      has_parameter_servers: whether it trains with parameter servers; else variables are where they are used.
      has_server_processes: whether its parameter servers and workers are processes of their own.
      has_synchronous_workers: whether several processes train replicas of one model, all in the same step.
      started_elsewhere: whether tasks are started one by one, by somebody else than a supervisor of psrun's.
      num_workers: that the configuration asks for; None where addresses are given instead.
      num_ps: likewise.
      num_data_workers: of tf.data service.
      replicas_per_worker: None where the devices of the workers decide.
      placement: the rule by which variables are spread over parameter servers.
      isolate: whether the tasks are to be out of reach of other machines.
      connect_timeout_s: how long the chief waits for its servers.
      chief_timeout_s: how long a server waits for its chief.
    """

    has_parameter_servers: ClassVar[bool] = False
    has_server_processes: ClassVar[bool] = False
    has_synchronous_workers: ClassVar[bool] = False
    started_elsewhere: ClassVar[bool] = False
    kind: str
    num_workers: int | None = 1
    num_ps: int | None = 0
    num_data_workers: int = 0
    replicas_per_worker: int | None = None
    placement: str = PLACEMENT_RULES[0]
    isolate: Any = False
    connect_timeout_s: float = 0.0
    chief_timeout_s: float = 0.0

    @property
    def spans_machines(self) -> bool:
        """Whether tasks may be on other machines than this one."""
        return self.started_elsewhere

    @property
    def title(self) -> str:
        """Its kind, and its size where the configuration decides that."""
        return self.kind


@dataclass(frozen=True)
class NoCluster(_Cluster):
    kind: str


@dataclass(frozen=True)
class OneDevice(_Cluster):
    kind: str
    device: str


@dataclass(frozen=True)
class Mirrored(_Cluster):
    kind: str
    num_replicas: int = at_least(1)


@dataclass(frozen=True)
class CentralStorage(_Cluster):
    kind: str
    num_replicas: int = at_least(1)


@dataclass(frozen=True, kw_only=True)
class _ParameterServers(_Cluster):
    """What all clusters of parameter server training have.

    Attributes:
      replicas_per_worker: None for one on each GPU that workers have, or one on the CPU where they have none.
    """

    has_parameter_servers: ClassVar[bool] = True
    replicas_per_worker: int | None = at_least(1, default=None)

    @property
    def title(self) -> str:
        known = self.num_workers is not None
        return f"{self.kind} ({self.num_workers} workers, {self.num_ps} ps)" if known else self.kind


@dataclass(frozen=True)
class InProcess(_ParameterServers):
    kind: str
    num_workers: int = at_least(1)
    num_ps: int = at_least(0)
    num_data_workers: int = at_least(1)
    placement: str = one_of(*PLACEMENT_RULES)
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
class Local(_ParameterServers):
    has_server_processes: ClassVar[bool] = True
    kind: str
    restart: Restart
    num_workers: int = at_least(1)
    num_ps: int = at_least(1)
    num_data_workers: int = at_least(1)
    placement: str = one_of(*PLACEMENT_RULES)
    isolate: Any = one_of(*ISOLATE)
    connect_timeout_s: float = at_least(1)
    chief_timeout_s: float = at_least(1)


@dataclass(frozen=True)
class RayTaskResources:
    """What Ray sets aside for one task.

    Attributes:
      num_cpus: as Ray counts them; nothing keeps a task from using more.
      memory_bytes: 0 for none in particular.
      num_gpus: a task sees no others.
    """

    num_cpus: float = at_least(0.001)
    memory_bytes: int = at_least(0)
    num_gpus: float = at_least(0, default=0)


@dataclass(frozen=True)
class RayResources:
    """What Ray sets aside for a task of each job."""

    chief: RayTaskResources
    worker: RayTaskResources
    ps: RayTaskResources
    evaluator: RayTaskResources
    data_dispatcher: RayTaskResources
    data_worker: RayTaskResources


@dataclass(frozen=True)
class Ray(Local):
    """As Local, on the nodes of a Ray cluster.

    Attributes:
      address: of the Ray cluster: 'auto' for the one that this machine is part of, HOST:PORT, or None for one of the
        run's own on this machine.
      placement_group: Ray's strategy of placing tasks on nodes, in small letters.
    """

    address: str | None = field(kw_only=True)
    resources: RayResources = field(kw_only=True)
    placement_group: str = one_of("spread", "pack")

    @property
    def spans_machines(self) -> bool:
        return self.address is not None


@dataclass(frozen=True)
class MultiWorkerMirrored(_Cluster):
    has_synchronous_workers: ClassVar[bool] = True
    kind: str
    restart: Restart
    num_workers: int = at_least(1)
    isolate: Any = one_of(*ISOLATE)

    @property
    def title(self) -> str:
        return f"{self.kind} ({self.num_workers} workers)"


@dataclass(frozen=True)
class Unsupervised(_ParameterServers):
    """A cluster whose tasks somebody else starts.

    Attributes:
      connect_timeout_s: how long the chief waits for every server to come up, and later for any worker to come back.
      chief_timeout_s: how long a server waits for a chief that was never there or has gone.
      heartbeat_timeout_s: a server that has not answered the chief for so long hangs or is cut off.
      start_timeout_s: no first step for so long, or no end of an evaluation or a save, is a hang; with Slurm also no
        first heartbeat.
      progress_timeout_s: no step for so long, and for progress_factor times the slowest step seen, is a hang.
    """

    has_server_processes: ClassVar[bool] = True
    started_elsewhere: ClassVar[bool] = True
    kind: str
    placement: str = one_of(*PLACEMENT_RULES)
    connect_timeout_s: float = at_least(1)
    chief_timeout_s: float = at_least(1)
    heartbeat_timeout_s: float = at_least(5)
    start_timeout_s: float = at_least(1)
    progress_timeout_s: float = at_least(1)
    progress_factor: float = at_least(1)


@dataclass(frozen=True)
class _Addressed(Unsupervised):
    """One whose size follows from the addresses that are given."""

    num_workers = None
    num_ps = None


@dataclass(frozen=True)
class TfConfig(_Addressed):
    """One whose addresses are in the environment variable TF_CONFIG."""


@dataclass(frozen=True)
class Static(_Addressed):
    """One whose addresses are in the configuration."""

    addresses: dict[str, Any] = field(kw_only=True)


@dataclass(frozen=True)
class KeeperRestart:
    """How the keepers of tasks restart them.

    Attributes:
      budget: restarts in all, over all tasks; the next failure after them ends the run. Also of the requeues for a lost
        node that psrun asks for itself.
      backoff_s: before a task's second restart; twice as long before each further one, up to max_backoff_s.
      stop_timeout_s: how long a chief may take to save and end when told to; less than Slurm's KillWait.
    """

    budget: int = at_least(0)
    backoff_s: float = at_least(0)
    max_backoff_s: float = at_least(0)
    stop_timeout_s: float = at_least(1)


@dataclass(frozen=True)
class Slurm(Unsupervised):
    """One of the tasks of a Slurm step, in each a keeper that starts the real task and restarts it.

    Attributes:
      interface: by which other nodes reach this one, such as ib0; None for that by which the launching host is reached.
    """

    restart: KeeperRestart = field(kw_only=True)
    interface: str | None = field(kw_only=True)
    num_workers: int = at_least(1)
    num_ps: int = at_least(1)
    num_data_workers: int = at_least(1)


@dataclass(frozen=True)
class Kubernetes(Unsupervised):
    """One whose tasks are pods: each finds its job and index in its environment, the addresses follow from names."""

    num_workers: int = at_least(1)
    num_ps: int = at_least(1)
    num_data_workers: int = at_least(1)


Supervised = Local | MultiWorkerMirrored
Cluster = NoCluster | OneDevice | Mirrored | CentralStorage | MultiWorkerMirrored | InProcess | Local | Unsupervised
