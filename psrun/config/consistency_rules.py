"""Checks of consistency modes and of slow workers against the other pieces of a configuration."""

from __future__ import annotations

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
    if mode.needs_parameter_servers and not config.cluster.has_parameter_servers:
        why = f"which cluster={config.cluster.kind} does not have; choose async"
        return [Problem("consistency", f"'{mode.kind}' requires parameter servers, {why}")]
    return mode.problems(config)


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
