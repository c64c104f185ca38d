"""Checks before TensorFlow is imported: pieces of a configuration that are valid alone but not together, and names of
losses and metrics.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from psrun import files, parts
from psrun.config import choices, schema, targets
from psrun.config.run_config import OF_A_RUN, ModelKeys, RunConfig
from psrun.errors import Problem
from psrun.tf_internals.names import CLIPS

# The names of `psrun.metrics.OF_PROBABILITIES`, which imports TensorFlow. Keras has another AUC.
METRICS_OF_PROBABILITIES = ("auc", "log_loss", "normalized_entropy", "calibration")
# Names that Keras resolves by the shapes of labels and predictions; they are in no module.
NAMES_BY_SHAPE = frozenset({"accuracy", "acc", "crossentropy", "ce"})
# Parameters of every loss and metric; the configuration does not set them.
LOSS_PARAMETERS = ("y_true", "y_pred")
# By the class of a legacy optimizer, the one to use where it has another name. psrun refuses Nadam.
_INSTEAD_OF_LEGACY = {"Nadam": "Adam", "OptimizerV2": "Optimizer"}
_NO_NAMES = frozenset(
    {"Loss", "MeanMetricWrapper", "Metric", "Reduction", "deserialize", "experimental", "get", "serialize"}
)
# Keras' `fit` puts the averages into the weights when it ends, or every `ema_overwrite_frequency` steps. Workers count
# steps concurrently, so that they would miss some of these; and a checkpoint before the end has the weights themselves.
WITHOUT_AVERAGES = (
    "but evaluations, checkpoints and exports use the weights, not their moving averages; set it to false. A learning "
    "rate that falls to 0, such as tf_keras.optimizers.schedules.CosineDecay, has a similar effect"
)
# Keras callbacks that do not work in a run (tf-keras 2.21). `psrun.training.fit` checks what requires their class.
_MONITORS = {"EarlyStopping": "val_loss", "ReduceLROnPlateau": "val_loss", "ModelCheckpoint": "val_loss"}  # by default
_BACKUPS = ("BackupAndRestore", "BackupAndRestoreExperimental")
TWO_RESTORES = (
    "BackupAndRestore would overwrite the variables that psrun restores from its checkpoint; remove it, or choose "
    "checkpoint=none"
)
_BY_BATCH = "needs batch-level calls, which workers do not make; remove it: psrun"
_NAME = re.compile(r"[^\W_]([\w.+ -]*[\w.+])?")
_LONGEST_NAME = 100
LEARNS_FROM_LABELS = (
    "is null, but the model learns from labels; set it to their column, or choose a model that learns from "
    "interactions alone"
)


def problems_of_model_keys(keys: ModelKeys) -> list[Problem]:
    """The problems of `model.loss`, `model.metrics` and `model.class_weight` that are visible without Keras."""
    problems = list[Problem]()
    for key, node in _each_loss(keys.loss):
        _check_loss_or_metric(node, key, "losses", problems)
    for key, node in _each_metric(keys.metrics):
        _check_loss_or_metric(node, key, "metrics", problems)
    if keys.class_weight is not None:
        problems += _check_class_weight(keys.class_weight)
    return problems


def is_metric(name: str) -> bool:
    """Whether tf-keras, psrun or a part has a metric of this name."""
    return is_keras_metric(name) or name in METRICS_OF_PROBABILITIES or _offered_class(name) is not None


def is_keras_metric(name: str) -> bool:
    """Whether tf-keras has a metric of this name."""
    return name in _keras_metrics() or name.lower() in NAMES_BY_SHAPE


def gathered_metrics(keys: ModelKeys, classes: Collection[str]) -> list[str]:
    """The metrics of gathered examples in `model.metrics` that are of some classes: first all that have a name there.

    Args:
      classes: as `psrun.parts.Part.metrics` has them.
    """
    by_name = []
    by_target = []
    for _, node in _each_metric(keys.metrics):
        if isinstance(node, Mapping):
            module, _, name = str(node.get("_target_")).rpartition(".")
            if f"{module}:{name}" in classes:
                by_target.append(name)
        elif isinstance(node, str) and not is_keras_metric(node) and _offered_class(node) in classes:
            by_name.append(node)
    return by_name + by_target


def _offered_class(name: str) -> str | None:
    """The class of the metric that a part offers by this name; None if none does, or its number is not valid."""
    try:
        offered = parts.offered_metric(name)
    except ValueError:
        return None
    return None if offered is None else offered[0]


def problem_of_keras3(target: str, kind: str) -> str | None:
    """The problem of a `_target_` of Keras 3; None for other targets.

    Args:
      kind: the module of tf-keras that has it: optimizers, optimizers.schedules or callbacks.
    """
    library, _, rest = target.partition(".")
    if library != "keras":
        return None
    name = rest.rpartition(".")[2]
    why = {
        "optimizers": "Keras 3's optimizers lose updates on parameter servers",
        "optimizers.schedules": "tf-keras, which also trains models of Keras 3, does not know it",
        "callbacks": "tf-keras, which also trains models of Keras 3, does not call it",
    }[kind]
    return f"is {target}, a class of Keras 3: {why}; use tf_keras.{kind}.{name}"


def problem_of_legacy_optimizer(target: str) -> str | None:
    """The problem of a `_target_` that is a legacy optimizer by its name; None for other targets."""
    if not target.startswith(("tf_keras.", "tensorflow.")) or ".optimizers.legacy." not in target:
        return None
    kind = target.rpartition(".")[2]
    return f"is {target}, {unsupported_legacy(kind)}"


def unsupported_legacy(kind: str) -> str:
    """What is said about a legacy optimizer of tf-keras, after its name: the reason and the replacement.

    Args:
      kind: the name of its class.
    """
    replacement = _INSTEAD_OF_LEGACY.get(kind, kind)
    return f"a legacy optimizer, which psrun does not support; use tf_keras.optimizers.{replacement}"


@functools.cache
def loss_names() -> frozenset[str]:
    """The names of Keras' losses."""
    return targets.names_in("tf_keras.losses") - _NO_NAMES


@functools.cache
def metric_names() -> frozenset[str]:
    """The names of Keras' metrics, and of psrun's own."""
    return _keras_metrics() | NAMES_BY_SHAPE | {*METRICS_OF_PROBABILITIES}


@functools.cache
def _keras_metrics() -> frozenset[str]:
    return targets.names_in("tf_keras.metrics") - _NO_NAMES


def _each_loss(node: Any) -> Iterator[tuple[str, Any]]:
    """Each loss with its key."""
    if isinstance(node, Mapping) and "_target_" not in node:
        yield from ((f"model.loss.{output}", loss) for output, loss in node.items())
    elif node is not None:
        yield "model.loss", node


def _each_metric(node: Any, key: str = "model.metrics") -> Iterator[tuple[str, Any]]:
    """Each metric with its key."""
    if isinstance(node, list):
        for index, item in enumerate(node):
            yield f"{key}[{index}]", item
    elif isinstance(node, Mapping) and "_target_" not in node and key == "model.metrics":
        for output, item in node.items():
            yield from _each_metric(item, f"{key}.{output}")
    elif node is not None:
        yield key, node


def _check_loss_or_metric(node: Any, key: str, kind: str, problems: list[Problem]) -> None:
    names = loss_names() if kind == "losses" else metric_names()
    if isinstance(node, Mapping) and "_target_" in node:
        targets.read(node, key=key, problems=problems, called_with=LOSS_PARAMETERS)
    elif not isinstance(node, str):
        message = f"is {node!r}, must be a name in tf_keras.{kind}, or a _target_ with its arguments"
        problems.append(Problem(key, message))
    elif node in names or node.lower() in NAMES_BY_SHAPE:
        return
    elif kind == "metrics":
        problems += _check_other_metric(node, key)
    else:
        problems.append(_no_such_name(node, key, kind, names))


def _check_other_metric(name: str, key: str) -> Iterator[Problem]:
    """The problem of a name that is not one of `metrics`."""
    try:
        if parts.offered_metric(name) is not None:
            return
    except ValueError as error:
        yield Problem(key, f"{name} {error}")
        return
    offered = [each.replace("@K", "@10") for each in parts.metrics()]
    known = [*metric_names(), *offered]
    problem = _no_such_name(name, key, "metrics", known)
    if not schema.is_near(name, known):
        problem = Problem(key, parts.with_missing(problem.message))
    yield problem


def _no_such_name(name: str, key: str, kind: str, names: Collection[str]) -> Problem:
    own = " Name your own callable with _target_." if "." in name else ""
    guess = schema.did_you_mean(name, names)
    return Problem(key, f"is '{name}', which is not in tf_keras.{kind}.{guess}{own}")


def _check_class_weight(node: Any) -> Iterator[Problem]:
    key = "model.class_weight"
    if not isinstance(node, Mapping) or not node:
        yield Problem(key, f"is {node!r}, must be a weight for each class, such as {{0: 1.0, 1: 5.0}}")
        return
    for name, weight in node.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not weight >= 0:
            yield Problem(f"{key}.{name}", f"is {weight!r}, must be a number of 0 or more")


def _check_consistency(config: RunConfig) -> list[Problem]:
    """All problems that are known before the addresses of a cluster are."""
    return [
        *worker_problems(config, config.num_training_workers),
        *_check_consistency_mode(config),
        *_check_late_gradients(config),
    ]


def worker_problems(config: RunConfig, num_workers: int | None) -> list[Problem]:
    """Problems that depend on the number of workers.

    Args:
      num_workers: None where the addresses of workers are not known yet.
    """
    problems = []
    for worker, seconds in (config.cluster.slow_workers or {}).items():
        if not isinstance(seconds, int | float) or not seconds >= 0:  # OmegaConf lets lists pass
            problems.append(Problem("cluster.slow_workers", f"is {seconds!r} for worker {worker}, must be 0 or more"))
        if worker < 0 or (num_workers is not None and worker >= num_workers):
            last = "" if num_workers is None else f"; the workers are 0 to {num_workers - 1}"
            problems.append(Problem("cluster.slow_workers", f"names worker {worker}, which does not exist{last}"))
    if num_workers is not None:
        problems += config.consistency.worker_problems(num_workers)
    return problems


def _check_consistency_mode(config: RunConfig) -> list[Problem]:
    """Problems of the consistency mode; modes that only take a checkpoint of a run ignore it."""
    mode = config.consistency
    if config.mode in OF_A_RUN:
        return []
    if mode.needs_parameter_servers and not config.cluster.has_workers:
        why = f"which cluster={config.cluster.kind} does not have; choose async"
        return [Problem("consistency", f"'{mode.kind}' requires parameter servers, {why}")]
    return mode.problems(config)


def _check_late_gradients(config: RunConfig) -> list[Problem]:
    """Problems of the options of optimizers for stale gradients."""
    problems = []
    asked = []
    for target in config.optimizers:
        compensation = target.options.get("delay_compensation")
        key = f"{target.key}.delay_compensation"
        if isinstance(compensation, int | float) and compensation < 0:
            problems.append(Problem(key, f"is {compensation}, must be 0 or more"))
        elif compensation and target is config.table_optimizer:
            problems.append(Problem(key, "has no effect: it is for dense weights; set optimizer.delay_compensation"))
        for name in ("staleness_aware", "delay_compensation"):
            if target.options.get(name) and config.mode not in OF_A_RUN:
                asked.append(f"{target.key}.{name}")
    for key in asked:
        if not config.cluster.has_workers:
            message = f"requires a known staleness, which cluster={config.cluster.kind} does not have"
            problems.append(Problem(key, f"{message}; choose parameter servers, or cluster=virtual"))
        elif config.consistency.averages:
            why = "the updates of parameter servers are of several gradients"
            message = f"has no effect with consistency={config.consistency.kind}, where {why}; remove it"
            problems.append(Problem(key, message))
        elif config.trainer.dense_sync_every > 1:
            steps = f"trainer.dense_sync_every={config.trainer.dense_sync_every} steps"
            message = f"is not supported where gradients of {steps} are pushed together; set that to 1"
            problems.append(Problem(key, message))
    return problems


def problems(config: RunConfig) -> list[Problem]:
    """All problems of the combination of a run's pieces."""
    checks = (
        _check_run_name,
        _check_cluster,
        _check_data,
        _check_training,
        _check_optimizer,
        _check_consistency,
        _check_callbacks,
        _check_checkpoints,
        _check_sidecar,
        _check_export,
        _check_parts,
        _check_metric_policies,
        _check_search,
        _check_monitors,
        _check_restoring,
        _check_predictions,
        _check_reports,
    )
    return [problem for check in checks for problem in check(config)]


def _check_run_name(config: RunConfig) -> Iterator[Problem]:
    name = config.run.name
    if name is not None and (len(name) > _LONGEST_NAME or not _NAME.fullmatch(name)):
        allowed = f"letters, digits, blanks and . _ + -, a letter or a digit first, up to {_LONGEST_NAME} characters"
        yield Problem("run.name", f"is {name!r}, must be {allowed}")


def _check_cluster(config: RunConfig) -> list[Problem]:
    return config.cluster.problems(config)


def _check_data(config: RunConfig) -> Iterator[Problem]:
    data = config.data
    replicas = config.cluster.replicas_per_worker or 1
    if isinstance(data.global_batch_size, int) and data.global_batch_size < replicas:
        message = f"is {data.global_batch_size}, must be at least {replicas}, the number of replicas of a worker"
        yield Problem("data.global_batch_size", message)
    if data.sharding is None:
        return
    key = "data.sharding"
    policy = f"is {data.sharding}, which requires cluster=multi_worker_mirrored"
    if config.cluster.has_parameter_servers:
        why = "TensorFlow ignores the policy with parameter servers"
        yield Problem(key, f"{policy}; {why}: set it to null and see data.visitation")
    elif not config.cluster.has_synchronous_workers:
        message = f"{policy}; with cluster={config.cluster.kind} one process reads all data: set it to null"
        yield Problem(key, message)
    elif data.visitation == "once" and data.sharding in ("file", "off"):
        by_file = "workers read batches by number, not by file"
        reason = by_file if data.sharding == "file" else "all workers would train on all examples"
        message = f"is {data.sharding}, which contradicts data.visitation=once: {reason}"
        yield Problem(key, f"{message}; choose data, or data.visitation=every_worker")


def _check_training(config: RunConfig) -> Iterator[Problem]:
    trainer = config.trainer
    evaluation = config.evaluation
    if trainer.run_eagerly and config.cluster.has_workers:
        yield Problem("trainer.run_eagerly", "is not supported with workers; debug with cluster=none")
    if evaluation.runs_on == "fit" and not trainer.uses_fit:
        yield Problem("evaluation", "'validation' requires Model.fit; choose trainer=fit, or evaluation=direct")
    if evaluation.needs_parameter_servers and not config.cluster.has_parameter_servers:
        yield Problem("evaluation", f"'{evaluation.kind}' requires parameter server training; choose exact or direct")
    if config.cluster.has_synchronous_workers:
        if not trainer.uses_fit:
            yield Problem("trainer", "cluster=multi_worker_mirrored requires Model.fit; choose trainer=fit")
        elif any(str(node.get("_target_", "")).endswith("CSVLogger") for node in trainer.callbacks):
            message = "CSVLogger would write the same file in every process; use metrics.jsonl"
            yield Problem("trainer.callbacks", message)
    packed = trainer.steps_per_execution
    steps = trainer.steps_per_epoch
    if isinstance(packed, int) and isinstance(steps, int) and packed > steps:
        message = f"is {packed}, must be at most trainer.steps_per_epoch={steps}"
        yield Problem("trainer.steps_per_execution", message)
    most = choices.MAX_UNROLLED_STEPS
    unrolled = min(most, trainer.num_steps_packed)
    if trainer.dense_sync_every > unrolled:
        message = f"is {trainer.dense_sync_every}, must be at most {unrolled}: the steps of an execution, up to {most}"
        yield Problem("trainer.dense_sync_every", message)


def _check_optimizer(config: RunConfig) -> Iterator[Problem]:
    """Problems of options that every optimizer of tf-keras has."""
    for target in config.optimizers:
        use_ema = target.options.get("use_ema")
        if use_ema:
            yield Problem(f"{target.key}.use_ema", f"is {use_ema}, {WITHOUT_AVERAGES}")


def clips_of_tables(options: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems of an optimizer of tables that clips gradients.

    Args:
      options: of the optimizer.
    """
    for name in CLIPS:
        if options.get(name):
            message = f"is {options[name]}, for the gradients of tables alone or of all variables; psrun clips all"
            yield Problem(f"table_optimizer.{name}", f"{message}: set optimizer.{name} instead")


def _check_callbacks(config: RunConfig) -> Iterator[Problem]:
    trainer = config.trainer
    servers = config.cluster.has_parameter_servers
    one_step = servers or trainer.num_steps_packed == 1  # parameter servers reject save_freq
    checkpoints = config.checkpoint.are_taken
    yield from _check_backups(trainer.callbacks, checkpoints=checkpoints, one_step=one_step)
    if servers:
        scheduled = isinstance(config.optimizer.options.get("learning_rate"), Mapping)
        sharded = config.partitioner.splits
        yield from _check_callbacks_with_servers(trainer.callbacks, sharded=sharded, scheduled=scheduled)


def _check_backups(callbacks: Iterable[Any], *, checkpoints: bool, one_step: bool) -> Iterator[Problem]:
    """Problems of BackupAndRestore on any cluster.

    Args:
      checkpoints: whether psrun saves and restores checkpoints itself.
      one_step: whether an execution has one step.
    """
    for index, node in enumerate(callbacks):
        if choices.callback_name(node) not in _BACKUPS:
            continue
        key = f"trainer.callbacks[{index}]"
        folder = Path(str(node.get("backup_dir", ""))).absolute()
        if files.is_pattern(folder):
            message = f"BackupAndRestore would not find its backup: TensorFlow takes {folder} for a pattern; choose"
            yield Problem(f"{key}.backup_dir", f"{message} a folder without the characters * ? [ ] \\")
        if checkpoints:
            yield Problem(key, TWO_RESTORES)
        elif node.get("save_freq", "epoch") != "epoch" and not one_step:
            message = "BackupAndRestore with save_freq as a number resumes at the first step of the last execution; set"
            yield Problem(key, f"{message} trainer.steps_per_execution=1 or save_freq: epoch")


def _check_callbacks_with_servers(callbacks: Iterable[Any], *, sharded: bool, scheduled: bool) -> Iterator[Problem]:
    """The problems of callbacks that do not work with parameter servers.

    Args:
      sharded: whether variables are sharded.
      scheduled: whether the learning rate is a schedule.
    """
    for index, node in enumerate(callbacks):
        name = choices.callback_name(node)
        for reason in _callback_reasons(name, node, sharded, scheduled):
            yield Problem(f"trainer.callbacks[{index}]", f"with parameter servers {name} {reason}")


def _callback_reasons(name: str, options: Mapping[str, Any], sharded: bool, scheduled: bool) -> Iterator[str]:
    """Why a callback is rejected, each with an alternative."""
    counts_steps = options.get("save_freq", "epoch") != "epoch"
    if name == "TerminateOnNaN":
        yield f"{_BY_BATCH} stops when the loss is NaN"
    if name == "ProgbarLogger":
        yield f"{_BY_BATCH} shows the progress"
    if name == "LambdaCallback" and any("batch" in option for option in options):
        yield "has a batch-level function, which workers do not call; use an epoch-level function"
    if name == "ModelCheckpoint" and counts_steps:
        yield "counts scheduled steps, not completed ones, so its file names are wrong; use save_freq: epoch"
    if name == "ModelCheckpoint" and sharded and str(options.get("filepath", "")).endswith(choices.WHOLE_FILES):
        yield "writes .keras and .h5 files of sharded variables that cannot be loaded; use a filepath without extension"
    if name == "BackupAndRestore" and counts_steps:
        yield "saves nothing with save_freq as a number; use save_freq: epoch"
    if name == "BackupAndRestore" and options.get("save_before_preemption"):
        yield "ignores save_before_preemption; remove the option"
    if name == "LearningRateScheduler" and scheduled:
        yield "has no effect with a schedule; set optimizer.learning_rate to a number"


def _check_checkpoints(config: RunConfig) -> Iterator[Problem]:
    checkpoint = config.checkpoint
    if not checkpoint.are_taken:
        if config.resume is not None:
            yield Problem("checkpoint", "is 'none', but resume needs a checkpoint; choose checkpoint=epoch")
        if config.export.at_end:
            yield Problem("export.at_end", "requires checkpoints; choose checkpoint=epoch")
        return
    if checkpoint.every_s is not None and config.cluster.has_synchronous_workers:
        message = "is not supported here: all workers save at the same step; use every_steps"
        yield Problem("checkpoint.every_s", message)
    if checkpoint.best_metric is not None and checkpoint.every_epochs is None:
        message = "requires checkpoints after epochs; set checkpoint.every_epochs"
        yield Problem("checkpoint.best_metric", message)
    if checkpoint.best_metric is not None and checkpoint.best_mode is None:
        yield Problem("checkpoint.best_mode", f"is required for {checkpoint.best_metric}; set it to max or min")
    for index, node in enumerate(config.trainer.callbacks):
        if str(node["_target_"]).endswith("EarlyStopping") and node.get("restore_best_weights"):
            message = "restore_best_weights would change the weights after the last checkpoint; use"
            yield Problem(f"trainer.callbacks[{index}]", f"{message} checkpoint.best_metric=... instead")


def _with_server_processes() -> str:
    """The kinds of clusters whose parameter servers and workers are processes, as text."""
    names = []
    for kind in choices.kinds("cluster"):
        if choices.cluster_of_kind(kind).has_server_processes:
            names.append(kind)
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _check_sidecar(config: RunConfig) -> Iterator[Problem]:
    """Problems of evaluation by the evaluator task."""
    evaluation = config.sidecar
    checkpoint = config.checkpoint
    if evaluation is None:
        if config.export.best and config.mode == "train":
            yield Problem("export.best", "requires an evaluator task; choose evaluation=sidecar")
        return
    aside = evaluation.sets_worker_aside
    if not config.cluster.has_server_processes:
        needs = "requires workers in separate processes" if aside else "requires an evaluator task"
        message = f"'{evaluation.kind}' {needs}; choose cluster={_with_server_processes()}"
        yield Problem("evaluation", message)
    elif aside and config.cluster.num_workers == 1:
        message = f"is 1, must be at least 2: one worker of '{evaluation.kind}' only evaluates"
        yield Problem("cluster.num_workers", message)
    if checkpoint.are_taken and config.other_checkpoints is None:
        if config.export.best and not (checkpoint.best_metric or "").startswith("val_"):
            yield Problem("export.best", "requires checkpoint.best_metric=val_...")
        return
    if config.other_checkpoints is None:
        message = f"'{evaluation.kind}' requires checkpoints; choose checkpoint=epoch, set "
        message += "evaluation.checkpoint_dir, or add a ModelCheckpoint with save_weights_only to trainer.callbacks"
        yield Problem("evaluation", message)
    if config.export.best:
        message = "requires psrun's own checkpoints; choose checkpoint=epoch and remove evaluation.checkpoint_dir"
        yield Problem("export.best", message)


def _check_export(config: RunConfig) -> Iterator[Problem]:
    export = config.export
    if export.tables == "apart" and export.top_k is not None:
        yield Problem("export.top_k", "needs the tables in the SavedModel; set export.tables to whole, or this to null")
    if export.tables == "apart" and export.best:
        message = "writes the tables into the SavedModel; set export.tables to whole, or this to false, and use psrun "
        yield Problem("export.best", f"{message}export RUN restore=best export.tables=apart")


def _check_parts(config: RunConfig) -> Iterator[Problem]:
    """Problems of keys that a part reads: without the part, and those that it finds."""
    for key, value in {"predict.top_k": config.predict.top_k, "export.top_k": config.export.top_k}.items():
        if value is not None and parts.output(key) is None:
            yield parts.without_part(key)
    for name in config.evaluation.set_for_gathering:
        if not parts.gatherings():
            yield parts.without_part(f"evaluation.{name}")
    for part in parts.own():
        if part.rules:
            yield from parts.load(part.rules)(config)


def _check_metric_policies(config: RunConfig) -> Iterator[Problem]:
    """Problems of the policies that follow metrics."""
    reduce_lr = config.reduce_lr
    for key, rule in {"early_stopping": config.early_stopping, "reduce_lr": reduce_lr}.items():
        if rule.metric is not None and rule.mode is None:
            yield Problem(f"{key}.mode", f"is required for {rule.metric}; set it to max or min")
        if rule.metric is not None and config.cluster.has_synchronous_workers:
            message = "is not supported here: each process would decide independently; use trainer.callbacks"
            yield Problem(f"{key}.metric", message)
    if not 0 < reduce_lr.factor < 1:
        yield Problem("reduce_lr.factor", f"is {reduce_lr.factor}, must be between 0 and 1")
    for target in config.optimizers:
        if isinstance(target.options.get("learning_rate"), Mapping) and reduce_lr.metric is not None:
            yield Problem("reduce_lr.metric", f"requires a number as {target.key}.learning_rate; it is a schedule")
    sweep = config.sweep
    if sweep.metric is not None and sweep.mode is None:
        yield Problem("sweep.mode", "is required with sweep.metric; set it to max or min")
    if sweep.mode is not None and sweep.metric is None:
        yield Problem("sweep.metric", "is required with sweep.mode; set it to a metric")


def _check_search(config: RunConfig) -> Iterator[Problem]:
    """Problems of a search over configurations, of which the run is a job."""
    sweep = config.sweep
    if sweep.search is None:
        found = {
            "sweep.num_trials": (sweep.num_trials, "set sweep.search=tpe or random"),
            "sweep.halving.factor": (sweep.halving.factor, "for all combinations, set sweep.search=grid"),
        }
        yield from (Problem(key, f"requires a search; {what}") for key, (value, what) in found.items() if value)
        return
    if sweep.metric is None:
        yield Problem("sweep.metric", "a search requires an objective: sweep.metric=val_auc sweep.mode=max")
    if sweep.search == "grid" and sweep.num_trials is not None:
        yield Problem("sweep.num_trials", "is not used with sweep.search=grid, which tries all; remove it")
    if sweep.search != "grid" and sweep.num_trials is None:
        yield Problem("sweep.num_trials", f"is required with sweep.search={sweep.search}: the configurations to try")
    if config.mode != "train":
        yield Problem("mode", f"is {config.mode}, but a search trains; leave out sweep.search")
    if sweep.halving.factor is not None:
        yield from _check_halving(config)


def _check_halving(config: RunConfig) -> Iterator[Problem]:
    """Problems of jobs that pause."""
    metric = str(config.sweep.metric)
    if config.sweep.search == "cmaes":
        message = "is cmaes, which learns from whole trainings only, but sweep.halving pauses most; choose tpe"
        yield Problem("sweep.search", message)
    if not config.checkpoint.are_taken:
        message = "is 'none', but sweep.halving continues jobs from a checkpoint; choose checkpoint=epoch"
        yield Problem("checkpoint", message)
    if not isinstance(config.trainer.epochs, int):
        message = "is auto, but sweep.halving pauses jobs after a share of their epochs; set a number"
        yield Problem("trainer.epochs", message)
    if config.evaluation.runs_on is None and metric.startswith("val_"):
        message = f"is {config.evaluation.kind}, which gives no {metric}; choose direct or exact"
        yield Problem("evaluation", message)


def _check_monitors(config: RunConfig) -> Iterator[Problem]:
    """Problems of callbacks that follow metrics of an evaluation which is not Keras'."""
    if config.evaluation.runs_on not in (None, "evaluator"):
        return
    for index, node in enumerate(config.trainer.callbacks):
        name = choices.callback_name(node)
        monitor = node.get("monitor", _MONITORS.get(name))
        if str(monitor).startswith("val_") and (name != "ModelCheckpoint" or node.get("save_best_only")):
            message = f"{name} monitors {monitor}, which evaluation={config.evaluation.kind} does not provide; use"
            message += " early_stopping, reduce_lr or checkpoint.best_metric"
            yield Problem(f"trainer.callbacks[{index}]", message)


def _check_restoring(config: RunConfig) -> Iterator[Problem]:
    """Problems of the modes that restore a checkpoint."""
    restores = config.mode in OF_A_RUN
    if restores and config.resume is None:
        yield Problem("resume", f"is required with mode={config.mode}; write psrun {config.mode} RUN")
    if config.mode == "evaluate":
        if config.evaluation.runs_on != "coordinator":
            yield Problem("evaluation", "psrun evaluate requires evaluation=direct, exact or distributed")
        if config.cluster.has_synchronous_workers:
            message = "each process of 'multi_worker_mirrored' would evaluate all data; choose local or none"
            yield Problem("cluster", message)
    if config.restore not in ("latest", "best") and not config.restore.isdigit():
        yield Problem("restore", f"is '{config.restore}', must be latest, best or the step of a checkpoint")
    elif config.restore != "latest" and not restores:
        yield Problem("restore", f"requires psrun {', '.join(OF_A_RUN)}; training resumes from the newest")


def _check_predictions(config: RunConfig) -> Iterator[Problem]:
    """Problems of the file of predictions."""
    keys = config.predict
    if problem := files.not_on_disk("predict.path", keys.path):
        yield problem
    if keys.file_format is None:
        extensions = ", ".join(keys.EXTENSIONS)
        message = f"is required: predict.path={keys.path} has none of the extensions {extensions}"
        yield Problem("predict.format", message)
    if twice := sorted({name for name in keys.keep if keys.keep.count(name) > 1}):
        yield Problem("predict.keep", f"names {', '.join(map(repr, twice))} more than once")


def _check_reports(config: RunConfig) -> Iterator[Problem]:
    """Problems of trackers and of the profile."""
    trackers = config.trackers
    for name, tracker in trackers.items():
        if isinstance(tracker, choices.NoTracker) and len(trackers) > 1:
            others = ",".join(other for other in trackers if other != name)
            yield Problem("tracker", f"has none beside {others}; write tracker=none, or tracker=[{others}]")
        for artifact in getattr(tracker, "artifacts", ()):
            if artifact not in choices.ARTIFACTS:
                message = f"has no artifact {artifact!r}.{schema.did_you_mean(artifact, choices.ARTIFACTS)}"
                yield Problem(f"tracker.{name}.artifacts", message)
    steps = config.profile.steps
    if steps is not None and (len(steps) != 2 or not 0 <= steps[0] < steps[1]):
        message = f"is {steps}, must be two steps, the smaller one first, such as [100, 120], or null"
        yield Problem("profile.steps", message)
