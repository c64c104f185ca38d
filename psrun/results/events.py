"""Events of a run and their sinks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Event:
    """Something that happened, such as an epoch, an evaluation, a checkpoint or a failure.

    Attributes:
      kind: what happened.
      step: steps applied when it happened, read from `optimizer.iterations`; None before the optimizer exists.
      wall_s: seconds since the process started.
      data: its details, as JSON values.
    """

    kind: str
    step: int | None
    wall_s: float
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Progress:
    """Progress of the training; rates are those of the last seconds.

    Attributes:
      epoch: the current one, from 1.
      epochs: their planned number.
      step: steps applied in this run so far.
      steps: their planned number.
      loss: mean over the current epoch so far; None before its first step.
      metrics: of the last complete epoch and evaluation.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    steps_per_s: float
    examples_per_s: float
    loss: float | None
    metrics: Mapping[str, float] = field(default_factory=dict)


class Sink:
    """Receives events and progress, and ignores them. Called from several threads, one call at a time."""

    def event(self, event: Event) -> None:
        pass

    def progress(self, progress: Progress) -> None:
        pass

    def close(self) -> None:
        pass


class Reporter:
    """Sends events to all sinks, stamped with the time since `started_s` (as of `time.time`)."""

    def __init__(self, sinks: Sequence[Sink], *, started_s: float) -> None:
        self._sinks = sinks
        self.started_s = started_s

    @property
    def wall_s(self) -> float:
        return time.time() - self.started_s

    def emit(self, kind: str, *, step: int | None = None, **data: Any) -> None:
        event = Event(kind, step, round(self.wall_s, 3), data)
        for sink in self._sinks:
            sink.event(event)

    def warn(self, message: str, *, step: int | None = None) -> None:
        """Reports a warning."""
        self.emit("warning", step=step, message=message)

    def progress(self, progress: Progress) -> None:
        for sink in self._sinks:
            sink.progress(progress)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
