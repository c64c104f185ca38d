"""The configuration of a run, typed.

The choices of a group are in `psrun.config.choices`; models, data and optimizers are targets (`psrun.config.targets`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from psrun import parts
from psrun.config import choices
from psrun.config.schema import AUTO, at_least, one_of
from psrun.config.targets import Target
from psrun.config.topology import EVALUATOR, Task

DEFAULT_MODE = "train"
MODES = (DEFAULT_MODE, "plan", "export", "predict", "evaluate")
CHIEF_ROLES = {"train": "coordinator", "evaluate": "evaluation", "predict": "predictor"}  # modes that use the cluster
OF_A_RUN = ("export", "predict", "evaluate")  # modes that take a checkpoint of a run
RESUME = "resume"
TAKE_A_RUN = (*OF_A_RUN, RESUME)  # the words of these commands are followed by a run
# The commands that stand for keys of a run, `psrun WORD RUN KEY=VALUE` for mode=WORD resume=RUN KEY=VALUE: what each
# does, and examples of what follows the word.
WORDS: dict[str, tuple[str, dict[str, str]]] = {
    "train": (
        "Trains a new run or, with -m, all runs of a sweep. The word may be left out.",
        {
            "model=embedding trainer.epochs=3": "a run",
            "-m seed=1,2,3": "a sweep of three runs",
            "--config-dir conf experiment=first": "a run with files of your own",
        },
    ),
    "plan": (
        "Shows tasks, placement, memory and traffic of a run. It starts nothing.",
        {
            "cluster=local model=embedding": "the plan of a run",
            "-m cluster.num_ps=1,2,4": "a table of the plans of a sweep",
        },
    ),
    "evaluate": (
        "Evaluates a checkpoint of a run.",
        {
            "RUN": "its newest checkpoint",
            "RUN restore=best": "its best checkpoint",
            "RUN data.eval_path=new.csv": "on other data",
        },
    ),
    "predict": (
        "Writes the predictions of a checkpoint of a run to a file.",
        {
            "RUN": "for its evaluation data",
            "RUN data.eval_path=new.csv": "for other data",
            "RUN restore=best predict.path=p.parquet": "by its best checkpoint",
        },
    ),
    "export": (
        "Writes a SavedModel of a checkpoint of a run, for use without psrun.",
        {"RUN": "of its newest checkpoint", "RUN restore=best": "of its best checkpoint"},
    ),
    RESUME: (
        "Continues a run from its newest checkpoint, or a sweep.",
        {
            "RUN": "as it is configured",
            "RUN trainer.epochs=20": "to another number of epochs",
            "RUN cluster=local cluster.num_ps=3": "on another cluster",
            "SWEEP": "its incomplete jobs",
        },
    ),
}
FROM_DATA = ("data.global_batch_size", "trainer.epochs", "trainer.steps_per_epoch")  # keys that may be `auto`


@dataclass(frozen=True)
class Data:
    """Where the examples come from.

    Attributes:
      global_batch_size: examples per step (over all replicas of one worker, as in Keras); 'auto': as the data
        recommends, or 64.
      visitation: whether in each pass over the data an example goes to one worker, assigned by the chief ('once'), or
        to all workers ('every_worker').
      sharding: the tf.data.experimental.AutoShardPolicy, in lower case, by which synchronous workers share the training
        data; None for TensorFlow's default.
      label_vocabulary: the label values, strings or integers, in the order of the classes; None if labels are class
        numbers.
    """

    target: Target
    global_batch_size: int | str
    visitation: str = "every_worker"
    sharding: str | None = None
    label_vocabulary: tuple[str, ...] | tuple[int, ...] | None = None

    @property
    def batch_size(self) -> int:
        """Examples per step; defined after `psrun.data.loading.planned` has inspected the data."""
        assert isinstance(self.global_batch_size, int)
        return self.global_batch_size


@dataclass(frozen=True)
class ModelKeys:
    """Keys of the model that psrun reads; the others are options of the model function. None if not configured.

    If the function has a parameter of the same name, the function gets the value and psrun ignores it.

    Attributes:
      from_logits: whether a classifier returns logits; None: as the loss is configured, by default probabilities.
      loss: as in Keras' compile: a name or a `_target_`, or a mapping of these by output. None for the model's own
        loss, or the default loss of the task.
      metrics: a list of names and targets, or a mapping of lists by output.
      class_weight: weights by class number, as in Keras' fit.
    """

    from_logits: bool | None = None
    loss: Any = None
    metrics: Any = None
    class_weight: Any = None

    @property
    def given(self) -> dict[str, Any]:
        """The keys that have a value."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class ExportKeys:
    """Whether to write a SavedModel at the end of training, and for each new best checkpoint.

    Attributes:
      top_k: how many items the SavedModel recommends; None: none.
      tables: 'whole': within the SavedModel; 'apart': in files beside it, for servers that keep them elsewhere.
    """

    at_end: bool
    best: bool
    tables: str = one_of("whole", "apart", default="whole")
    top_k: int | None = at_least(1, default=None)


@dataclass(frozen=True)
class PredictKeys:
    """The output of mode=predict.

    Attributes:
      path: None for a file in the run folder.
      format: None for the format of the extension of `path`, and CSV without a path.
      keep: columns of the input that stand beside the predictions.
      top_k: how many items to recommend to each user, instead of predictions; None: none.
    """

    EXTENSIONS: ClassVar[dict[str, str]] = {
        ".csv": "csv",
        ".parquet": "parquet",
        ".tfrecord": "tfrecord",
        ".tfrecords": "tfrecord",
    }
    path: str | None
    format: str | None = one_of("csv", "parquet", "tfrecord", None, default=None)
    keep: list[str] = field(default_factory=list)
    top_k: int | None = at_least(1, default=None)

    @property
    def file_format(self) -> str | None:
        """The format of the file; None if neither `format` nor the extension names one."""
        if self.format is not None or self.path is None:
            return self.format or "csv"
        return self.EXTENSIONS.get(Path(self.path).suffix.lower())


@dataclass(frozen=True)
class RunKeys:
    """What people call the run, and how much it says.

    Attributes:
      name: None for its folder's name alone.
      verbose: whether it shows all of the placement, of the look-ups and of the features that were guessed.
    """

    name: str | None = None
    verbose: bool = False


@dataclass(frozen=True)
class EarlyStopping:
    """Stops training when `metric` has not improved in `patience` evaluations; None disables it.

    Attributes:
      mode: 'max' if greater is better, else 'min'; None without a metric.
      min_delta: the smallest change that counts as an improvement.
    """

    metric: str | None
    mode: str | None = one_of("max", "min", None)
    patience: int = at_least(1)
    min_delta: float = at_least(0)


@dataclass(frozen=True)
class LowerLearningRate(EarlyStopping):
    """Multiplies the learning rate by `factor`, down to `min_lr`, when `metric` stops improving."""

    factor: float = at_least(0)
    min_lr: float = at_least(0)


@dataclass(frozen=True)
class Halving:
    """Stops the losing configurations of a search early.

    Attributes:
      factor: one of so many configurations goes on after a rung; None disables it.
      min_epochs: the fewest epochs of a configuration.
    """

    factor: int | None = at_least(2, default=None)
    min_epochs: int = at_least(1, default=1)


@dataclass(frozen=True)
class SweepKeys:
    """How to run and compare the jobs of a sweep; single runs ignore it.

    Attributes:
      max_parallel: the number of concurrent jobs; 'auto' depends on the cores and the memory of the machine.
      metric: the metric in run.json that ranks jobs; None for val_loss or, without evaluation, loss.
      mode: whether greater ('max') or smaller ('min') is better; None without a metric.
      search: the method that proposes configurations; None: all combinations, one job each.
      num_trials: the number of configurations that a search tries; None with a grid.
    """

    metric: str | None
    mode: str | None = one_of("max", "min", None)
    max_parallel: int | str = at_least(1, or_else="auto")
    search: str | None = one_of("tpe", "random", "grid", "cmaes", None, default=None)
    num_trials: int | None = at_least(1, default=None)
    halving: Halving = field(default_factory=Halving)


@dataclass(frozen=True)
class SystemKeys:
    """`every_s`: the seconds between two samples of what each task uses; None for none."""

    every_s: float | None = at_least(1)


@dataclass(frozen=True)
class ProfileKeys:
    """`steps`: the training steps between these two are profiled; None for none."""

    steps: list[int] | None


@dataclass(frozen=True)
class RunConfig:
    """The complete configuration of a run. `raw` is the composed configuration, resolved, as plain values.

    Attributes:
      trackers: by the name of their file in conf/tracker/, below which they have their keys.
      submission: the settings of the engine, of a dataclass in `psrun.parts.Part.settings`; None without any.
      table_optimizer: of tables; None: `optimizer` updates them, too.
      resume: the folder of the run to resume, or to restore a checkpoint from; None for a new run.
      restore: the checkpoint to export or to predict with: 'latest', 'best' or a step.
      learning_rate_falls: whether the `chosen_rates` fall to 0 over the epochs, as the data recommends.
    """

    cluster: choices.ClusterChoice
    partitioner: choices.Partitioner
    model: Target
    model_keys: ModelKeys
    data: Data
    optimizer: Target
    table_optimizer: Target | None
    trainer: choices.Trainer
    consistency: choices.ConsistencyChoice
    evaluation: choices.EvaluationChoice
    checkpoint: choices.Checkpoints
    trackers: Mapping[str, choices.TrackerChoice]
    submission: object
    task: choices.TaskKeys
    export: ExportKeys
    predict: PredictKeys
    early_stopping: EarlyStopping
    reduce_lr: LowerLearningRate
    sweep: SweepKeys
    system: SystemKeys
    profile: ProfileKeys
    mode: str
    seed: int
    resume: str | None
    restore: str
    run: RunKeys
    raw: Mapping[str, Any]
    learning_rate_falls: bool = False

    @property
    def optimizers(self) -> list[Target]:
        """The optimizer, and the one of tables if there is one."""
        return [target for target in (self.optimizer, self.table_optimizer) if target is not None]

    @property
    def chosen_rates(self) -> list[str]:
        """The keys of the optimizers whose learning rate follows from the data, also once it is known."""
        return [target.key for target in self.optimizers if self.raw[target.key].get("learning_rate") == AUTO]

    @property
    def title(self) -> str:
        """Model, cluster, trainer and, unless it is asynchronous, the consistency mode in one line."""
        title = f"{self.model.name.rpartition('.')[2]} on {self.cluster.title}, {self.trainer.kind}"
        mode = self.consistency
        return f"{title}, {mode.title}" if mode.needs_parameter_servers else title

    @property
    def counts_default_executions(self) -> bool:
        """Whether the consistency mode bounds executions, whose number of steps is not configured."""
        return self.consistency.counts_executions and self.trainer.steps_per_execution is None

    @property
    def notes(self) -> list[str]:
        """Warnings about the configuration, to show before the run starts."""
        if not self.partitioner.splits or self.cluster.has_workers:
            return []
        return [f"partitioner={self.partitioner.kind} has no effect without parameter servers"]

    @property
    def compared_by(self) -> tuple[str, str]:
        """The metric that says which evaluation is the best, and its mode: 'max' if more is better, else 'min'.

        The metric of the best checkpoint, else of the sweep, else of early stopping, else of a part of psrun, else the
        loss of the evaluation.
        """
        named = (
            (self.checkpoint.best_metric, self.checkpoint.best_mode),
            (self.sweep.metric, self.sweep.mode),
            (self.early_stopping.metric, self.early_stopping.mode),
        )
        for metric, mode in named:
            if metric is not None:
                return metric, mode or "min"
        for part in parts.own():
            offered = parts.load(part.compared_by)(self) if part.compared_by else None
            if offered is not None:
                return str(offered[0]), str(offered[1])
        return "val_loss", "min"

    @property
    def num_training_workers(self) -> int | None:
        """The number of workers that train; None where the addresses of the cluster decide."""
        aside = self.sidecar is not None and self.sidecar.sets_worker_aside
        return None if self.cluster.num_workers is None else self.cluster.num_workers - aside

    @property
    def uses_cluster(self) -> bool:
        """Whether the mode uses the workers of the cluster; the others run in one process."""
        return self.mode in CHIEF_ROLES

    @property
    def sidecar(self) -> choices.Sidecar | None:
        """The evaluation by an evaluator task; None if there is none, or if the mode does not train."""
        if self.mode in OF_A_RUN or not isinstance(self.evaluation, choices.Sidecar):
            return None
        return self.evaluation

    @property
    def other_checkpoints(self) -> Path | None:
        """The folder of checkpoints for the evaluator task that psrun does not write; None if psrun writes them."""
        if not isinstance(self.evaluation, choices.Sidecar):
            return None
        folder = self.evaluation.checkpoint_dir
        if folder is None and not self.checkpoint.are_taken:
            folder = self.trainer.callback_checkpoint_dir
        return None if folder is None else Path(folder).expanduser()

    @property
    def num_tasks(self) -> dict[str, int]:
        """How many tasks each job has, of a cluster of processes whose size the configuration decides."""
        cluster = self.cluster
        assert cluster.num_workers is not None
        assert cluster.num_ps is not None
        counts = {"chief": 1, "ps": cluster.num_ps, "worker": cluster.num_workers}
        if self.sidecar is not None and not self.sidecar.sets_worker_aside:
            counts[EVALUATOR.job] = 1
        return counts

    @property
    def evaluator(self) -> Task | None:
        """The task of such a cluster that evaluates checkpoints; None where none does."""
        if self.sidecar is None:
            return None
        return Task("worker", self.num_tasks["worker"] - 1) if self.sidecar.sets_worker_aside else EVALUATOR

    @property
    def needs_network(self) -> bool:
        """Whether the run accesses the network: a URL is configured, or data is downloaded."""
        downloads = "path" in self.data.target.options and self.data.target.options["path"] is None
        online = any(tracker.needs_network for tracker in self.trackers.values())
        return downloads or online or "://" in repr(self.raw)
