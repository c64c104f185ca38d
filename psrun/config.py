"""The configuration of a run, typed, and every check of it that needs no TensorFlow.

The choices of a group are in `psrun.choices`; models, data and optimizers are targets (see `psrun.targets`). `load`
turns what Hydra composed into a `RunConfig` or raises one error that lists all problems.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psrun import choices, keras_callbacks, schema, targets
from psrun.choices import KINDS
from psrun.cluster.topology import JOBS
from psrun.errors import ConfigError, Problem
from psrun.schema import at_least, one_of
from psrun.targets import Target

MODES = ("train", "plan", "export", "predict", "evaluate")
OF_A_RUN = ("export", "predict", "evaluate")  # modes that take a checkpoint of a run
TOP = ("mode", "seed", "resume", "restore", "task", "export", "predict")
GROUPS = (*KINDS, "model", "data", "optimizer")


@dataclass(frozen=True)
class Data:
    """Where the examples come from, and how many make one step (over all replicas of one worker, as in Keras)."""

    target: Target
    global_batch_size: int


@dataclass(frozen=True)
class _DataKeys:
    global_batch_size: int = at_least(1)


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
class _Top:
    task: TaskKeys
    export: ExportKeys
    predict: PredictKeys
    resume: str | None
    restore: Any
    mode: str = one_of(*MODES)
    seed: int = at_least(0)


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run. `raw` is the composed configuration, resolved, as plain values.

    Attributes:
      resume: the run folder whose run goes on, or whose checkpoint is taken; None for a new run.
      restore: which checkpoint to export or to predict with: 'latest', 'best' or a step.
    """

    cluster: choices.Cluster
    partitioner: choices.Partitioner
    model: Target
    data: Data
    optimizer: Target
    trainer: choices.Trainer
    evaluation: choices.Evaluation
    checkpoint: choices.Checkpoints
    task: TaskKeys
    export: ExportKeys
    predict: PredictKeys
    mode: str
    seed: int
    resume: str | None
    restore: str
    raw: Mapping[str, Any]

    @property
    def parameter_servers(self) -> bool:
        """Whether the run is trained with parameter servers."""
        return isinstance(self.cluster, choices.ParameterServers)

    @property
    def needs_network(self) -> bool:
        """Whether data or checkpoints are elsewhere: some URL is configured, or a download is asked for."""
        downloads = "path" in self.data.target.options and self.data.target.options["path"] is None
        return downloads or "://" in repr(self.raw)


def load(raw: Mapping[str, Any]) -> RunConfig:
    """The run that `raw` describes.

    Args:
      raw: the composed configuration as plain values, interpolations resolved, missing values as '???'.

    Raises:
      ConfigError: with every problem found, each by its key.
    """
    problems: list[Problem] = []
    known = {*GROUPS, *TOP}
    for name, value in raw.items():
        if name not in known:
            problems.append(Problem(name, f"no such key (value {value!r}).{schema.did_you_mean(name, known)}"))
    parts: dict[str, Any] = {group: _read_kind(raw.get(group), group, problems) for group in KINDS}
    top = schema.read(_Top, {name: raw[name] for name in TOP if name in raw}, key="", problems=problems)
    parts["model"] = targets.read(raw.get("model"), key="model", problems=problems)
    parts["optimizer"] = targets.read(raw.get("optimizer"), key="optimizer", problems=problems)
    parts["data"] = _read_data(raw.get("data"), problems)
    if isinstance(parts["trainer"], choices.Fit):
        for index, node in enumerate(parts["trainer"].callbacks):
            targets.read(node, key=f"trainer.callbacks[{index}]", problems=problems)
    if problems or top is None:
        raise ConfigError(problems)
    values = {field.name: getattr(top, field.name) for field in dataclasses.fields(top)}
    config = RunConfig(**{**parts, **values, "restore": str(top.restore)}, raw=raw)
    for check in (_contradictions, _checkpoint_contradictions, _restore_contradictions, _sidecar_contradictions):
        problems += check(config)
    if problems:
        raise ConfigError(problems)
    return config


def _read_kind(node: Any, group: str, problems: list[Problem]) -> Any:
    kinds = KINDS[group]
    kind = node.get("kind") if isinstance(node, Mapping) else None
    if kind not in kinds:
        problems.append(Problem(group, f"is {node!r}; choose {group}=NAME with one of {', '.join(kinds)}"))
        return None
    return schema.read(kinds[kind], node, key=group, problems=problems)


def _read_data(node: Any, problems: list[Problem]) -> Data | None:
    if not isinstance(node, Mapping):
        problems.append(Problem("data", f"is {node!r}; choose data=NAME"))
        return None
    own = {name: value for name, value in node.items() if name == "global_batch_size"}
    keys = schema.read(_DataKeys, own, key="data", problems=problems)
    target = targets.read({k: v for k, v in node.items() if k not in own}, key="data", problems=problems)
    path = node.get("path")
    if isinstance(path, str) and "://" not in path and not Path(path).expanduser().exists():
        problems.append(Problem("data.path", f"{path!r} is not there (seen from {Path.cwd()})"))
    return Data(target, keys.global_batch_size) if target and keys else None


def _contradictions(config: RunConfig) -> list[Problem]:
    problems = []
    trainer, evaluation = config.trainer, config.evaluation
    if trainer.run_eagerly and config.parameter_servers:
        problems.append(
            Problem("trainer.run_eagerly", "true cannot be used with parameter servers; debug with cluster=none")
        )
    if isinstance(evaluation, choices.Validation) and not isinstance(trainer, choices.Fit):
        problems.append(
            Problem("evaluation", "'validation' is done by Model.fit; choose trainer=fit, or evaluation=direct")
        )
    if isinstance(evaluation, choices.Distributed) and not config.parameter_servers:
        problems.append(
            Problem("evaluation", "'distributed' needs workers of parameter server training; choose exact or direct")
        )
    if isinstance(config.cluster, choices.MultiWorkerMirrored):
        if not isinstance(trainer, choices.Fit):
            problems.append(Problem("trainer", "cluster=multi_worker_mirrored trains by Model.fit; choose trainer=fit"))
        elif any(str(node.get("_target_", "")).endswith("CSVLogger") for node in trainer.callbacks):
            problems.append(
                Problem("trainer.callbacks", "CSVLogger would write one file in every process; see metrics.jsonl")
            )
    if trainer.steps_per_execution > trainer.steps_per_epoch:
        problems.append(
            Problem(
                "trainer.steps_per_execution",
                f"is {trainer.steps_per_execution}, more than trainer.steps_per_epoch={trainer.steps_per_epoch}",
            )
        )
    if isinstance(trainer, choices.Fit) and config.parameter_servers:
        setting = keras_callbacks.Setting(
            sharded=not isinstance(config.partitioner, choices.NoPartitioner),
            scheduled=isinstance(config.optimizer.options.get("learning_rate"), Mapping),
        )
        problems.extend(keras_callbacks.problems(trainer.callbacks, setting))
    return problems


def _checkpoint_contradictions(config: RunConfig) -> list[Problem]:
    """Of when checkpoints are taken and what they are compared by."""
    checkpoint, problems = config.checkpoint, []
    if isinstance(checkpoint, choices.NoCheckpoints):
        if config.resume is not None:
            problems.append(Problem("checkpoint", "'none' has nothing to resume from; choose checkpoint=epoch"))
        if config.export.at_end:
            problems.append(Problem("export.at_end", "exports the last checkpoint; choose checkpoint=epoch"))
        return problems
    if checkpoint.every_s is not None and isinstance(config.cluster, choices.MultiWorkerMirrored):
        problems.append(
            Problem("checkpoint.every_s", "cannot be used here: all workers save at the same step; choose every_steps")
        )
    if checkpoint.best_metric is not None and checkpoint.every_epochs is None:
        problems.append(
            Problem("checkpoint.best_metric", "is known after epochs: checkpoint.every_epochs must have a value")
        )
    for index, node in enumerate(config.trainer.callbacks if isinstance(config.trainer, choices.Fit) else ()):
        if str(node["_target_"]).endswith("EarlyStopping") and node.get("restore_best_weights"):
            problems.append(
                Problem(f"trainer.callbacks[{index}]", "restore_best_weights would change the weights after the last "
                        "checkpoint; keep the best one with checkpoint.best_metric=... instead")
            )  # fmt: skip
    return problems


def _sidecar_contradictions(config: RunConfig) -> list[Problem]:
    """Of evaluation by the evaluator task."""
    evaluation, checkpoint, problems = config.evaluation, config.checkpoint, []
    if not isinstance(evaluation, choices.Sidecar):
        if config.export.best and config.mode == "train":
            problems.append(Problem("export.best", "is done by the evaluator task; choose evaluation=sidecar"))
        return problems
    if not isinstance(config.cluster, choices.Local | choices.Unsupervised):
        problems.append(Problem("evaluation", "'sidecar' needs an evaluator task: cluster=local, tf_config or static"))
    if isinstance(checkpoint, choices.NoCheckpoints):
        problems.append(Problem("evaluation", "'sidecar' evaluates checkpoints; choose checkpoint=epoch"))
    elif config.export.best or evaluation.patience is not None:
        key = "export.best" if config.export.best else "evaluation.patience"
        if not (checkpoint.best_metric or "").startswith("val_"):
            problems.append(Problem(key, "needs checkpoint.best_metric=val_..., to know what is better"))
    return problems


def _restore_contradictions(config: RunConfig) -> list[Problem]:
    """Of what is made from the checkpoints of a run."""
    problems, makes = [], config.mode in OF_A_RUN
    if makes and config.resume is None:
        problems.append(Problem("resume", f"mode={config.mode} needs a run that was trained: resume=RUN_FOLDER"))
    if config.mode == "evaluate":
        if not isinstance(config.evaluation, choices.BetweenEpochs):
            problems.append(Problem("evaluation", "mode=evaluate needs evaluation=direct, exact or distributed"))
        if isinstance(config.cluster, choices.Supervised | choices.Unsupervised):
            problems.append(Problem("cluster", "mode=evaluate runs in one process; choose cluster=inprocess or none"))
    if config.restore not in ("latest", "best") and not config.restore.isdigit():
        problems.append(Problem("restore", f"is '{config.restore}', must be latest, best or the step of a checkpoint"))
    elif config.restore != "latest" and not makes:
        problems.append(Problem("restore", f"is for mode={', '.join(OF_A_RUN)}; a training goes on from the newest"))
    return problems
