"""Schedules steps on workers, several in one closure."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from psrun.cluster.inflight_closures import InFlightClosures
from psrun.config import choices
from psrun.program.compiled_model import Program
from psrun.training.input_streams import Stream
from psrun.training.parameter_server import closure_length
from psrun.training.parameter_server.closure_length import ClosureTimer
from psrun.training.parameter_server.closure_tracing import ClosureTracer, Step
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
      num_steps: of a closure.
      step_s: seconds of a step on a worker, by which that was chosen; None where it was given.
      rows_late: how many of its own steps a worker's rows of tables lack at most.
      weights_late: the same of the weights that are read as a whole.
    """

    num_steps: int
    step_s: float | None = None
    rows_late: int = 0
    weights_late: int = 0


class Packing:
    """Schedules steps on the workers of a coordinator, several in a closure.

    Args:
      feed: where the steps get their batches.
      stages: measure where the time of steps goes.
      planned: how many steps are to come, in all.
      told: called with what is to be known of the packing, once it is.
      step: of one batch, in place of the network's own; what it returns is left out.

    Attributes:
      num_steps: of a closure; may change after the first ones.
      logs: what the network's own `train_step` returned beside metrics in the last step scheduled, as a value on its
        way. Where there is nothing, the names of the metrics with zeros: these are read once all is joined.
    """

    def __init__(
        self,
        program: Program,
        feed: Stream,
        stages: StepProfiler,
        told: Callable[[Packed], None],
        *,
        planned: int,
        step: Step | None = None,
    ) -> None:
        distribution, trainer = program.distribution, program.config.trainer
        assert distribution.coordinator is not None
        self._program, self._coordinator = program, distribution.coordinator
        self._in_flight, self._stages = InFlightClosures(distribution), stages
        self._feed, self._iterator = feed, feed.iterator(distribution.coordinator)
        self._tracer = ClosureTracer(program, feed, self._iterator, stages, step)
        self._late = trainer.prefetch_rows or trainer.dense_sync_every > 1  # only steps that are written out can be
        self._unrolled_steps = choices.MOST_WRITTEN_OUT if self._late or planned >= _STEPS_TO_UNROLL_FOR else 1
        self._looped, self._unrolled = self._tracer.trace(1, num_steps=None), None
        self._timer = (
            ClosureTimer(self._in_flight, distribution.num_workers) if trainer.steps_per_execution == "auto" else None
        )
        self._num_closures, self._began_s = 0, 0.0
        self._told = told
        self.num_steps = 1 if self._timer else trainer.num_steps_packed
        self.logs: Any = dict.fromkeys((metric.name for metric in program.network.metrics), 0.0)
        if self._timer is None:
            self._tell(None)

    def schedule(self, most: int) -> int:
        """Schedules `num_steps` steps, or `most` where those are fewer; returns how many."""
        num_steps = min(self.num_steps, most)
        if self._timer is not None:
            self._timer.resume()
        told = (tf.constant(self._stages.wanted()), *self._feed.told(num_steps))
        if num_steps == self.num_steps and self._unrolled is not None:
            scheduled = self._coordinator.schedule(self._unrolled, args=(self._iterator, *told))
        else:
            scheduled = self._coordinator.schedule(self._looped, args=(self._iterator, tf.constant(num_steps), *told))
        self._in_flight.add(scheduled)
        if self._looped.structured_outputs is not None:
            self.logs = scheduled
        self._num_closures += 1
        if self._num_closures == 1:
            self._began_s = time.monotonic()
        if self._timer is not None:
            if num_steps == self.num_steps:
                self._choose(self._timer)
        elif self._num_closures == 2 * self._in_flight.most and self._unrolled is None and not self._slow():
            self._unroll()  # while the workers have something to do: the first step does not wait for it
        return num_steps

    def _slow(self) -> bool:
        """Whether the steps done so far were too slow for it: half of the closures scheduled are done at least."""
        if self._late:
            return False
        done = self._num_closures * self.num_steps / 2 / self._program.distribution.num_workers
        return time.monotonic() - self._began_s > _SLOW_STEP_S * done

    def join(self) -> None:
        """Waits for all that was scheduled; raises what one of the steps raised."""
        self._in_flight.join()
        if self._timer is not None:
            self._timer.pause()

    def _tell(self, step_s: float | None) -> None:
        trainer = self._program.config.trainer
        unrolled = max(1, min(self.num_steps, self._unrolled_steps))
        late = min(trainer.dense_sync_every, unrolled) - 1
        self._told(Packed(self.num_steps, step_s, int(trainer.prefetch_rows and unrolled > 1), late))

    def _choose(self, timer: ClosureTimer) -> None:
        """Chooses the number of steps: by closures of one step, and where those are short by closures of ten."""
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
            self._tell(step_s)

    def _unroll(self) -> None:
        unrolled = min(self.num_steps, self._unrolled_steps)
        if unrolled > 1:
            self._unrolled = self._tracer.trace(unrolled, num_steps=self.num_steps)
