"""The built-in choices of each group: one frozen dataclass each, selected by the node's `kind`. No TensorFlow."""

from __future__ import annotations

import functools
import importlib.resources
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import yaml

from psrun import parts
from psrun.config import clusters, schema
from psrun.config.clusters import (
    CentralStorage,
    ClusterChoice,
    InProcess,
    Local,
    Mirrored,
    MultiWorkerMirrored,
    NoCluster,
    OneDevice,
    OnSeveralMachines,
    Restart,
    RestartLimits,
    Start,
    Static,
    Supervised,
    TaskKeys,
    TfConfig,
    Unsupervised,
)
from psrun.config.schema import AUTO, Choice, at_least, did_you_mean, one_of
from psrun.config.targets import Target
from psrun.errors import Problem

MAX_UNROLLED_STEPS = 10  # in the graph of an execution: more gain little
WHOLE_FILES = (".keras", ".h5", ".hdf5")  # of a model, as one file
ARTIFACTS = ("config", "result", "export", "best_checkpoint")


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

    @property
    def callback_checkpoint_dir(self) -> str | None:
        """The folder of a ModelCheckpoint whose weights the evaluator task can read; None if there is none."""
        return None


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
        """Epochs of the training; defined after `psrun.data.loading.planned` has inspected the data."""
        assert isinstance(self.epochs, int)
        return self.epochs

    @property
    def num_steps(self) -> int:
        """Steps of an epoch; defined after `psrun.data.loading.planned` has inspected the data."""
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

    @property
    def callback_checkpoint_dir(self) -> str | None:
        for node in self.callbacks:
            if callback_name(node) != "ModelCheckpoint" or not node.get("save_weights_only"):
                continue
            path = str(node.get("filepath", ""))
            if not path.endswith(WHOLE_FILES):
                return path.partition("{")[0].rpartition("/")[0] or "."
        return None


def callback_name(node: Mapping[str, Any]) -> str:
    """The name of the class of a Keras callback."""
    return str(node["_target_"]).rpartition(".")[2]


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


def staleness_histogram(recorded: Mapping[str, Any]) -> dict[int, int]:
    """The number of updates by staleness, from `staleness` in run.json or from the part of a worker in it.

    Raises:
      KeyError, TypeError, ValueError: it has another form.
    """
    pairs = {int(staleness): int(number) for staleness, number in recorded["histogram"]}
    if not pairs or min(pairs) < 0 or min(pairs.values()) < 1:
        raise ValueError("no updates, or negative numbers")
    return dict(sorted(pairs.items()))


class TrainingRun(Protocol):
    """What a consistency mode may ask of a run to train: of its `psrun.config.run_config.RunConfig`."""

    @property
    def cluster(self) -> ClusterChoice: ...

    @property
    def trainer(self) -> Trainer: ...

    @property
    def num_training_workers(self) -> int | None:
        """The number of workers that train; None where the addresses of the cluster decide."""
        ...


class ConsistencyChoice(Choice):
    """The interface of every consistency mode; by default, the answers of asynchronous training.

    The implementation is a subclass of `psrun.closures.training_closures.TrainingClosures`, called with the
    `Distribution` and the choice; its `steps` makes the scheduler of the steps.

    Attributes:
      needs_parameter_servers: whether the mode has a meaning only with parameter servers.
      max_delay: a round starts once all rounds before the one this many rounds earlier are done; None for no bound.
      averages: whether an update averages several gradients; else each gradient is an update.
      min_workers: the least number of gradients of an update while workers are lost; None for as many as otherwise.
      tolerance: where an update averages: the greatest age of a gradient that it may have; None: any.
      decay: where an update averages: the weight of a gradient is this number to the power of its age.
      updates_rows: where an update averages: whether steps update rows of tables themselves.
      staleness: a worker waits while it is more than this many rounds ahead of the slowest one; None for no bound.
    """

    implementation = "psrun.closures.scheduling:AsynchronousClosures"
    needs_parameter_servers: ClassVar[bool] = True
    kind: str
    max_delay: int | None = None
    staleness: int | None = None
    averages: ClassVar[bool] = False
    updates_rows: ClassVar[bool] = False
    min_workers: int | None = None
    tolerance: int | None = 0
    decay: float = 1.0

    @property
    def waits(self) -> bool:
        """Where an update averages: whether a worker waits for the update with its last gradient."""
        return True

    @property
    def queue(self) -> ConsistencyChoice:
        """Where an update averages: the mode of the variables whose gradients it averages."""
        return self

    def gradients_per_update(self, num_workers: int) -> int:
        """The number of batches that an update is computed from."""
        return 1

    def problems(self, config: TrainingRun) -> list[Problem]:
        """What of a configuration to train the mode does not support."""
        return []

    def worker_problems(self, num_workers: int) -> list[Problem]:
        """What the mode does not support with a number of workers."""
        return []

    def waits_in_words(self, num_workers: int) -> str:
        """Who waits for what, for `mode=plan`."""
        return "No worker waits for another one."

    def never_waits(self, trainer: _Steps) -> str | None:
        """The warning that an option has no effect with this number of steps; None if that is not certain.

        Args:
          trainer: with the number of steps per epoch.
        """
        return None

    @property
    def counts_executions(self) -> bool:
        """Whether the mode bounds the number of executions between workers."""
        return self.max_delay is not None or self.staleness is not None

    @property
    def facts(self) -> dict[str, Any]:
        """The mode and its options, as in run.json."""
        options: dict[str, Any] = asdict(self)  # type: ignore[call-overload]
        return {"mode": options.pop("kind"), **options}

    @property
    def title(self) -> str:
        """The mode with the options that are set."""
        options = self.facts
        mode = options.pop("mode")
        names = []
        for name, value in options.items():
            if value is not None:
                names.append(f"{name}={value}")
        return f"{mode} ({', '.join(names)})" if names else str(mode)


@dataclass(frozen=True)
class Asynchronous(ConsistencyChoice):
    needs_parameter_servers = False
    kind: str


@dataclass(frozen=True)
class BoundedDelay(ConsistencyChoice):
    kind: str
    max_delay: int = at_least(0)

    def waits_in_words(self, num_workers: int) -> str:
        return f"Round r waits for all rounds before round r - {self.max_delay}."

    def never_waits(self, trainer: _Steps) -> str | None:
        if trainer.steps_per_execution == AUTO or not trainer.has_fixed_epochs:
            return None
        packed = trainer.num_steps_packed
        rounds = math.ceil(trainer.num_steps / packed)
        if self.max_delay < rounds:
            return None
        found = f"consistency.max_delay: is {self.max_delay}, but an epoch has only {rounds} rounds"
        return f"{found} (trainer.steps_per_execution={packed}), so no worker ever waits; lower it"


@dataclass(frozen=True)
class StaleSynchronous(ConsistencyChoice):
    kind: str
    staleness: int = at_least(0)

    def waits_in_words(self, num_workers: int) -> str:
        return f"A worker waits while it is more than {self.staleness} rounds ahead of the slowest one."


class _Averaging(ConsistencyChoice):
    """The interface of modes in which an update averages several gradients."""

    implementation = "psrun.closures.scheduling:QueuedClosures"
    averages = True

    def problems(self, config: TrainingRun) -> list[Problem]:
        trainer = config.trainer
        mode = f"consistency={self.kind}"
        problems = []
        for key, value, only in (
            ("trainer.steps_per_execution", trainer.num_steps_packed, 1),
            ("trainer.dense_sync_every", trainer.dense_sync_every, 1),
            ("trainer.prefetch_rows", trainer.prefetch_rows, False),
        ):
            if value not in (only, "auto"):
                why = "the gradients of each batch are pushed by themselves"
                problems.append(Problem(key, f"is {value}, which {mode} does not support: {why}; set it to {only}"))
        if (config.cluster.replicas_per_worker or 1) > 1:
            problems.append(Problem("cluster.replicas_per_worker", f"must be 1 with {mode}"))
        if trainer.steps_per_epoch is None and config.num_training_workers is None:
            message = f"is required with {mode} where the addresses of the cluster decide on the number of workers"
            problems.append(Problem("trainer.steps_per_epoch", message))
        return problems


@dataclass(frozen=True)
class Synchronous(_Averaging):
    """The first gradients of the present weights are averaged and applied once.

    Attributes:
      backup_workers: the number of gradients of these weights that are not waited for.
    """

    kind: str
    backup_workers: int = at_least(0)
    min_workers: int | None = at_least(1)

    def gradients_per_update(self, num_workers: int) -> int:
        return num_workers - self.backup_workers

    def waits_in_words(self, num_workers: int) -> str:
        which = "all" if not self.backup_workers else f"the first {self.gradients_per_update(num_workers)}"
        return f"Each update waits for {which} of {num_workers} gradients of the same weights."

    def worker_problems(self, num_workers: int) -> list[Problem]:
        averaged, least = self.gradients_per_update(num_workers), self.min_workers
        if averaged < 1:
            message = f"is {self.backup_workers}, must be less than the number of workers, {num_workers}"
            return [Problem("consistency.backup_workers", message)]
        if least is not None and least > averaged:
            message = f"is {least}, must be at most {averaged}, the number of workers without backup workers"
            return [Problem("consistency.min_workers", message)]
        return []


@dataclass(frozen=True)
class GlobalBatch(_Averaging):
    """The gradients of a global batch are averaged, whoever computed them; gradients that are too old are dropped.

    Attributes:
      gradients: the number of gradients of an update; None: one for each worker.
    """

    kind: str
    gradients: int | None = at_least(1)
    tolerance: int = at_least(0)
    decay: float = at_least(0, at_most=1)

    @property
    def waits(self) -> bool:
        return self.tolerance == 0  # no other gradient of the same weights is needed

    def gradients_per_update(self, num_workers: int) -> int:
        return self.gradients or num_workers

    def waits_in_words(self, num_workers: int) -> str:
        number = self.gradients_per_update(num_workers)
        if self.waits:
            return f"Each update waits for {number} gradients of the same weights."
        return (
            f"No worker waits for another one. An update has the first {number} gradients; a gradient that is more "
            f"than {self.tolerance} updates old is dropped."
        )


@dataclass(frozen=True)
class KAsynchronous(_Averaging):
    """The first `gradients` gradients are averaged, however old; their workers wait for the update.

    With fewer live workers, these compute more than one each: a pass of so many updates leaves out no example.
    """

    tolerance = None
    kind: str
    gradients: int = at_least(1)

    def gradients_per_update(self, num_workers: int) -> int:
        return self.gradients

    def waits_in_words(self, num_workers: int) -> str:
        return f"An update has the first {self.gradients} gradients. Their workers wait for it; the others go on."

    def worker_problems(self, num_workers: int) -> list[Problem]:
        if self.gradients <= num_workers:
            return []
        why = f"{num_workers}: each of them waits for the update with its gradient"
        message = f"is {self.gradients}, must be at most the number of workers, {why}"
        return [Problem("consistency.gradients", message)]


# What null means for the options of the mode of dense weights.
_DENSE_TOLERANCE = 2
_DENSE_DECAY = 1.0


@dataclass(frozen=True)
class Hybrid(_Averaging):
    """Steps update the rows of tables at once; dense weights follow another mode.

    Attributes:
      gradients, tolerance, decay: of the mode of dense weights; None: its default, or it has no such option.
    """

    updates_rows = True
    kind: str
    tables: str = one_of("async")
    dense: str = one_of("sync", "gba", "k_async")
    gradients: int | None = at_least(1)
    tolerance: int | None = at_least(0)
    decay: float | None = at_least(0, at_most=1)  # type: ignore[assignment]

    @property
    def queue(self) -> ConsistencyChoice:
        if self.dense == "sync":
            return Synchronous("sync", backup_workers=0, min_workers=None)
        if self.dense == "k_async":
            return KAsynchronous("k_async", gradients=self.gradients or 1)
        tolerance = _DENSE_TOLERANCE if self.tolerance is None else self.tolerance
        decay = _DENSE_DECAY if self.decay is None else self.decay
        return GlobalBatch("gba", gradients=self.gradients, tolerance=tolerance, decay=decay)

    @property
    def waits(self) -> bool:
        return False  # rows are updated in any order

    @property
    def facts(self) -> dict[str, Any]:
        options = self.queue.facts
        dense = options.pop("mode")
        return {"mode": self.kind, "tables": self.tables, "dense": dense, **options}

    def gradients_per_update(self, num_workers: int) -> int:
        return self.queue.gradients_per_update(num_workers)

    def waits_in_words(self, num_workers: int) -> str:
        return f"Rows of tables are updated at once. Dense weights: {self.queue.waits_in_words(num_workers)}"

    def worker_problems(self, num_workers: int) -> list[Problem]:
        return self.queue.worker_problems(num_workers)

    def problems(self, config: TrainingRun) -> list[Problem]:
        problems = super().problems(config)
        options = {"sync": (), "k_async": ("gradients",), "gba": ("gradients", "tolerance", "decay")}[self.dense]
        for name in ("gradients", "tolerance", "decay"):
            if getattr(self, name) is not None and name not in options:
                message = f"has no effect with consistency.dense={self.dense}; set it to null"
                problems.append(Problem(f"consistency.{name}", message))
        if self.dense == "k_async" and self.gradients is None:
            message = "is required with consistency.dense=k_async; set it to the number of gradients of an update"
            problems.append(Problem("consistency.gradients", message))
        return problems


_NEVER_SCHEDULED = ("scheduled",)


@dataclass(frozen=True)
class Scheduled(ConsistencyChoice):
    """Another mode from each of some steps on.

    Attributes:
      schedule: by step, the name of a mode, or a mapping with its `kind` and options; other options are the options of
        the mode in conf/.
    """

    implementation = "psrun.closures.scheduling:ScheduledClosures"
    kind: str
    schedule: dict[int, Any]

    @functools.cached_property
    def _read(self) -> tuple[dict[int, ConsistencyChoice], list[Problem]]:
        modes: dict[int, ConsistencyChoice] = {}
        problems: list[Problem] = []
        for step, node in sorted(self.schedule.items()):
            key = f"consistency.schedule[{step}]"
            options = dict(node) if isinstance(node, Mapping) else {"kind": node}
            kind = options.get("kind")
            cls = CONSISTENCY_MODES.get(kind) if isinstance(kind, str) else None
            if cls is None or kind in _NEVER_SCHEDULED:
                known = [name for name in CONSISTENCY_MODES if name not in _NEVER_SCHEDULED]
                problems.append(Problem(key, f"is {kind!r}, which is no mode.{did_you_mean(str(kind), known)}"))
                continue
            file = importlib.resources.files("psrun.conf") / "consistency" / f"{kind}.yaml"
            usual = yaml.safe_load(file.read_text(encoding="utf-8"))
            mode = schema.read(cls, {**usual, **options}, key=key, problems=problems)
            if mode is not None:
                modes[step] = mode
        return modes, problems

    @property
    def modes(self) -> dict[int, ConsistencyChoice]:
        """The modes by the step from which on they hold, in order."""
        return self._read[0]

    def gradients_per_update(self, num_workers: int) -> int:
        first, *_ = self.modes.values()
        return first.gradients_per_update(num_workers)

    @property
    def averages(self) -> bool:  # type: ignore[override]
        return any(mode.averages for mode in self.modes.values())

    @property
    def updates_rows(self) -> bool:  # type: ignore[override]
        return any(mode.updates_rows for mode in self.modes.values())

    @property
    def waits(self) -> bool:
        return all(mode.waits for mode in self.modes.values())

    @property
    def facts(self) -> dict[str, Any]:
        return {"mode": self.kind, "schedule": {step: mode.title for step, mode in self.modes.items()}}

    @property
    def title(self) -> str:
        return ", then ".join(f"{mode.title} from step {step}" for step, mode in self.modes.items())

    def waits_in_words(self, num_workers: int) -> str:
        words = [f"From step {step}: {mode.waits_in_words(num_workers)}" for step, mode in self.modes.items()]
        return "\n".join(words)

    def worker_problems(self, num_workers: int) -> list[Problem]:
        problems = []
        for mode in self.modes.values():
            problems += mode.worker_problems(num_workers)
        numbers = {mode.title: mode.gradients_per_update(num_workers) for mode in self.modes.values()}
        if not problems and len(set(numbers.values())) > 1:
            found = ", ".join(f"{number} of {title}" for title, number in numbers.items())
            message = f"mixes steps of different numbers of batches ({found}), which have epochs of different lengths"
            advice = "choose modes of equal steps, or resume with another mode"
            problems.append(Problem("consistency.schedule", f"{message}; {advice}"))
        return problems

    def never_waits(self, trainer: _Steps) -> str | None:
        beyond = self._beyond(trainer)
        return f"consistency.schedule: {beyond[0]}" if beyond else None

    def _beyond(self, trainer: _Steps) -> list[str]:
        """What is wrong with steps after the end of the training."""
        if not trainer.has_fixed_epochs:
            return []
        last = trainer.num_epochs * trainer.num_steps
        return [f"names step {step}, but the training has {last:,} steps" for step in self.modes if step >= last]

    def problems(self, config: TrainingRun) -> list[Problem]:
        modes, problems = self._read
        problems = list(problems)
        if 0 not in self.schedule:
            problems.append(
                Problem("consistency.schedule", "has no mode for step 0; add it, such as {0: sync, 2000: gba}")
            )
        trainer = config.trainer
        if isinstance(trainer.steps_per_epoch, int) and isinstance(trainer.epochs, int):
            problems += [Problem("consistency.schedule", text) for text in self._beyond(trainer)]
        for mode in modes.values():
            problems += mode.problems(config)
        return problems


# By name, as `kind` in conf/.
CONSISTENCY_MODES: dict[str, type] = {
    "async": Asynchronous,
    "bounded_delay": BoundedDelay,
    "ssp": StaleSynchronous,
    "sync": Synchronous,
    "gba": GlobalBatch,
    "k_async": KAsynchronous,
    "hybrid": Hybrid,
    "scheduled": Scheduled,
}


class EvaluationChoice(Choice):
    """The interface of every evaluation; by default, the answers of a run without one.

    The implementation is called with the program, and returns a `psrun.training.evaluators.Evaluator`; None where
    Keras' fit evaluates.

    Attributes:
      runs_on: 'fit': within Keras' fit; 'coordinator': between epochs, led by the chief; 'evaluator': beside the
        training, by a separate task; None where nothing is evaluated.
      sets_worker_aside: whether that task is the last worker.
      needs_parameter_servers: whether it has a meaning only with parameter servers.
      is_exact: whether each example counts once.
      batch_size: examples per evaluation batch; None for the training batch size.
      user: the feature with the users, for metrics of lists; None: there are none.
      by: features by whose values metrics are also reported.
      candidates: what relevant items are ranked among: None: the other evaluation examples of the user; all: all items;
        a number: that many negatives, drawn for each.
      sampling: how these are drawn.
      item: the feature with the items, for candidates.
      item_features: those that depend on the item, of a model without towers; empty: `item` alone.
    """

    runs_on: ClassVar[Literal["fit", "coordinator", "evaluator"] | None] = None
    sets_worker_aside: ClassVar[bool] = False
    needs_parameter_servers: ClassVar[bool] = False
    is_exact: ClassVar[bool] = True
    kind: str
    batch_size: int | None = None
    user: str | None = None
    by: Sequence[str] = ()
    candidates: int | str | None = None
    sampling: str = "uniform"
    item: str | None = None
    item_features: Sequence[str] = ()

    def is_due(self, epoch: int) -> bool:
        """Whether it runs between `epoch` and the next one."""
        return False

    @property
    def set_for_gathering(self) -> list[str]:
        """The keys for examples that are gathered (`psrun.parts`), as far as they are set."""
        names = []
        for name in ("user", "by", "candidates", "sampling", "item", "item_features"):
            unset = (getattr(EvaluationChoice, name), list[str]())
            if getattr(self, name) not in unset:
                names.append(name)
        return names

    def refusal_to_group(self, what: str) -> str | None:
        """The problem with `what`, which needs all examples of a list or a segment once; None if there is none."""
        if self.runs_on == "fit":
            return f"is validation, Keras' own, which cannot group examples as {what} needs; choose exact"
        if not self.is_exact:
            found = f"is {self.kind}, which counts some examples twice and others not at all"
            return f"{found}, but {what} needs each example once; choose exact"
        return None


@dataclass(frozen=True)
class NoEvaluation(EvaluationChoice):
    kind: str


@dataclass(frozen=True)
class Evaluated(EvaluationChoice):
    kind: str
    batch_size: int | None = at_least(1)
    user: str | None = field(default=None, kw_only=True)
    by: list[str] = field(default_factory=list, kw_only=True)
    candidates: int | str | None = field(default=None, kw_only=True, metadata={"at_least": 1, "or_else": "all"})
    sampling: str = field(default="uniform", kw_only=True, metadata={"choices": ("uniform", "popularity")})
    item: str | None = field(default=None, kw_only=True)
    item_features: list[str] = field(default_factory=list, kw_only=True)


@dataclass(frozen=True)
class Validation(Evaluated):
    implementation = "psrun.training.evaluators:check_validation"
    runs_on = "fit"
    every: int = at_least(1)


@dataclass(frozen=True)
class BetweenEpochs(Evaluated):
    """`every`: after how many epochs."""

    runs_on = "coordinator"
    every: int = at_least(1)

    def is_due(self, epoch: int) -> bool:
        return epoch % self.every == 0


@dataclass(frozen=True)
class Direct(BetweenEpochs):
    implementation = "psrun.training.evaluators:DirectEvaluation"


@dataclass(frozen=True)
class Distributed(BetweenEpochs):
    implementation = "psrun.training.evaluators:DistributedEvaluation"
    needs_parameter_servers = True
    is_exact = False


@dataclass(frozen=True)
class Exact(BetweenEpochs):
    """`num_shards`: the number of closures; None for a few per worker."""

    implementation = "psrun.training.evaluators:exact_evaluation"
    num_shards: int | None = at_least(1)


@dataclass(frozen=True)
class Sidecar(Evaluated):
    """Evaluation by the evaluator task.

    Attributes:
      every: whether to evaluate each checkpoint, or only the newest.
      wait_s: limit for the first checkpoint, for a missing chief, and for the last evaluation.
      max_evaluations: evaluations before the evaluator exits; None for no limit.
      checkpoint_dir: folder of checkpoints that psrun does not write; None for the run's own.
      callbacks: Keras callbacks of each evaluation; a mapping with a _target_ each.
    """

    runs_on = "evaluator"
    every: str = one_of("each", "latest")
    wait_s: float = at_least(1)
    max_evaluations: int | None = at_least(1)
    checkpoint_dir: str | None = None
    callbacks: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class SidecarThread(Sidecar):
    """Evaluation by the last worker, which does not join the cluster."""

    sets_worker_aside = True


class _Checkpoints:
    """The interface of every choice of checkpoints.

    Attributes:
      are_taken: whether psrun takes any; Keras callbacks may, in any case.
      best_metric: by which checkpoints are compared; None where they are not.
      best_mode: whether greater ('max') or smaller ('min') is better; None without a metric.
    """

    are_taken: ClassVar[bool] = False
    kind: str
    best_metric: str | None = None
    best_mode: str | None = None
    every_epochs: int | None = None
    every_s: float | None = None


@dataclass(frozen=True)
class NoCheckpoints(_Checkpoints):
    kind: str


@dataclass(frozen=True)
class EpochCheckpoints(_Checkpoints):
    """When to save checkpoints (always at the end), and which to keep: the newest, and the best by a metric."""

    are_taken = True
    kind: str
    best_metric: str | None = field()
    best_mode: str | None = one_of("max", "min", None)
    every_epochs: int | None = at_least(1)
    every_steps: int | None = at_least(1)
    every_s: float | None = at_least(0)
    max_to_keep: int = at_least(1)


Checkpoints = NoCheckpoints | EpochCheckpoints


# By name, as `kind` in conf/.
EVALUATIONS: dict[str, type] = {
    "none": NoEvaluation,
    "validation": Validation,
    "direct": Direct,
    "distributed": Distributed,
    "exact": Exact,
    "sidecar": Sidecar,
    "sidecar_thread": SidecarThread,
}
CHECKPOINTS: dict[str, type] = {"none": NoCheckpoints, "epoch": EpochCheckpoints}


class TrackerChoice(Choice):
    """The interface of every tracker.

    The implementation is called with the choice and a `psrun.results.tracking.TrackedRun`, in the chief and in
    the evaluator, and returns a `psrun.results.events.Sink`. Where it raises an error later, the run continues without
    it.
    """

    kind: str

    @property
    def title(self) -> str:
        """Its name in warnings."""
        return self.kind

    @property
    def needs_network(self) -> bool:
        """Whether it accesses the network without a URL in the configuration."""
        return False


@dataclass(frozen=True)
class NoTracker(TrackerChoice):
    kind: str


@dataclass(frozen=True)
class TensorBoard(TrackerChoice):
    implementation = "psrun.results.tensorboard:TensorBoardSink"
    title = "TensorBoard"
    kind: str


# By name, as `kind` in conf/.
TRACKERS: dict[str, type] = {"none": NoTracker, "tensorboard": TensorBoard}


__all__ = [
    "CentralStorage",
    "Choice",
    "ClusterChoice",
    "InProcess",
    "Local",
    "Mirrored",
    "MultiWorkerMirrored",
    "NoCluster",
    "OnSeveralMachines",
    "OneDevice",
    "Restart",
    "RestartLimits",
    "Start",
    "Static",
    "Supervised",
    "TaskKeys",
    "TfConfig",
    "Unsupervised",
]

# The groups whose choice may be a class of the user's, named by a `_target_`, with the class that it derives from.
BASES: dict[str, type[Choice]] = {
    "cluster": ClusterChoice,
    "consistency": ConsistencyChoice,
    "evaluation": EvaluationChoice,
    "tracker": TrackerChoice,
}
KINDS: dict[str, dict[str, type]] = {
    "cluster": clusters.CLUSTERS,
    "partitioner": PARTITIONERS,
    "trainer": TRAINERS,
    "consistency": CONSISTENCY_MODES,
    "evaluation": EVALUATIONS,
    "checkpoint": CHECKPOINTS,
    "tracker": TRACKERS,
}


def of_kind(group: str, kind: str) -> type | None:
    """The dataclass of a choice, of the core or of a part; None if there is no such choice."""
    return KINDS[group].get(kind) or parts.choice(group, kind)


def cluster_of_kind(kind: object) -> type[ClusterChoice]:
    """The dataclass of a cluster; of an unknown one its base class, with the answers of a process that trains alone."""
    found = of_kind("cluster", kind) if isinstance(kind, str) else None
    return ClusterChoice if found is None else found


def kinds(group: str) -> list[str]:
    """The names of all choices of a group."""
    return [*KINDS[group], *parts.kinds(group)]
