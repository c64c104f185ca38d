"""Checks of consistency modes and of slow workers against the other pieces of a configuration."""

from __future__ import annotations

from psrun.config import choices
from psrun.config.run_config import OF_A_RUN, RunConfig
from psrun.errors import Problem


def problems(config: RunConfig) -> list[Problem]:
    """All problems that are known before the addresses of a cluster are."""
    return [*of_workers(config, config.num_training_workers), *_of_the_mode(config), *_of_late_gradients(config)]


def of_workers(config: RunConfig, num_workers: int | None) -> list[Problem]:
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
    mode = config.consistency
    if not mode.averages or num_workers is None:
        return problems
    averaged, least = mode.gradients_per_update(num_workers), mode.min_workers
    if averaged < 1:
        message = f"is {num_workers - averaged}, must be less than the number of workers, {num_workers}"
        problems.append(Problem("consistency.backup_workers", message))
    elif least is not None and least > averaged:
        message = f"is {least}, must be at most {averaged}, the number of workers without backup workers"
        problems.append(Problem("consistency.min_workers", message))
    return problems


def _of_the_mode(config: RunConfig) -> list[Problem]:
    """Problems of the consistency mode; modes that only take a checkpoint of a run ignore it."""
    mode = config.consistency
    if config.mode in OF_A_RUN:
        return []
    if isinstance(mode, choices.Simulated):
        return _of_simulated_delays(config, mode)
    if not mode.needs_parameter_servers:
        return []
    if not config.cluster.has_parameter_servers:
        why = f"which cluster={config.cluster.kind} does not have; choose async"
        return [Problem("consistency", f"'{mode.kind}' requires parameter servers, {why}")]
    return _of_averaging(config) if mode.averages else []


def _of_averaging(config: RunConfig) -> list[Problem]:
    """Problems of updates from the gradients of several workers."""
    trainer, mode = config.trainer, f"consistency={config.consistency.kind}"
    problems = [
        Problem(key, f"is {value}, which {mode} does not support: each step waits for the one before; set it to {only}")
        for key, value, only in (
            ("trainer.steps_per_execution", trainer.num_steps_packed, 1),
            ("trainer.dense_sync_every", trainer.dense_sync_every, 1),
            ("trainer.prefetch_rows", trainer.prefetch_rows, False),
        )
        if value not in (only, "auto")
    ]
    if (config.cluster.replicas_per_worker or 1) > 1:
        problems.append(Problem("cluster.replicas_per_worker", f"must be 1 with {mode}"))
    if config.data.visitation == "dynamic":
        message = f"is dynamic, which cannot deal a dropped batch again, as {mode} requires; choose once"
        problems.append(Problem("data.visitation", message))
    if trainer.steps_per_epoch is None and config.num_training_workers is None:
        message = f"is required with {mode} where the addresses of the cluster decide on the number of workers"
        problems.append(Problem("trainer.steps_per_epoch", message))
    return problems


def _of_late_gradients(config: RunConfig) -> list[Problem]:
    """Problems of the options of optimizers for stale gradients."""
    problems, options = [], config.optimizer.options
    compensation = options.get("delay_compensation")
    if isinstance(compensation, int | float) and compensation < 0:
        problems.append(Problem("optimizer.delay_compensation", f"is {compensation}, must be 0 or more"))
    for name in ("staleness_aware", "delay_compensation"):
        key = f"optimizer.{name}"
        if not options.get(name) or config.mode in OF_A_RUN:
            continue
        if not config.cluster.has_parameter_servers and not config.consistency.one_process:
            message = f"requires a known staleness, which cluster={config.cluster.kind} does not have"
            problems.append(Problem(key, f"{message}; choose consistency=simulated or parameter servers"))
        elif config.consistency.averages:
            message = f"has no effect with consistency={config.consistency.kind}, where no gradient is stale; remove it"
            problems.append(Problem(key, message))
        elif config.trainer.dense_sync_every > 1:
            pushed = (
                f"gradients of trainer.dense_sync_every={config.trainer.dense_sync_every} steps are pushed together"
            )
            problems.append(Problem(key, f"is not supported where {pushed}; set that to 1"))
    return problems


def _of_simulated_delays(config: RunConfig, mode: choices.Simulated) -> list[Problem]:
    problems = []
    if config.cluster.kind != "none":
        message = f"'simulated' trains in one process; got cluster={config.cluster.kind}: choose cluster=none, or async"
        problems.append(Problem("consistency", message))
    if not config.trainer.has_fixed_epochs:
        problems.append(Problem("trainer", "steps of 'own_loop' cannot be delayed; choose custom_loop or fit"))
    key, unused = ("run", "mean") if mode.delay == "recorded" else ("mean", "run")
    if getattr(mode, unused) is not None:
        message = f"has no effect with consistency.delay={mode.delay}; set it to null"
        problems.append(Problem(f"consistency.{unused}", message))
    try:
        _ = mode.probabilities
    except ValueError as error:
        problems.append(Problem(f"consistency.{key}", str(error)))
    return problems
