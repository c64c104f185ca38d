"""Steps of one kind or of several over one stream of batches: scheduled on workers, or done in this process."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from psrun.program.compiled_model import Program
from psrun.training.input_streams import Stream
from psrun.training.parameter_server.closure_tracing import Step, packed
from psrun.training.parameter_server.step_profiler import StepProfiler, Unmeasured
from psrun.training.parameter_server.steps_per_execution import Packing
from psrun.training.session import Session

_MOST_KINDS = 8


class Scheduler:
    """Schedules the steps of a program where there are workers; else does them at once."""

    def __init__(self, program: Program, session: Session) -> None:
        self._program, self._session = program, session
        self._packings: dict[Step | None, Packing] = {}
        self._coordinator = program.distribution.coordinator
        self._do: dict[Step | None, Callable[[int], int]] = {}
        self._last: Any = None  # what the network's own `train_step` returned beside metrics, where it is done here

    def schedule(self, most: int, step: Step | None = None) -> int:
        """Schedules the steps of one execution, `most` at most; returns how many.

        Args:
          step: what is done with a batch; None for the network's own `train_step`.

        Raises:
          ValueError: there were too many different functions: each one is traced.
        """
        if step not in self._do:
            if len(self._do) == _MOST_KINDS:
                message = f"more than {_MOST_KINDS} different step functions, each of which is traced"
                raise ValueError(f"{message}; define them once, outside the loop")
            self._do[step] = self._alone(step) if self._coordinator is None else self._packing(step).schedule
        return self._do[step](most)

    def join(self) -> None:
        """Waits for all that was scheduled; raises what one of the steps raised."""
        for packing in self._packings.values():
            packing.join()

    def done(self) -> bool:
        """Whether all that was scheduled is done; never waits. Raises as `join`."""
        return self._coordinator is None or bool(self._coordinator.done())

    def results(self) -> dict[str, float]:
        """What the steps of an epoch with the network's own `train_step` come to; call when they are joined."""
        own, packing = self._program.own_step, self._packings.get(None)
        if own is None:
            return {metric.name: float(metric.result()) for metric in self._program.network.metrics}
        return own.results(self._last if packing is None else packing.logs)

    def returned(self) -> dict[str, float]:
        """What the network's own `train_step` has returned, as `results`; empty where it was not scheduled."""
        return self.results() if self._program.own_step is not None and None in self._do else {}

    @functools.cached_property
    def _feed(self) -> Stream:
        return self._session.feed()

    @functools.cached_property
    def _stages(self) -> StepProfiler:
        return self._session.stages()

    @functools.cached_property
    def _iterator(self) -> Any:
        dataset = self._session.train_dataset()
        return iter(self._program.distribution.strategy.experimental_distribute_dataset(dataset()))

    def _packing(self, step: Step | None) -> Packing:
        session, planned = self._session, self._session.left - self._session.scheduled
        made = Packing(self._program, self._feed, self._stages, session.packed, planned=planned, step=step)
        self._packings[step] = made
        return made

    def _alone(self, step: Step | None) -> Callable[[int], int]:
        stream = Stream(self._program.train_dataset)
        steps = packed(self._program, step, stream, _nothing_kept, Unmeasured())
        unmeasured, length = tf.constant(False), self._program.config.trainer.num_steps_packed

        def do(most: int) -> int:
            num_steps = min(most, length)
            returned = steps(self._iterator, tf.constant(num_steps), unmeasured)
            self._last = returned if step is None else self._last
            return num_steps

        return do


def _nothing_kept(num_steps: int, take: Callable[[], Any]) -> contextlib.AbstractContextManager[Callable[[], Any]]:
    """Nothing is kept, bundled or asked for ahead where there are no parameter servers."""
    return contextlib.nullcontext(take)
