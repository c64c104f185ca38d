"""The configuration of a run, typed.

The choices of a group are in `psrun.config.choices`; models, data and optimizers are targets (`psrun.config.targets`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from psrun.config import choices, keras_callbacks
from psrun.config.schema import at_least, one_of
from psrun.config.targets import Target
from psrun.config.topology import DISPATCHER, EVALUATOR, JOBS, Task

MODES = ("train", "plan", "export", "predict", "evaluate")
CHIEF_ROLES = {"train": "coordinator", "evaluate": "evaluation", "predict": "predictor"}  # modes that use the cluster
OF_A_RUN = ("export", "predict", "evaluate")  # modes that take a checkpoint of a run


@dataclass(frozen=True)
class Data:
    """Where the examples come from.

    Attributes:
      global_batch_size: how many make one step (over all replicas of one worker, as in Keras).
      visitation: whether in each pass over the data an example goes to one worker, dealt by the chief ('once') or
        handed out by tf.data service ('dynamic'), or to all ('every_worker').
      audit: whether it is counted how often each example was trained on.
      sharding: TensorFlow's policy (tf.data.experimental.AutoShardPolicy, in small letters) by which synchronous
        workers share the training data; None for its own choice.
      label_vocabulary: the values of labels, strings or integers, in the order of the classes; None where labels are
        class numbers.
    """

    target: Target
    global_batch_size: int
    visitation: str = "every_worker"
    audit: bool = False
    sharding: str | None = None
    label_vocabulary: tuple[str, ...] | tuple[int, ...] | None = None


@dataclass(frozen=True)
class ModelKeys:
    """Keys of the model that psrun reads; the others are options of its function. None where nothing is configured.

    A function with a parameter of the same name receives the value itself, and psrun does not read it.

    Attributes:
      from_logits: whether the model of a classification returns logits; None where the loss says so, or else for
        probabilities.
      loss: as Keras' compile takes it: a name or a `_target_`, or such by output. None for the model's own, or the
        usual one of the data's task.
      metrics: a list of such, or one by output.
      class_weight: by class number, as Keras' fit takes it.
    """

    from_logits: bool | None = None
    loss: Any = None
    metrics: Any = None
    class_weight: Any = None

    @property
    def given(self) -> dict[str, Any]:
        """Those that have a value."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class TaskKeys:
    """Which task of `cluster=static` this process is."""

    type: str | None = one_of(*JOBS, "master", None)
    index: int = at_least(0)


@dataclass(frozen=True)
class ExportKeys:
    """Whether a SavedModel is written when the training has ended, and of each checkpoint that is the best so far."""

    at_end: bool
    best: bool


@dataclass(frozen=True)
class PredictKeys:
    """What mode=predict writes, and where; None for a file in the run folder."""

    path: str | None
    format: str = one_of("csv", "tfrecord")


@dataclass(frozen=True)
class EarlyStopping:
    """The training ends when `metric` (None: never) has not become better in `patience` evaluations.

    Attributes:
      mode: 'max' where more is better, else 'min'; None where there is no metric.
      min_delta: by how much better it must be to count.
    """

    metric: str | None
    mode: str | None = one_of("max", "min", None)
    patience: int = at_least(1)
    min_delta: float = at_least(0)


@dataclass(frozen=True)
class LowerLearningRate(EarlyStopping):
    """The learning rate is multiplied by `factor`, not below `min_lr`, when `metric` is not getting better."""

    factor: float = at_least(0)
    min_lr: float = at_least(0)


@dataclass(frozen=True)
class SweepKeys:
    """How the jobs of a sweep are run and compared; a single run has no use for it.

    Attributes:
      max_parallel: how many at once; 'auto' for what the machine has cores and memory for.
      metric: of run.json, by which jobs are compared; None for val_loss or, where nothing is evaluated, loss.
      mode: whether more or less of it is better; None where there is no metric.
    """

    metric: str | None
    mode: str | None = one_of("max", "min", None)
    max_parallel: int | str = at_least(1, or_else="auto")


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run. `raw` is the composed configuration, resolved, as plain values.

    Attributes:
      submission: what the engine is told that the run is handed over to; None where there is none.
      resume: the run folder whose run goes on, or whose checkpoint is taken; None for a new run.
      restore: which checkpoint to export or to predict with: 'latest', 'best' or a step.
    """

    cluster: choices.Cluster
    partitioner: choices.Partitioner
    model: Target
    model_keys: ModelKeys
    data: Data
    optimizer: Target
    trainer: choices.Trainer
    evaluation: choices.Evaluation
    checkpoint: choices.Checkpoints
    tracker: choices.Tracker
    submission: choices.Submission | None
    task: TaskKeys
    export: ExportKeys
    predict: PredictKeys
    early_stopping: EarlyStopping
    reduce_lr: LowerLearningRate
    sweep: SweepKeys
    mode: str
    seed: int
    resume: str | None
    restore: str
    raw: Mapping[str, Any]

    @property
    def title(self) -> str:
        """What is trained, on what and how, in a line."""
        return f"{self.model.name.rpartition('.')[2]} on {self.cluster.title}, {self.trainer.kind}"

    @property
    def notes(self) -> list[str]:
        """What a person should know of this run before it starts."""
        if not self.partitioner.splits or self.cluster.has_parameter_servers:
            return []
        return [f"partitioner={self.partitioner.kind} has no effect without parameter servers"]

    @property
    def uses_cluster(self) -> bool:
        """Whether the workers of the cluster have a part in it; else one process does it."""
        return self.mode in CHIEF_ROLES

    @property
    def sidecar(self) -> choices.Sidecar | None:
        """The evaluation by an evaluator task; None where there is none, or where nothing is trained."""
        evaluation = self.evaluation
        return evaluation if isinstance(evaluation, choices.Sidecar) and self.mode not in OF_A_RUN else None

    @property
    def other_checkpoints(self) -> Path | None:
        """Where the evaluator task finds checkpoints that psrun does not take; None where it takes them."""
        if not isinstance(self.evaluation, choices.Sidecar):
            return None
        folder = self.evaluation.checkpoint_dir
        if folder is None and not self.checkpoint.are_taken:
            folder = keras_callbacks.checkpoint_dir(self.trainer.callbacks)
        return None if folder is None else Path(folder).expanduser()

    @property
    def data_service(self) -> bool:
        """Whether tf.data service reads for the workers that train."""
        return self.mode == "train" and self.data.visitation == "dynamic"

    @property
    def num_tasks(self) -> dict[str, int]:
        """How many tasks each job has, of a cluster of processes whose size the configuration decides."""
        cluster = self.cluster
        assert cluster.num_workers is not None
        assert cluster.num_ps is not None
        found = {"chief": 1, "ps": cluster.num_ps, "worker": cluster.num_workers}
        if self.sidecar is not None and not self.sidecar.sets_worker_aside:
            found[EVALUATOR.job] = 1
        return found | ({DISPATCHER.job: 1, "data_worker": cluster.num_data_workers} if self.data_service else {})

    @property
    def evaluator(self) -> Task | None:
        """The task of such a cluster that evaluates checkpoints; None where none does."""
        if self.sidecar is None:
            return None
        return Task("worker", self.num_tasks["worker"] - 1) if self.sidecar.sets_worker_aside else EVALUATOR

    @property
    def needs_network(self) -> bool:
        """Whether data or checkpoints are elsewhere: some URL is configured, or a download is asked for."""
        downloads = "path" in self.data.target.options and self.data.target.options["path"] is None
        return downloads or "://" in repr(self.raw)
