"""`cluster=virtual`: its keys in the configuration, and its answers to the core."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml

from psrun.config.choices import staleness_histogram
from psrun.config.clusters import PLACEMENT_RULES, ClusterChoice, ClusterRun
from psrun.config.schema import at_least, one_of
from psrun.errors import Problem
from psrun.virtual.losses import Losses
from psrun.virtual.times import DELAYS, DrawnDelays, StepSeconds, delay_probabilities

_MOST = 1e6  # seconds, or updates; infinity is no time of a step
_LEAST = 0.001  # seconds between losses
_LONGEST = 1e12
_NOT_PLAYED = ("scheduled",)
_USUAL_DEVIATION = 0.1
_USUAL_LATENCY_S = 0.0002  # in a data center
_USUAL_UPDATE_S = 0.002


@dataclass(frozen=True, kw_only=True)
class Virtual(ClusterChoice):
    """Workers and parameter servers in virtual time, whose arithmetic this process does.

    Attributes:
      step_s: seconds in which a worker computes a step; None with `like` or `delay`.
      step_deviation: the standard deviation of that time, as a multiple of it; None: as measured with `like`, or 0.1.
      like: the run whose measured step time is used, or with `delay` its staleness: its folder, or its run.json.
      pause_probability: of a step that takes `pause_s` longer, on any worker.
      latency_s: of a message, one way, in the mean; None: as measured with `like`, or a usual one.
      bytes_per_s: that a parameter server sends, and that it receives.
      closure_s: seconds of the chief for an execution.
      update_s: seconds of the chief for an update of several gradients; None: as measured with `like`, or 0.002 and two
        messages.
      worker_mtbf_s: mean seconds between two losses of a worker; None: no worker is lost.
      worker_recovery_s: until a lost worker is back.
      ps_mtbf_s: mean seconds between two losses of a parameter server; None: none is lost.
      ps_recovery_s: until the training goes on from its newest checkpoint.
      delay: instead of times, the distribution of the number of updates by which gradients are late.
      mean_delay: its mean, in updates; None if recorded.
    """

    played_by: ClassVar[str] = "psrun.virtual.steps:VirtualClosures"
    predicted_by: ClassVar[str] = "psrun.virtual.prediction:predicted"
    kind: str
    like: str | None
    slow_workers: dict[int, float] | None
    step_s: float | None = at_least(0, at_most=_MOST)
    step_deviation: float | None = at_least(0, at_most=100)
    pause_probability: float = at_least(0, at_most=1)
    pause_s: float = at_least(0, at_most=_MOST)
    latency_s: float | None = at_least(0, at_most=_MOST)
    bytes_per_s: float = at_least(1)
    closure_s: float = at_least(0, at_most=_MOST)
    update_s: float | None = at_least(0, at_most=_MOST)
    worker_mtbf_s: float | None = at_least(_LEAST, at_most=_LONGEST)
    worker_recovery_s: float = at_least(0, at_most=_MOST)
    ps_mtbf_s: float | None = at_least(_LEAST, at_most=_LONGEST)
    ps_recovery_s: float = at_least(0, at_most=_MOST)
    delay: str | None = one_of(*DELAYS, None)
    mean_delay: float | None = at_least(0, at_most=_MOST)
    num_workers: int = at_least(1)
    num_ps: int = at_least(1)
    placement: str = one_of(*PLACEMENT_RULES)
    fork_server: bool = True

    @property
    def title(self) -> str:
        if self.delay is not None:
            return f"{self.kind} ({self.delay} delay)"
        return f"{self.kind} ({self.num_workers} workers, {self.num_ps} ps)"

    @functools.cached_property
    def _recorded(self) -> dict[str, Any]:
        """The run.json of `like`. Raises ValueError without one."""
        assert self.like is not None
        return _recorded(self.like)

    @property
    def _step_time(self) -> dict[str, Any]:
        """The mean times of a step of `like`. Raises ValueError without them, or if steps were slowed on purpose."""
        assert self.like is not None
        step_time = self._recorded.get("step_time")
        if not isinstance(step_time, dict):
            raise ValueError(
                f"names {self.like}, which has no step_time; only steps on real workers are measured: "
                "record a run with cluster=local cluster.num_workers=1"
            )
        if _has_slow_workers(self.like):
            raise ValueError(
                f"names {self.like}, whose cluster.slow_workers slowed steps on purpose: record one without"
            )
        return step_time

    @property
    def mean_step_s(self) -> float:
        """Seconds in which a worker that is not slow computes a step, with its batch.

        Raises:
          ValueError: `like` is not a run with such a time.
        """
        if self.like is None:
            if self.step_s is None:
                raise ValueError(
                    "is required; set it to the seconds of a step on a worker, or set cluster.like to a run"
                )
            return self.step_s
        step_time = self._step_time
        return float(step_time["compute_s"]) + float(step_time["input_s"])

    @property
    def _deviation(self) -> float:
        """The standard deviation of the time of a step, as a multiple of its mean."""
        if self.step_deviation is not None:
            return self.step_deviation
        measured = None if self.like is None else self._step_time.get("deviation")  # runs of old versions have none
        return _USUAL_DEVIATION if measured is None else float(measured)

    @property
    def message_s(self) -> float:
        """Seconds of a message, one way. With `like`, a quarter of what a step waited for parameters and updates: it
        sends four messages, and the bytes of one worker take little of that time.

        Raises:
          ValueError: `like` is not a run with such a time.
        """
        if self.latency_s is not None:
            return self.latency_s
        return _USUAL_LATENCY_S if self.like is None else float(self._step_time["traffic_s"]) / 4

    @property
    def whole_update_s(self) -> float:
        """Seconds of the chief for an update of several gradients, with its messages.

        Raises:
          ValueError: `like` is not a run with the time of messages.
        """
        if self.update_s is not None:
            return self.update_s
        recorded = None if self.like is None else self._recorded.get("consistency")
        measured = recorded.get("update_s") if isinstance(recorded, dict) else None
        return _USUAL_UPDATE_S + 2 * self.message_s if measured is None else float(measured)

    @property
    def start_s(self) -> float:
        """Seconds until a worker begins an execution. With `like`, what the recorded worker did beside its steps.

        Raises:
          ValueError: `like` is not a run with such a time.
        """
        if self.like is None:
            return self.message_s
        packed = self._recorded.get("steps_per_execution")
        num_steps = packed["num_steps"] if isinstance(packed, dict) else 1
        return max(0.0, float(self._step_time["other_s"]) - self._waited_s) * int(num_steps)

    @property
    def _waited_s(self) -> float:
        """Seconds for each gradient of `like` in which its worker waited for its next execution."""
        consistency = self._recorded.get("consistency")
        if not isinstance(consistency, dict) or not isinstance(consistency.get("waited_s"), dict):
            return 0.0
        num_gradients = consistency.get("gradients_applied") or self._recorded["steps"]["applied"]
        return sum(consistency["waited_s"].values()) / num_gradients if num_gradients else 0.0

    def step_seconds(self, seed: int) -> StepSeconds:
        """The seconds of the steps of all workers."""
        return StepSeconds(
            self.mean_step_s,
            self._deviation,
            self.slow_workers,
            self.pause_probability,
            self.pause_s,
            self.message_s,
            seed,
        )

    def worker_losses(self, seed: int, step: int) -> Losses | None:
        """When workers are lost in a training that goes on after a step; None: never."""
        if self.worker_mtbf_s is None:
            return None
        return Losses(self.worker_mtbf_s, self.worker_recovery_s, f"worker {seed} {step}")

    def ps_losses(self, seed: int, step: int) -> Losses | None:
        """When parameter servers are lost; as `worker_losses`."""
        return None if self.ps_mtbf_s is None else Losses(self.ps_mtbf_s, self.ps_recovery_s, f"ps {seed} {step}")

    def drawn_delays(self, seed: int) -> DrawnDelays:
        """The delays of updates, with `delay`. Raises ValueError if their distribution does not exist."""
        assert self.delay is not None
        recorded = None
        if self.delay == "recorded":
            if self.like is None:
                raise ValueError("is required with cluster.delay=recorded; set it to a run folder")
            try:
                recorded = staleness_histogram(self._recorded["staleness"])
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"names {self.like}, which has no histogram at staleness.histogram") from error
        return DrawnDelays(delay_probabilities(self.delay, self.mean_delay, recorded), seed)

    def problems(self, config: ClusterRun) -> list[Problem]:
        problems = self._problems_of_delays(config) if self.delay is not None else self._problems_of_times()
        consistency: Any = config.consistency
        if consistency.kind in _NOT_PLAYED:
            message = (
                f"'virtual' does not play consistency={consistency.kind}; choose another mode or cluster=inprocess"
            )
            problems.append(Problem("cluster", message))
        trainer: Any = config.trainer
        if trainer.kind != "custom_loop":
            message = f"is '{trainer.kind}', which runs steps in its own order; choose custom_loop with cluster=virtual"
            problems.append(Problem("trainer", message))
            return problems
        for key, value, only in (
            ("dense_sync_every", trainer.dense_sync_every, 1),
            ("prefetch_rows", trainer.prefetch_rows, False),
        ):
            if value != only:
                message = f"is {value}, which cluster=virtual does not support; set it to {only}"
                problems.append(Problem(f"trainer.{key}", message))
        return problems

    def _problems_of_times(self) -> list[Problem]:
        problems = []
        if self.mean_delay is not None:
            problems.append(Problem("cluster.mean_delay", "has no effect without cluster.delay; set it to null"))
        if self.like is not None and self.step_s is not None:
            problems.append(Problem("cluster.step_s", "has no effect with cluster.like; set one of them to null"))
            return problems
        key = "cluster.step_s" if self.like is None else "cluster.like"
        try:
            if self.mean_step_s <= 0:
                problems.append(Problem(key, "gives steps of 0 s; they must take some time"))
            problems += self._problems_of_losses()
        except (ValueError, KeyError, TypeError) as error:
            problems.append(Problem(key, str(error)))
        return problems

    def _problems_of_losses(self) -> list[Problem]:
        slow_s = max((self.slow_workers or {}).values(), default=0.0)
        longest_s = self.mean_step_s + slow_s + self.pause_s + 4 * self.message_s
        problems = []
        for key, mean_s in (("worker_mtbf_s", self.worker_mtbf_s), ("ps_mtbf_s", self.ps_mtbf_s)):
            if mean_s is not None and mean_s < longest_s:
                message = f"is {mean_s:g}, less than a step takes ({longest_s:.4g} s); choose a larger one, or null"
                problems.append(Problem(f"cluster.{key}", message))
        return problems

    def _problems_of_delays(self, config: ClusterRun) -> list[Problem]:
        problems = []
        consistency: Any = config.consistency
        if consistency.kind != "async":
            message = f"is '{consistency.kind}', but delays that are drawn follow no mode; choose async"
            problems.append(Problem("consistency", message))
        key, unused = ("like", "mean_delay") if self.delay == "recorded" else ("mean_delay", "like")
        if getattr(self, unused) is not None:
            message = f"has no effect with cluster.delay={self.delay}; set it to null"
            problems.append(Problem(f"cluster.{unused}", message))
        for unused in ("step_s", "worker_mtbf_s", "ps_mtbf_s"):
            if getattr(self, unused) is not None:
                message = "has no effect with cluster.delay, with which no time passes; set it to null"
                problems.append(Problem(f"cluster.{unused}", message))
        try:
            self.drawn_delays(0)
        except ValueError as error:
            problems.append(Problem(f"cluster.{key}", str(error)))
        return problems


def _has_slow_workers(run: str) -> bool:
    """Whether the configuration of a run slows steps down, which its times do not tell from messages."""
    path = Path(run).expanduser()
    folder = path if path.is_dir() else path.parent
    try:
        config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        return bool(config["cluster"]["slow_workers"])
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError):  # beside a run.json of somebody's own
        return False


def _recorded(run: str) -> dict[str, Any]:
    """The run.json of a run. Raises ValueError without one."""
    path = Path(run).expanduser()
    if path.is_dir():
        path = path / "run.json"
        if not path.exists():
            raise ValueError(f"names {run}, which is no run folder: it has no run.json")
    try:
        recorded = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"names {path}, which cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ValueError(f"names {path}, which is not JSON: {error}") from error
    if not isinstance(recorded, dict):
        raise ValueError(f"names {path}, which is no run.json")
    return recorded
