"""Checks of combinations: pieces of a configuration that are valid alone but not together."""

from __future__ import annotations

from collections.abc import Mapping

from psrun.config import choices, consistency_rules, keras_callbacks, topology
from psrun.config.run_config import OF_A_RUN, RunConfig
from psrun.errors import Problem

# Keras' `fit` puts the averages into the weights when it ends, or every `ema_overwrite_frequency` steps. Workers count
# steps concurrently, so that they would miss some of these; and a checkpoint before the end has the weights themselves.
WITHOUT_AVERAGES = (
    "but evaluations, checkpoints and exports use the weights, not their moving averages; set it to false. A learning "
    "rate that falls to 0, such as tf_keras.optimizers.schedules.CosineDecay, has a similar effect"
)


def problems(config: RunConfig) -> list[Problem]:
    """All problems of the combination of a run's pieces."""
    checks = (
        _of_the_cluster,
        _of_data,
        _of_training,
        _of_the_optimizer,
        consistency_rules.problems,
        _of_callbacks,
        _of_checkpoints,
        _of_the_sidecar,
        _of_what_follows,
        _of_restoring,
        _of_predictions,
    )
    return [problem for check in checks for problem in check(config)]


def _of_the_cluster(config: RunConfig) -> list[Problem]:
    """Problems of the cluster."""
    cluster, problems = config.cluster, list[Problem]()
    if isinstance(cluster, choices.Slurm) and isinstance(config.submission, choices.SlurmJob):
        warn_s, save_s = config.submission.warn_s, cluster.restart.stop_timeout_s
        if warn_s <= save_s:
            message = f"is {warn_s}, must be greater than cluster.restart.stop_timeout_s={save_s:g}, the time to save"
            problems.append(Problem("slurm.warn_s", message))
    if not isinstance(cluster, choices.Ray) or cluster.address is None:
        return problems
    key = "cluster.address"
    if cluster.address != "auto" and not topology.is_address(cluster.address):
        clients = "; a ray:// client may be on another network" if cluster.address.startswith("ray:") else ""
        message = f"is {cluster.address!r}, must be auto, HOST:PORT of the head node, or null{clients}"
        problems.append(Problem(key, message))
    if cluster.isolate is True:
        message = f"true makes the servers unreachable from the nodes of {key}={cluster.address}; set it to auto"
        problems.append(Problem("cluster.isolate", message))
    return problems


def _of_data(config: RunConfig) -> list[Problem]:
    problems, data = [], config.data
    replicas = config.cluster.replicas_per_worker or 1
    if isinstance(data.global_batch_size, int) and data.global_batch_size < replicas:
        message = f"is {data.global_batch_size}, must be at least {replicas}, the number of replicas of a worker"
        problems.append(Problem("data.global_batch_size", message))
    if data.audit and not config.cluster.has_parameter_servers:
        message = "requires parameter server training; set it to false"
        problems.append(Problem("data.audit", message))
    if data.visitation == "dynamic" and not config.cluster.has_parameter_servers:
        message = "is dynamic, which requires parameter server training; set it to once"
        problems.append(Problem("data.visitation", message))
    if data.sharding is None:
        return problems
    key, policy = "data.sharding", f"is {data.sharding}, which requires cluster=multi_worker_mirrored"
    if config.cluster.has_parameter_servers:
        why = "TensorFlow ignores the policy with parameter servers"
        problems.append(Problem(key, f"{policy}; {why}: set it to null and see data.visitation"))
    elif not config.cluster.has_synchronous_workers:
        message = f"{policy}; with cluster={config.cluster.kind} one process reads all data: set it to null"
        problems.append(Problem(key, message))
    elif data.visitation == "once" and data.sharding in ("file", "off"):
        by_file = "workers read batches by number, not by file"
        reason = by_file if data.sharding == "file" else "all workers would train on all examples"
        message = f"is {data.sharding}, which contradicts data.visitation=once: {reason}"
        problems.append(Problem(key, f"{message}; choose data, or data.visitation=every_worker"))
    return problems


def _of_training(config: RunConfig) -> list[Problem]:
    problems = []
    trainer, evaluation = config.trainer, config.evaluation
    if trainer.run_eagerly and config.cluster.has_parameter_servers:
        problems.append(
            Problem("trainer.run_eagerly", "is not supported with parameter servers; debug with cluster=none")
        )
    if evaluation.runs_on == "fit" and not trainer.uses_fit:
        problems.append(
            Problem("evaluation", "'validation' requires Model.fit; choose trainer=fit, or evaluation=direct")
        )
    if evaluation.needs_parameter_servers and not config.cluster.has_parameter_servers:
        message = f"'{evaluation.kind}' requires parameter server training; choose exact or direct"
        problems.append(Problem("evaluation", message))
    if config.cluster.has_synchronous_workers:
        if not trainer.uses_fit:
            problems.append(Problem("trainer", "cluster=multi_worker_mirrored requires Model.fit; choose trainer=fit"))
        elif any(str(node.get("_target_", "")).endswith("CSVLogger") for node in trainer.callbacks):
            problems.append(
                Problem("trainer.callbacks", "CSVLogger would write the same file in every process; use metrics.jsonl")
            )
    packed, steps = trainer.steps_per_execution, trainer.steps_per_epoch
    if isinstance(packed, int) and isinstance(steps, int) and packed > steps:
        problems.append(
            Problem(
                "trainer.steps_per_execution",
                f"is {packed}, must be at most trainer.steps_per_epoch={steps}",
            )
        )
    unrolled = min(choices.MAX_UNROLLED_STEPS, trainer.num_steps_packed)
    if trainer.dense_sync_every > unrolled:
        problems.append(
            Problem(
                "trainer.dense_sync_every",
                f"is {trainer.dense_sync_every}, must be at most {unrolled}: the steps of an execution, "
                f"up to {choices.MAX_UNROLLED_STEPS}",
            )
        )
    return problems


def _of_the_optimizer(config: RunConfig) -> list[Problem]:
    """Problems of options that every optimizer of tf-keras has."""
    if config.mode in OF_A_RUN or not config.optimizer.options.get("use_ema"):
        return []
    return [Problem("optimizer.use_ema", f"is {config.optimizer.options['use_ema']}, {WITHOUT_AVERAGES}")]


def _of_callbacks(config: RunConfig) -> list[Problem]:
    """Problems of Keras callbacks."""
    trainer = config.trainer
    servers, checkpoints = config.cluster.has_parameter_servers, config.checkpoint.are_taken
    one_step = servers or trainer.num_steps_packed == 1  # parameter servers reject save_freq
    problems = keras_callbacks.backup_problems(trainer.callbacks, checkpoints=checkpoints, one_step=one_step)
    if servers:
        setting = keras_callbacks.Setting(
            sharded=config.partitioner.splits,
            scheduled=isinstance(config.optimizer.options.get("learning_rate"), Mapping),
        )
        problems += keras_callbacks.problems(trainer.callbacks, setting)
    return problems


def _of_checkpoints(config: RunConfig) -> list[Problem]:
    """Problems of checkpoints."""
    checkpoint, problems = config.checkpoint, []
    if not checkpoint.are_taken:
        if config.resume is not None:
            problems.append(Problem("checkpoint", "is 'none', but resume needs a checkpoint; choose checkpoint=epoch"))
        if config.export.at_end:
            problems.append(Problem("export.at_end", "requires checkpoints; choose checkpoint=epoch"))
        return problems
    if checkpoint.every_s is not None and config.cluster.has_synchronous_workers:
        problems.append(
            Problem("checkpoint.every_s", "is not supported here: all workers save at the same step; use every_steps")
        )
    if checkpoint.best_metric is not None and checkpoint.every_epochs is None:
        problems.append(
            Problem("checkpoint.best_metric", "requires checkpoints after epochs; set checkpoint.every_epochs")
        )
    for index, node in enumerate(config.trainer.callbacks):
        if str(node["_target_"]).endswith("EarlyStopping") and node.get("restore_best_weights"):
            problems.append(
                Problem(f"trainer.callbacks[{index}]", "restore_best_weights would change the weights after the last "
                        "checkpoint; use checkpoint.best_metric=... instead")
            )  # fmt: skip
    return problems


def _of_the_sidecar(config: RunConfig) -> list[Problem]:
    """Problems of evaluation by the evaluator task."""
    evaluation, checkpoint, problems = config.sidecar, config.checkpoint, list[Problem]()
    if evaluation is None:
        if config.export.best and config.mode == "train":
            problems.append(Problem("export.best", "requires an evaluator task; choose evaluation=sidecar"))
        return problems
    cluster, kind = config.cluster, evaluation.kind
    if not cluster.has_server_processes:
        needs = (
            "requires workers in separate processes" if evaluation.sets_worker_aside else "requires an evaluator task"
        )
        message = f"'{kind}' {needs}; choose cluster=local, kubernetes, ray, slurm, tf_config or static"
        problems.append(Problem("evaluation", message))
    elif evaluation.sets_worker_aside and cluster.num_workers == 1:
        problems.append(
            Problem("cluster.num_workers", f"is 1, must be at least 2: one worker of '{kind}' only evaluates")
        )
    if not checkpoint.are_taken or config.other_checkpoints is not None:
        problems += _of_other_checkpoints(config)
    elif config.export.best and not (checkpoint.best_metric or "").startswith("val_"):
        problems.append(Problem("export.best", "requires checkpoint.best_metric=val_..."))
    return problems


def _of_other_checkpoints(config: RunConfig) -> list[Problem]:
    """Problems of evaluating checkpoints that psrun does not write."""
    problems = []
    if config.other_checkpoints is None:
        message = f"'{config.evaluation.kind}' requires checkpoints; choose checkpoint=epoch, set "
        message += "evaluation.checkpoint_dir, or add a ModelCheckpoint with save_weights_only to trainer.callbacks"
        problems.append(Problem("evaluation", message))
    if config.export.best:
        message = "requires psrun's own checkpoints; choose checkpoint=epoch and remove evaluation.checkpoint_dir"
        problems.append(Problem("export.best", message))
    return problems


def _of_what_follows(config: RunConfig) -> list[Problem]:
    """Problems of the policies that follow metrics."""
    problems = []
    rules = {"early_stopping": config.early_stopping, "reduce_lr": config.reduce_lr}
    for key, rule in rules.items():
        if rule.metric is not None and rule.mode is None:
            problems.append(Problem(f"{key}.mode", f"is required for {rule.metric}; set it to max or min"))
        if rule.metric is not None and config.cluster.has_synchronous_workers:
            message = "is not supported here: each process would decide independently; use trainer.callbacks"
            problems.append(Problem(f"{key}.metric", message))
    if not 0 < config.reduce_lr.factor < 1:
        problems.append(Problem("reduce_lr.factor", f"is {config.reduce_lr.factor}, must be between 0 and 1"))
    if isinstance(config.optimizer.options.get("learning_rate"), Mapping) and config.reduce_lr.metric is not None:
        problems.append(Problem("reduce_lr.metric", "requires a number as optimizer.learning_rate; it is a schedule"))
    if (config.sweep.metric is None) != (config.sweep.mode is None):
        missing, present = ("metric", "mode") if config.sweep.metric is None else ("mode", "metric")
        value = "max or min" if missing == "mode" else "a metric"
        problems.append(Problem(f"sweep.{missing}", f"is required with sweep.{present}; set it to {value}"))
    if config.evaluation.runs_on in (None, "evaluator"):
        for index, node in enumerate(config.trainer.callbacks):
            name = str(node["_target_"]).rpartition(".")[2]
            monitor = node.get("monitor", keras_callbacks.MONITORS.get(name))
            if str(monitor).startswith("val_") and (name != "ModelCheckpoint" or node.get("save_best_only")):
                message = f"{name} monitors {monitor}, which evaluation={config.evaluation.kind} does not provide"
                problems.append(Problem(f"trainer.callbacks[{index}]", f"{message}; use early_stopping, reduce_lr "
                                        "or checkpoint.best_metric"))  # fmt: skip
    return problems


def _of_restoring(config: RunConfig) -> list[Problem]:
    """Problems of the modes that restore a checkpoint."""
    problems, makes = [], config.mode in OF_A_RUN
    if makes and config.resume is None:
        problems.append(Problem("resume", f"is required with mode={config.mode}; set resume=RUN_FOLDER"))
    if config.mode == "evaluate":
        if config.evaluation.runs_on != "coordinator":
            problems.append(Problem("evaluation", "mode=evaluate requires evaluation=direct, exact or distributed"))
        if config.cluster.has_synchronous_workers:
            message = "each process of 'multi_worker_mirrored' would evaluate all data; choose local or none"
            problems.append(Problem("cluster", message))
    if config.restore not in ("latest", "best") and not config.restore.isdigit():
        problems.append(Problem("restore", f"is '{config.restore}', must be latest, best or the step of a checkpoint"))
    elif config.restore != "latest" and not makes:
        problems.append(Problem("restore", f"requires mode={', '.join(OF_A_RUN)}; training resumes from the newest"))
    return problems


def _of_predictions(config: RunConfig) -> list[Problem]:
    """Problems of the file of predictions."""
    keys, problems = config.predict, list[Problem]()
    if keys.file_format is None:
        extensions = ", ".join(keys.EXTENSIONS)
        message = f"is required: predict.path={keys.path} has none of the extensions {extensions}"
        problems.append(Problem("predict.format", message))
    if twice := sorted({name for name in keys.keep if keys.keep.count(name) > 1}):
        problems.append(Problem("predict.keep", f"names {', '.join(map(repr, twice))} more than once"))
    return problems
