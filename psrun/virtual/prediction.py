"""What a virtual cluster predicts without training: its rate, the staleness of updates, and waits."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from psrun.closures.rules import Dropped, rule_of
from psrun.closures.scheduling import length_for
from psrun.config import choices
from psrun.config.clusters import Prediction
from psrun.config.run_config import RunConfig
from psrun.config.schema import AUTO
from psrun.errors import ConfigError, Problem
from psrun.virtual.choice import Virtual
from psrun.virtual.losses import Losses, Saves, ServerLosses
from psrun.virtual.simulation import (
    AsynchronousCluster,
    Cluster,
    Costs,
    DelayedCluster,
    QueuedCluster,
)
from psrun.virtual.times import StepSeconds

_SEEDS = 5
_ROUNDS = 40  # steps of each worker that are simulated, with few workers
_LEAST_ROUNDS = 10  # with many
_GRADIENTS = 40_000  # of all workers; these are many
_CLOSURES = 4  # of each worker
_STEPS_WITH_LOSSES = 20_000  # of all workers, if workers are lost, which is rare
_MOST_LOSSES = 7.0  # of parameter servers between two checkpoints, if they were lost as often as is expected


def costs_of(virtual: Virtual, traffic: Sequence[tuple[int, int]]) -> Costs:
    """What takes time beside the computing.

    Args:
      traffic: the bytes that a worker reads from each parameter server in a step, and that it pushes there.
    """
    return Costs(
        closure_s=virtual.closure_s,
        update_s=virtual.whole_update_s,
        start_s=virtual.start_s,
        read_s=[read_bytes / virtual.bytes_per_s for read_bytes, _ in traffic],
        push_s=[pushed_bytes / virtual.bytes_per_s for _, pushed_bytes in traffic],
    )


def make_cluster(
    virtual: Virtual,
    consistency: choices.ConsistencyChoice,
    seconds: StepSeconds,
    costs: Costs,
    losses: Losses | None,
    *,
    dealt: Callable[[int, int], None] = lambda first, count: None,
    dealt_again: Callable[[Dropped], None] = lambda dropped: None,
) -> Cluster:
    """The cluster, at virtual time 0; `losses` as in `Workers`, `dealt` and `dealt_again` as in `QueuedCluster`."""
    num_workers = virtual.num_workers
    if not consistency.averages:
        return AsynchronousCluster(
            num_workers,
            seconds,
            costs,
            losses=losses,
            max_delay=consistency.max_delay,
            staleness=consistency.staleness,
            dealt=dealt,
        )
    return QueuedCluster(
        num_workers,
        seconds,
        costs,
        rule_of(consistency, num_workers),
        losses=losses,
        updates_rows=consistency.updates_rows,
        dealt=dealt,
        dealt_again=dealt_again,
    )


def server_losses(virtual: Virtual, run: RunConfig, seed: int, num_steps: int) -> ServerLosses | None:
    """When parameter servers are lost in a training that goes on after so many steps; None: never."""
    losses = virtual.ps_losses(seed, num_steps)
    return None if losses is None else ServerLosses(virtual.num_ps, losses, _saves(run), num_steps)


def _saves(run: RunConfig) -> Saves:
    checkpoint = run.checkpoint
    every_steps = checkpoint.every_steps if isinstance(checkpoint, choices.EpochCheckpoints) else None
    epochs = checkpoint.every_epochs
    return Saves(every_steps, None if epochs is None else epochs * run.trainer.num_steps)


def steps_of_a_closure(virtual: Virtual, run: RunConfig) -> int:
    """How many steps the chief schedules at once."""
    if run.consistency.averages:
        return 1
    trainer = run.trainer
    if trainer.steps_per_execution != AUTO:
        return trainer.num_steps_packed
    if virtual.delay is not None:
        return min(choices.MAX_UNROLLED_STEPS, trainer.num_steps)
    return length_for(virtual.mean_step_s, trainer.num_steps, virtual.num_workers)


def predicted(run: RunConfig, traffic: Sequence[tuple[int, int]]) -> Prediction:
    """The prediction for a run: of each number the median over several seeds, the least and the most.

    Args:
      run: with the number of steps per epoch.
      traffic: as in `costs_of`.

    Returns:
      With the facts `steps_per_s` and `examples_per_s`; `staleness`, the mean; `waiting`, the part of the time in
      which workers wait for their next execution; and `training_s`, virtual seconds of all epochs. Without facts where
      no time passes.
    """
    virtual = run.cluster
    assert isinstance(virtual, Virtual)
    if virtual.delay is not None:
        return Prediction({}, [])
    found: dict[str, list[float]] = {}
    per_update = run.consistency.gradients_per_update(virtual.num_workers)
    num_steps = run.trainer.num_epochs * run.trainer.num_steps
    enough = _enough_steps(virtual, per_update, steps_of_a_closure(virtual, run))
    for seed in range(run.seed, run.seed + _SEEDS):
        cluster = _simulated(virtual, run, traffic, seed, min(num_steps, enough))
        counted = sum(cluster.counts.staleness.values(), Counter())
        rate = _with_server_losses(virtual, run, counted.total() / cluster.now_s)
        values = {
            "steps_per_s": rate,
            "examples_per_s": rate * per_update * run.data.batch_size,
            "staleness": sum(age * count for age, count in counted.items()) / counted.total(),
            "waiting": sum(cluster.waited_s.values()) / (virtual.num_workers * cluster.now_s),
            "training_s": num_steps / rate,
        }
        for name, value in values.items():
            found.setdefault(name, []).append(value)
    facts = {}
    for name, values_by_seed in found.items():
        middle = statistics.median(values_by_seed)
        facts[name] = {"median": middle, "least": min(values_by_seed), "most": max(values_by_seed)}
    return Prediction(facts, [*_in_words(facts, virtual), *remarks(virtual, run)])


def _enough_steps(virtual: Virtual, per_update: int, length: int) -> int:
    """How many steps are simulated, in closures of a length, unless the training has fewer."""
    gradients = max(_LEAST_ROUNDS * virtual.num_workers, min(_ROUNDS * virtual.num_workers, _GRADIENTS))
    enough = max(-(-gradients // per_update), _CLOSURES * length * virtual.num_workers if length > 1 else 0)
    return enough if virtual.worker_mtbf_s is None else max(enough, _STEPS_WITH_LOSSES)


def _with_server_losses(virtual: Virtual, run: RunConfig, rate: float) -> float:
    """The steps per second if parameter servers are lost, from the rate if they are not.

    With losses at the rate r, each of which costs R seconds and takes the training back to the checkpoint, it takes
    (1 / r + R)(exp(r T) - 1) seconds on average to get T seconds further (Daly: A higher order estimate of the optimum
    checkpoint interval for restart dumps, Future Generation Computer Systems 2006).

    Raises:
      ConfigError: the training would never get to its next checkpoint.
    """
    if virtual.ps_mtbf_s is None:
        return rate
    saves = _saves(run)
    whole = run.trainer.num_epochs * run.trainer.num_steps
    every = min(saves.every_steps or whole, saves.in_epochs or whole)
    saved_after_s = every / rate
    per_s = virtual.num_ps / virtual.ps_mtbf_s
    expected = per_s * saved_after_s
    if expected > _MOST_LOSSES:
        message = (
            f"is {virtual.ps_mtbf_s:g}: parameter servers would be lost {expected:.3g} times in the "
            f"{saved_after_s:.4g} s between two checkpoints; choose a larger one, or more checkpoints "
            "(checkpoint.every_steps)"
        )
        raise ConfigError([Problem("cluster.ps_mtbf_s", message)])
    return every / ((1 / per_s + virtual.ps_recovery_s) * math.expm1(expected))


def _simulated(
    virtual: Virtual, run: RunConfig, traffic: Sequence[tuple[int, int]], seed: int, num_steps: int
) -> Cluster:
    """The cluster after some steps or a few more, in closures, epochs and between checkpoints as in the run."""
    seconds = virtual.step_seconds(seed)
    losses = virtual.worker_losses(seed, 0)
    cluster = make_cluster(virtual, run.consistency, seconds, costs_of(virtual, traffic), losses)
    length = steps_of_a_closure(virtual, run)
    saves = _saves(run)
    done = saved = 0
    in_epoch = min(run.trainer.num_steps, num_steps)
    while done < num_steps:
        seconds.begin(done)
        left = in_epoch - done % in_epoch
        while left > 0:
            closure = min(length, left)
            cluster.schedule(closure, left)
            cluster.actions.clear()
            done += closure
            left -= closure
            if saves.is_due(done, saved):
                saved = done
                break
        cluster.join()
    return cluster


def delayed(virtual: Virtual, seed: int, first: int, dealt: Callable[[int, int], None]) -> Cluster:
    """The cluster of `cluster.delay`, from an update on."""
    delays = virtual.drawn_delays(seed)
    return DelayedCluster(delays, delays.longest, first, dealt)


def remarks(virtual: Virtual, run: RunConfig) -> list[str]:
    """What deserves attention in a training on the cluster."""
    if virtual.delay is not None or run.consistency.averages:
        return []
    length = steps_of_a_closure(virtual, run)
    num_steps = run.trainer.num_steps
    executions = -(-num_steps // length)
    if executions >= virtual.num_workers:
        return []
    return [
        f"An epoch of {num_steps} steps has {executions} executions of {length}: {virtual.num_workers - executions} of "
        f"{virtual.num_workers} workers get none; choose fewer workers, a smaller trainer.steps_per_execution, or a "
        "larger trainer.steps_per_epoch"
    ]


def _losses_in_words(virtual: Virtual, seconds: float) -> list[str]:
    """A line on the losses that are expected in the seconds of a training; none where nothing is lost."""
    expected = []
    if virtual.worker_mtbf_s is not None:
        expected.append(f"workers {virtual.num_workers * seconds / virtual.worker_mtbf_s:.3g} times")
    if virtual.ps_mtbf_s is not None:
        expected.append(f"parameter servers {virtual.num_ps * seconds / virtual.ps_mtbf_s:.3g} times")
    return [f"Lost meanwhile, on average over many trainings: {', '.join(expected)}"] if expected else []


def _in_words(facts: Mapping[str, Mapping[str, float]], virtual: Virtual) -> list[str]:
    """Lines for a person."""

    def text(name: str, form: str, factor: float = 1.0) -> str:
        values = [factor * facts[name][which] for which in ("median", "least", "most")]
        middle, least, most = (format(value, form) for value in values)
        return middle if least == most else f"{middle} ({least} to {most})"

    return [
        f"Predicted: {text('steps_per_s', '.4g')} steps/s, {text('examples_per_s', ',.0f')} examples/s",
        f"Mean staleness of updates: {text('staleness', '.2f')}",
        f"Time in which workers wait for their next execution, in %: {text('waiting', '.3g', 100)}",
        f"All epochs: {text('training_s', ',.4g')} s, without evaluations and checkpoints",
        *_losses_in_words(virtual, facts["training_s"]["median"]),
        f"For steps of {virtual.mean_step_s:.4g} s, messages of {virtual.message_s:.3g} s, and "
        f"{virtual.bytes_per_s:.3g} bytes/s of each parameter server",
    ]
