"""Schedules steps on workers, several in one closure."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from psrun.cluster.training_closures import TrainingClosures
from psrun.config import choices
from psrun.program.compiled_model import Program
from psrun.training.input_streams import Stream
from psrun.training.parameter_server import closure_length
from psrun.training.parameter_server.closure_length import ClosureTimer
from psrun.training.parameter_server.closure_tracing import ClosureTracer, Step
from psrun.training.parameter_server.slow_workers import SlowWorkers
from psrun.training.parameter_server.staleness_meter import StalenessMeter
from psrun.training.parameter_server.step_profiler import StepProfiler

# Writing ten out took 5 to 9 s of training and saved 2 to 3 ms a step, with a tiny and a large model on two slow cores:
# what it costs comes back after some 2,300 to 3,300 steps.
_STEPS_TO_UNROLL_FOR = 4000
# Steps as slow as this gain nothing by it, and ten of them without a sign of life could be taken for a hang.
_SLOW_STEP_S = 1.0


@dataclass(frozen=True)
class Packed:
    """How steps are packed.

    Attributes:
      num_steps: number of steps of a closure.
      step_s: the measured seconds per step that determined `num_steps`; None if it is configured.
      rows_late: the number of a worker's own updates that may be missing in the table rows it reads.
      weights_late: the same for dense variables.
    """

    num_steps: int
    step_s: float | None = None
    rows_late: int = 0
    weights_late: int = 0


class Packing:
    """Schedules steps on the workers of a coordinator, several in a closure.

    Args:
      in_flight: the closures of all kinds of steps.
      feed: the input of the steps.
      stages: measures the stages of a step.
      meter: measures the staleness of updates.
      planned: total number of steps to schedule.
      on_packed: called when the length of closures is decided, and when it changes.
      step: trains on one batch, instead of the network's `train_step`; its return value is dropped.

    Attributes:
      num_steps: number of steps of a closure; may change after the first ones.
      logs: the remote value of what the network's `train_step` returned in the last scheduled step, without metrics;
        zeros by name of metric if it returned nothing else. Metrics are read after a join.
    """

    def __init__(
        self,
        program: Program,
        in_flight: TrainingClosures,
        feed: Stream,
        stages: StepProfiler,
        meter: StalenessMeter,
        on_packed: Callable[[Packed], None],
        *,
        planned: int,
        step: Step | None = None,
    ) -> None:
        distribution, trainer = program.distribution, program.config.trainer
        assert distribution.coordinator is not None
        self._program = program
        self._in_flight, self._stages = in_flight, stages
        self._feed, self._iterator = feed, feed.iterator(distribution.coordinator)
        slow = SlowWorkers(program.optimizer, program.config.cluster.slow_workers or {}, distribution.num_workers)
        self._tracer = ClosureTracer(program, feed, self._iterator, stages, slow, meter, step)
        self._late = trainer.prefetch_rows or trainer.dense_sync_every > 1  # only unrolled steps can be
        self._unrolled_steps = choices.MAX_UNROLLED_STEPS if self._late or planned >= _STEPS_TO_UNROLL_FOR else 1
        self._looped, self._unrolled = self._tracer.trace(1, num_steps=None), None
        self._timer = (
            ClosureTimer(self._in_flight, distribution.num_workers) if trainer.steps_per_execution == "auto" else None
        )
        self._num_closures, self._began_s = 0, 0.0
        self._on_packed = on_packed
        self.num_steps = 1 if self._timer else trainer.num_steps_packed
        self.logs: Any = dict.fromkeys((metric.name for metric in program.network.metrics), 0.0)
        if self._timer is None:
            self._report(None)

    def schedule(self, most: int) -> int:
        """Schedules a closure of `num_steps` steps, at most `most`. Returns its number of steps."""
        num_steps = min(self.num_steps, most)
        if self._timer is not None:
            self._timer.resume()
        arguments = (tf.constant(self._stages.wanted()), *self._feed.arguments(num_steps))
        if num_steps == self.num_steps and self._unrolled is not None:
            scheduled = self._in_flight.schedule(self._unrolled, (self._iterator, *arguments))
        else:
            scheduled = self._in_flight.schedule(self._looped, (self._iterator, tf.constant(num_steps), *arguments))
        if self._looped.structured_outputs is not None:
            self.logs = scheduled
        self._num_closures += 1
        if self._num_closures == 1:
            self._began_s = time.monotonic()
        if self._timer is not None:
            if num_steps == self.num_steps:
                self._choose(self._timer)
        elif self._num_closures == 2 * self._in_flight.most and self._unrolled is None and not self._slow():
            self._unroll()  # while the workers are busy: the first step does not wait for the trace
        return num_steps

    def _slow(self) -> bool:
        """Whether steps are so slow that unrolling gains nothing. At least half of the scheduled closures are done."""
        if self._late:
            return False
        steps_per_worker = self._num_closures * self.num_steps / 2 / self._program.distribution.num_workers
        return time.monotonic() - self._began_s > _SLOW_STEP_S * steps_per_worker

    def join(self) -> None:
        """Waits for all scheduled closures; raises the exception of a failed one."""
        self._in_flight.join()
        if self._timer is not None:
            self._timer.pause()

    def _report(self, step_s: float | None) -> None:
        trainer = self._program.config.trainer
        unrolled = max(1, min(self.num_steps, self._unrolled_steps))
        late = min(trainer.dense_sync_every, unrolled) - 1
        self._on_packed(Packed(self.num_steps, step_s, int(trainer.prefetch_rows and unrolled > 1), late))

    def _choose(self, timer: ClosureTimer) -> None:
        """Chooses the number of steps from timed closures of one step, and if those are short, of ten."""
        closure_s = timer.closure_s()
        if closure_s is None:
            return
        steps_per_epoch, workers = self._program.config.trainer.num_steps, self._program.distribution.num_workers
        step_s, before = closure_s / self.num_steps, self.num_steps
        self.num_steps = closure_length.after(before, step_s, steps_per_epoch, workers, least=self._feed.least)
        if self.num_steps != before:
            self._unroll()
        if before != 1 or self.num_steps == 1:
            self._timer = None
            self._report(step_s)

    def _unroll(self) -> None:
        unrolled = min(self.num_steps, self._unrolled_steps)
        if unrolled > 1:
            self._unrolled = self._tracer.trace(unrolled, num_steps=self.num_steps)
