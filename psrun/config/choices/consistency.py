"""Consistency modes: which steps may run at the same time on workers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from psrun.config import delays
from psrun.config.choices.base import Choice
from psrun.config.schema import at_least, one_of
from psrun.errors import Problem

if TYPE_CHECKING:
    from psrun.config.run_config import RunConfig


class ConsistencyChoice(Choice):
    """The interface of every consistency mode; the defaults are those of asynchronous training.

    The implementation is a subclass of `psrun.closures.training_closures.TrainingClosures`, called with the
    `Distribution` and the choice; that of a mode of one process has the methods `begin` and `take` of
    `psrun.closures.simulated_delay.SimulatedDelay`, and is called with the `Program` and the choice.

    Attributes:
      needs_parameter_servers: whether the mode has a meaning only with parameter servers.
      one_process: whether the mode has a meaning only without a cluster.
      max_delay: a round starts once all rounds before the one this many rounds earlier are done; None for no bound.
      averages: whether an update averages the gradients of several workers; else each gradient is an update.
      min_workers: the least number of gradients of an update while workers are lost; None for as many as otherwise.
      staleness: a worker waits while it is more than this many rounds ahead of the slowest one; None for no bound.
    """

    implementation = "psrun.closures.training_closures:TrainingClosures"
    needs_parameter_servers: ClassVar[bool] = True
    one_process: ClassVar[bool] = False
    kind: str
    max_delay: int | None = None
    staleness: int | None = None
    averages: ClassVar[bool] = False
    min_workers: int | None = None

    def gradients_per_update(self, num_workers: int) -> int:
        """The number of batches that an update is computed from."""
        return 1

    def problems(self, config: RunConfig) -> list[Problem]:
        """What of a configuration to train the mode does not support."""
        return []

    @property
    def facts(self) -> dict[str, Any]:
        """The mode and its options, as in run.json."""
        options: dict[str, Any] = asdict(self)  # type: ignore[call-overload]
        return {"mode": options.pop("kind"), **options}

    @property
    def title(self) -> str:
        """The mode with its options."""
        mode, *options = self.facts.values()
        names = [f"{name}={value}" for name, value in zip([*self.facts][1:], options)]
        return f"{mode} ({', '.join(names)})" if names else mode


@dataclass(frozen=True)
class Asynchronous(ConsistencyChoice):
    needs_parameter_servers = False
    kind: str


@dataclass(frozen=True)
class BoundedDelay(ConsistencyChoice):
    kind: str
    max_delay: int = at_least(0)


@dataclass(frozen=True)
class StaleSynchronous(ConsistencyChoice):
    kind: str
    staleness: int = at_least(0)


@dataclass(frozen=True)
class Synchronous(ConsistencyChoice):
    """The first gradients of a round are averaged and applied once.

    Attributes:
      backup_workers: the number of gradients of a round that are not waited for.
    """

    implementation = "psrun.closures.synchronous_steps:RoundClosures"
    averages = True
    kind: str
    backup_workers: int = at_least(0)
    min_workers: int | None = at_least(1)

    def gradients_per_update(self, num_workers: int) -> int:
        return num_workers - self.backup_workers

    def problems(self, config: RunConfig) -> list[Problem]:
        trainer = config.trainer
        mode = f"consistency={self.kind}"
        problems = [
            Problem(
                key, f"is {value}, which {mode} does not support: each step waits for the one before; set it to {only}"
            )
            for key, value, only in (
                ("trainer.steps_per_execution", trainer.num_steps_packed, 1),
                ("trainer.dense_sync_every", trainer.dense_sync_every, 1),
                ("trainer.prefetch_rows", trainer.prefetch_rows, False),
            )
            if value not in (only, "auto")
        ]
        if (config.cluster.replicas_per_worker or 1) > 1:
            problems.append(Problem("cluster.replicas_per_worker", f"must be 1 with {mode}"))
        if trainer.steps_per_epoch is None and config.num_training_workers is None:
            message = f"is required with {mode} where the addresses of the cluster decide on the number of workers"
            problems.append(Problem("trainer.steps_per_epoch", message))
        return problems


@dataclass(frozen=True)
class Simulated(ConsistencyChoice):
    """Each gradient is applied a drawn number of updates after its weights were read.

    Attributes:
      delay: the distribution of that number.
      mean: its mean, in updates; None if recorded.
      run: the run folder, or the run.json, whose recorded staleness is reproduced; None otherwise.
    """

    implementation = "psrun.closures.simulated_delay:SimulatedDelay"
    needs_parameter_servers = False
    one_process = True
    kind: str
    run: str | None
    delay: str = one_of(*delays.KINDS)
    mean: float | None = at_least(0)

    @property
    def probabilities(self) -> list[float]:
        """The probabilities of delays of 0, 1, ... updates. Raises ValueError without such a distribution."""
        return delays.probabilities(self.delay, self.mean, self.run)

    def problems(self, config: RunConfig) -> list[Problem]:
        problems = []
        if config.cluster.kind != "none":
            got = f"got cluster={config.cluster.kind}: choose cluster=none, or async"
            problems.append(Problem("consistency", f"'simulated' trains in one process; {got}"))
        if not config.trainer.has_fixed_epochs:
            problems.append(Problem("trainer", "steps of 'own_loop' cannot be delayed; choose custom_loop or fit"))
        key, unused = ("run", "mean") if self.delay == "recorded" else ("mean", "run")
        if getattr(self, unused) is not None:
            message = f"has no effect with consistency.delay={self.delay}; set it to null"
            problems.append(Problem(f"consistency.{unused}", message))
        try:
            _ = self.probabilities
        except ValueError as error:
            problems.append(Problem(f"consistency.{key}", str(error)))
        return problems


# By name, as `kind` in conf/.
MODES: dict[str, type] = {
    "async": Asynchronous,
    "bounded_delay": BoundedDelay,
    "ssp": StaleSynchronous,
    "sync": Synchronous,
    "simulated": Simulated,
}
