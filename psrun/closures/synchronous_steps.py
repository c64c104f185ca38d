"""Schedules rounds of steps on workers, and applies the gradients of each round at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from psrun.closures import stages
from psrun.closures.closure import Closure
from psrun.closures.gradient_rounds import GradientRounds
from psrun.closures.input_streams import Stream
from psrun.closures.stage import Step
from psrun.closures.staleness_meter import StalenessMeter
from psrun.closures.step_profiler import StepProfiler
from psrun.closures.update_rounds import RoundClosures, Slot
from psrun.program.compiled_model import Program
from psrun.tf_internals.cluster import iterator_spec


class SynchronousSteps:
    """Schedules synchronous steps; the interface of `Packing`, with executions of one step.

    Args:
      closures, feed, profiler, meter, step: as for `Packing`.
      ends_epoch: whether the next step is the last one of its epoch.
      warn: called when an update begins to average another number of gradients.

    Attributes:
      num_steps, logs: as of `Packing`.
    """

    num_steps = 1

    def __init__(
        self,
        program: Program,
        closures: RoundClosures,
        feed: Stream,
        profiler: StepProfiler,
        meter: StalenessMeter,
        *,
        ends_epoch: Callable[[], bool],
        warn: Callable[[str], None],
        step: Step | None = None,
    ) -> None:
        distribution = program.distribution
        assert distribution.coordinator is not None
        self._closures = closures
        self._feed = feed
        self._profiler = profiler
        self._ends_epoch = ends_epoch
        self._warn = warn
        self._meter = meter
        self._iterator = feed.iterator(distribution.coordinator)
        rounds = GradientRounds(program, feed.audit)
        parts = [rounds, *closures.stages(program), *stages.on_workers(program, profiler, meter)]
        self._closure = Closure(program, feed, parts, step, iterator_spec(self._iterator))
        self._function = self._closure.trace(1, num_steps=1)
        self._apply = rounds.apply_function()
        self._num_averaged = program.gradients_per_update
        self.logs: Any = dict.fromkeys((metric.name for metric in program.network.metrics), 0.0)

    def schedule(self, most: int) -> int:
        """Computes and applies one update; returns 1, the number of its steps.

        Raises:
          tf.errors.OpError: a step failed.
        """
        number, num_averaged, num_slots = self._closures.begin_round()
        if num_averaged != self._num_averaged:
            self._warn(f"gradients per update: {num_averaged} instead of {self._num_averaged}; "
                       f"live workers: {self._closures.num_live}")  # fmt: skip
            self._num_averaged = num_averaged
        if self._feed.is_dealt and self._ends_epoch():
            num_slots = num_averaged  # so that every batch of the epoch is applied in it
        batches, scheduled = [], []
        for index in range(num_slots):
            batches.append(self._feed.deal(1))
            place = {"round": tf.constant(number, tf.int64), "slot": tf.constant(index, tf.int64)}
            measured = tf.constant(self._profiler.wanted())
            inputs = {"iterator": self._iterator, "measured": measured, **batches[-1], **place}
            arguments = self._closure.flat(inputs)
            scheduled.append(self._closures.schedule_slot(self._function, arguments, Slot(number, index)))
        chosen = self._closures.first(num_averaged)
        self._feed.deal_again([batch for index, batch in enumerate(batches) if index not in chosen])
        self._apply(tf.constant(number, tf.int64), tf.constant(chosen, tf.int64))
        self._meter.count_averaged()
        if self._function.structured_outputs is not None:
            self.logs = scheduled[chosen[-1]]
        return 1

    def join(self) -> None:
        """Waits for late gradients; raises as `schedule`."""
        self._closures.join()
