"""The choices of the group `cluster`: their tasks, placement and supervision."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from psrun.config import groups, topology
from psrun.config.schema import Choice, at_least, one_of
from psrun.config.topology import JOBS, Topology
from psrun.errors import ConfigError, Problem

ISOLATE = ("auto", True, False)
PLACEMENT_RULES = ("greedy", "round_robin")  # functions of psrun.cluster.placement


@dataclass(frozen=True)
class Start:
    """One start of a run by the process that starts its tasks.

    Attributes:
      name: processes of an earlier start that see another name exit; empty if there are none.
      may_find_run: whether a run that is already in the folder is an earlier start of this one.
      patience_s: how long processes of an earlier start, on lost nodes, may still use the folder.
    """

    name: str = ""
    may_find_run: bool = False
    patience_s: float = 0.0


@dataclass(frozen=True)
class EngineJob:
    """A job of a run that the engine has: it waits, runs or is ending.

    Attributes:
      engine: the choice that has it.
      title: such as 'Slurm job 12'.
      state: in a few words, with the reason and the time of the start as far as the engine knows them.
      waits: whether it waits to start, for the first time or again.
      recorded: as run.json has it in `process`.
    """

    engine: type[ClusterChoice]
    title: str
    state: str
    waits: bool
    recorded: Mapping[str, str]


class Prediction(NamedTuple):
    """What a cluster predicts of a training.

    Attributes:
      facts: as run.json has them.
      lines: for a person.
    """

    facts: Mapping[str, Any]
    lines: Sequence[str]


@dataclass(frozen=True)
class TaskKeys:
    """The task of `cluster=static` that this process runs."""

    type: str | None = one_of(*JOBS, "master", None)
    index: int = at_least(0)


class ClusterRun(Protocol):
    """What a cluster may ask of a run with it: of its `psrun.config.run_config.RunConfig`."""

    @property
    def task(self) -> TaskKeys: ...

    @property
    def trainer(self) -> object: ...

    @property
    def consistency(self) -> object: ...

    @property
    def num_tasks(self) -> dict[str, int]:
        """How many tasks each job has, of a cluster of processes whose size the configuration decides."""
        ...

    @property
    def submission(self) -> object:
        """The settings of the engine, of a dataclass in `psrun.parts.Part.settings`; None without any."""
        ...


class ClusterChoice(Choice):
    """The interface of every cluster; by default, the answers of a single process that trains alone.

    Attributes:
      has_parameter_servers: whether it trains with parameter servers; else variables are where they are used.
      has_server_processes: whether its parameter servers and workers are separate processes.
      has_synchronous_workers: whether several processes train replicas of one model, all in the same step.
      played_by: where a single process plays the workers, the class of their closures, with the interface of
        `psrun.closures.training_closures.TrainingClosures`; else empty.
      predicted_by: the function that predicts a training for `mode=plan`, from the `RunConfig` and from the bytes that
        a worker reads from each parameter server in a step and pushes there. It returns a `Prediction`; empty for none.
      started_elsewhere: whether tasks are started one by one, by somebody else than a supervisor of psrun's.
      shares_cores: whether tasks may run on the same cores.
      fits_in_sweep: whether the process of a job of a sweep can run it, with all of its tasks.
      exit_signal: by which the engine asks a task to end, beside SIGINT and SIGTERM; None for no other.
      waits_for: what a submitted run waits for, in a message.
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
    played_by: ClassVar[str] = ""
    predicted_by: ClassVar[str] = ""
    started_elsewhere: ClassVar[bool] = False
    shares_cores: ClassVar[bool] = True
    fits_in_sweep: ClassVar[bool] = True
    exit_signal: ClassVar[int | None] = None
    waits_for: ClassVar[str] = "its job"
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
    def has_workers(self) -> bool:
        """Whether a consistency mode decides which worker does a step when."""
        return self.has_parameter_servers or bool(self.played_by)

    @property
    def spans_machines(self) -> bool:
        """Whether tasks may be on other machines than this one."""
        return False

    @property
    def title(self) -> str:
        """Its kind, and its size where the configuration decides that."""
        return self.kind

    @classmethod
    def run_name(cls, environment: Mapping[str, str]) -> str | None:
        """The name of the run folder if the engine may start the same command again; None for a new name."""
        return None

    @classmethod
    def job(cls, environment: Mapping[str, str]) -> dict[str, Any]:
        """The engine's job of this process, as run.json has it in `process`; empty outside of a job."""
        return {}

    @classmethod
    def where(cls, process: Mapping[str, Any], config: Mapping[str, Any]) -> str | None:
        """Where a run was started, in a few words; None if that is not recorded.

        Args:
          process: as run.json has it.
          config: the keys of the run, by dotted name.
        """
        return process.get("host")

    @classmethod
    def resume_command(cls, folder: Path, overrides: Sequence[str], changes: Sequence[str] = ()) -> str:
        """The command that resumes a run, as a shell takes it.

        Args:
          folder: of the run.
          overrides: of the run so far.
          changes: further overrides.
        """
        return " ".join(["psrun resume", groups.run_argument(folder), *map(shlex.quote, changes)])

    @classmethod
    def jobs(cls, folder: Path, recorded: Sequence[Mapping[str, Any]]) -> list[EngineJob]:
        """The jobs of the run in a folder that the engine has, the waiting ones first; none without an engine.

        Args:
          recorded: jobs of the run, as run.json has them in `process`.

        Raises:
          PsrunError: the engine does not answer.
        """
        return []

    @classmethod
    def stop(cls, job: Mapping[str, Any], *, waits: bool, is_here: bool, now: bool) -> bool:
        """Asks the engine to end a run.

        Args:
          job: the engine's job, as run.json has it in `process`.
          waits: whether the job waits, and the run has not begun.
          is_here: whether the process of the run is on this host, so that it can be signalled instead.
          now: whether the run ends at once, without a last checkpoint.

        Returns:
          Whether the engine was asked; else the process of the run is to be signalled.

        Raises:
          PsrunError: the engine does not end it; the message says what does.
        """
        return False

    def topology(self, run: ClusterRun, environment: Mapping[str, str]) -> Topology | None:
        """The tasks of the run, with the task of this process; None for a run of a single process.

        Raises:
          ConfigError: the task cannot be determined.
        """
        return None

    def problems(self, config: ClusterRun) -> list[Problem]:
        """The problems with the rest of the configuration."""
        return []


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

    def start(self, run: ClusterRun, environment: Mapping[str, str]) -> Start:
        """This start of the run; asked in the process that starts its tasks.

        Raises:
          ConfigError: the tasks cannot be started from this process.
        """
        return Start()

    def topology(self, run: ClusterRun, environment: Mapping[str, str]) -> Topology | None:
        return topology.from_tf_config(environment.get("TF_CONFIG"))

    @property
    def hang_limits(self) -> Any:
        """The limits after which a task counts as hung: `psrun.launch.losses.HangLimits`."""
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
class MultiWorkerMirrored(_StartedHere, Supervised):
    has_synchronous_workers: ClassVar[bool] = True
    kind: str
    restart: Restart
    num_workers: int = at_least(1)
    isolate: Any = one_of(*ISOLATE)

    @property
    def title(self) -> str:
        return f"{self.kind} ({self.num_workers} workers)"

    def topology(self, run: ClusterRun, environment: Mapping[str, str]) -> Topology | None:
        return topology.from_tf_config(environment.get("TF_CONFIG"), needed=("chief",))


@dataclass(frozen=True)
class OnSeveralMachines(_ParameterServers):
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


class Unsupervised(OnSeveralMachines):
    """A cluster whose tasks are started outside psrun."""

    started_elsewhere: ClassVar[bool] = True
    fits_in_sweep: ClassVar[bool] = False

    def topology(self, run: ClusterRun, environment: Mapping[str, str]) -> Topology | None:
        return topology.from_tf_config(environment.get("TF_CONFIG"))


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

    def topology(self, run: ClusterRun, environment: Mapping[str, str]) -> Topology:
        task = run.task
        if task.type is None:
            message = "must be given with cluster=static: task.type=... task.index=..."
            raise ConfigError([Problem("task.type", message)])
        key = "cluster.addresses"
        return topology.make(self.addresses, task.type, task.index, key=key, task_key="task")


# By name, as `kind` in conf/.
CLUSTERS: dict[str, type] = {
    "none": NoCluster,
    "one_device": OneDevice,
    "mirrored": Mirrored,
    "central_storage": CentralStorage,
    "inprocess": InProcess,
    "local": Local,
    "multi_worker_mirrored": MultiWorkerMirrored,
    "tf_config": TfConfig,
    "static": Static,
}
