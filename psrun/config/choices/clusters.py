"""Clusters: their tasks, placement and supervision."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from psrun.config.choices.base import Choice
from psrun.config.schema import at_least, one_of

ISOLATE = ("auto", True, False)
PLACEMENT_RULES = ("greedy", "round_robin")  # functions of psrun.cluster.placement


class ClusterChoice(Choice):
    """The interface of every cluster; the defaults are those of a single process that trains alone.

    Attributes:
      has_parameter_servers: whether it trains with parameter servers; else variables are where they are used.
      has_server_processes: whether its parameter servers and workers are separate processes.
      has_synchronous_workers: whether several processes train replicas of one model, all in the same step.
      started_elsewhere: whether tasks are started one by one, by somebody else than a supervisor of psrun's.
      shares_cores: whether tasks may run on the same cores.
      num_workers: that the configuration asks for; None where addresses are given instead.
      num_ps: likewise.
      replicas_per_worker: None where the devices of the workers decide.
      slow_workers: seconds added to each step of a worker, by its index.
      placement: the rule by which variables are spread over parameter servers.
      isolate: whether the tasks are to be out of reach of other machines.
      connect_timeout_s: how long the chief waits for its servers.
      chief_timeout_s: how long a server waits for its chief.
      fork_server: whether processes that psrun starts on this machine are forked by one that has imported TensorFlow.
    """

    has_parameter_servers: ClassVar[bool] = False
    has_server_processes: ClassVar[bool] = False
    has_synchronous_workers: ClassVar[bool] = False
    started_elsewhere: ClassVar[bool] = False
    shares_cores: ClassVar[bool] = True
    kind: str
    num_workers: int | None = 1
    num_ps: int | None = 0
    replicas_per_worker: int | None = None
    slow_workers: dict[int, float] | None = None
    placement: str = PLACEMENT_RULES[0]
    isolate: Any = False
    connect_timeout_s: float = 0.0
    chief_timeout_s: float = 0.0
    fork_server: bool = False

    @property
    def spans_machines(self) -> bool:
        """Whether tasks may be on other machines than this one."""
        return False

    @property
    def title(self) -> str:
        """Its kind, and its size where the configuration decides that."""
        return self.kind


@dataclass(frozen=True, kw_only=True)
class _StartedHere(ClusterChoice):
    """A cluster whose processes, or whose jobs of a sweep, psrun starts on this machine."""

    fork_server: bool = True


@dataclass(frozen=True)
class NoCluster(_StartedHere):
    kind: str


@dataclass(frozen=True)
class OneDevice(_StartedHere):
    kind: str
    device: str


@dataclass(frozen=True)
class Mirrored(_StartedHere):
    kind: str
    num_replicas: int = at_least(1)


@dataclass(frozen=True)
class CentralStorage(_StartedHere):
    kind: str
    num_replicas: int = at_least(1)


@dataclass(frozen=True, kw_only=True)
class _ParameterServers(ClusterChoice):
    """Common options of clusters for parameter server training.

    Attributes:
      replicas_per_worker: None for one per GPU of a worker, or one on the CPU without GPUs.
    """

    has_parameter_servers: ClassVar[bool] = True
    replicas_per_worker: int | None = at_least(1, default=None)
    slow_workers: dict[int, float] | None = None

    @property
    def title(self) -> str:
        has_sizes = self.num_workers is not None
        return f"{self.kind} ({self.num_workers} workers, {self.num_ps} ps)" if has_sizes else self.kind


@dataclass(frozen=True)
class InProcess(_StartedHere, _ParameterServers):
    kind: str
    num_workers: int = at_least(1)
    num_ps: int = at_least(1)
    placement: str = one_of(*PLACEMENT_RULES)
    isolate: Any = one_of(*ISOLATE)


@dataclass(frozen=True)
class RestartLimits:
    """How often and how soon tasks are restarted; `stop_timeout_s` is a grace period for tasks to exit."""

    budget: int = at_least(0)
    backoff_s: float = at_least(0)
    max_backoff_s: float = at_least(0)
    stop_timeout_s: float = at_least(1)


@dataclass(frozen=True)
class Restart(RestartLimits):
    """How a supervisor restarts tasks, and when a task counts as hung: see conf/cluster/local.yaml."""

    heartbeat_timeout_s: float = at_least(2)
    progress_timeout_s: float = at_least(1)
    progress_factor: float = at_least(1)
    start_timeout_s: float = at_least(1)


class Supervised(ClusterChoice):
    """A cluster whose tasks a supervisor starts, monitors and restarts, on the engine that `implementation` opens.

    See `psrun.launch.backend.OpenBackend`.
    """

    implementation: ClassVar[str] = "psrun.launch.backend:LocalBackend"
    restart: RestartLimits

    @property
    def hang_limits(self) -> Any:
        """The limits after which a task counts as hung: `psrun.launch.hang_detector.HangLimits`."""
        return self.restart


@dataclass(frozen=True)
class Local(_StartedHere, _ParameterServers, Supervised):
    has_server_processes: ClassVar[bool] = True
    kind: str
    restart: Restart
    num_workers: int = at_least(1)
    num_ps: int = at_least(1)
    placement: str = one_of(*PLACEMENT_RULES)
    isolate: Any = one_of(*ISOLATE)
    connect_timeout_s: float = at_least(1)
    chief_timeout_s: float = at_least(1)


@dataclass(frozen=True)
class RayTaskResources:
    """The resources that Ray reserves for a task.

    Attributes:
      num_cpus: logical CPUs of Ray; Ray does not limit the actual use.
      memory_bytes: 0 for no reservation.
      num_gpus: the number of GPUs visible to the task.
    """

    num_cpus: float = at_least(0.001)
    memory_bytes: int = at_least(0)
    num_gpus: float = at_least(0, default=0)


@dataclass(frozen=True)
class RayResources:
    """The resources that Ray reserves for a task of each job."""

    chief: RayTaskResources
    worker: RayTaskResources
    ps: RayTaskResources
    evaluator: RayTaskResources


@dataclass(frozen=True)
class Ray(Local):
    """Like Local, on the nodes of a Ray cluster.

    Attributes:
      address: address of the Ray cluster: 'auto' for the cluster of this machine, HOST:PORT, or None to start a private
        one on this machine.
      placement_group: Ray's placement strategy, in lower case.
    """

    implementation: ClassVar[str] = "psrun.engines.ray:open_backend"
    address: str | None = field(kw_only=True)
    resources: RayResources = field(kw_only=True)
    placement_group: str = one_of("spread", "pack")

    @property
    def spans_machines(self) -> bool:
        return self.address is not None


@dataclass(frozen=True)
class MultiWorkerMirrored(_StartedHere, Supervised):
    has_synchronous_workers: ClassVar[bool] = True
    kind: str
    restart: Restart
    num_workers: int = at_least(1)
    isolate: Any = one_of(*ISOLATE)

    @property
    def title(self) -> str:
        return f"{self.kind} ({self.num_workers} workers)"


@dataclass(frozen=True)
class _OfNodes(_ParameterServers):
    """A cluster whose tasks are on several machines; its options have the limits of `Restart`."""

    has_server_processes: ClassVar[bool] = True
    shares_cores: ClassVar[bool] = False
    kind: str
    placement: str = one_of(*PLACEMENT_RULES)
    connect_timeout_s: float = at_least(1)
    chief_timeout_s: float = at_least(1)
    heartbeat_timeout_s: float = at_least(5)
    start_timeout_s: float = at_least(1)
    progress_timeout_s: float = at_least(1)
    progress_factor: float = at_least(1)

    @property
    def spans_machines(self) -> bool:
        return True


class Unsupervised(_OfNodes):
    """A cluster whose tasks are started outside psrun."""

    started_elsewhere: ClassVar[bool] = True


@dataclass(frozen=True)
class _Addressed(Unsupervised):
    """One whose size follows from the addresses that are given."""

    num_workers = None
    num_ps = None


@dataclass(frozen=True)
class TfConfig(_Addressed):
    """A cluster with its addresses in the environment variable TF_CONFIG."""


@dataclass(frozen=True)
class Static(_Addressed):
    """A cluster with its addresses in the configuration."""

    addresses: dict[str, Any] = field(kw_only=True)


@dataclass(frozen=True)
class Slurm(_OfNodes, Supervised):
    """The nodes of a Slurm job, where the tasks run in a job step.

    Attributes:
      restart: the budget also limits the requeues for a lost node that psrun requests itself; `stop_timeout_s` must be
        less than Slurm's KillWait.
      interface: network interface between nodes, such as ib0; None for the route to the supervisor's node.
    """

    implementation: ClassVar[str] = "psrun.engines.slurm.steps:SlurmBackend"
    restart: RestartLimits = field(kw_only=True)
    interface: str | None = field(kw_only=True)
    num_workers: int = at_least(1)
    num_ps: int = at_least(1)

    @property
    def hang_limits(self) -> Any:
        return self


@dataclass(frozen=True)
class Kubernetes(Unsupervised):
    """A cluster of pods: each gets its job and index from its environment; the addresses follow from the names."""

    num_workers: int = at_least(1)
    num_ps: int = at_least(1)


# By name, as `kind` in conf/.
CLUSTERS: dict[str, type] = {
    "none": NoCluster,
    "one_device": OneDevice,
    "mirrored": Mirrored,
    "central_storage": CentralStorage,
    "inprocess": InProcess,
    "local": Local,
    "ray": Ray,
    "multi_worker_mirrored": MultiWorkerMirrored,
    "tf_config": TfConfig,
    "static": Static,
    "slurm": Slurm,
    "kubernetes": Kubernetes,
}
