"""The custom training loop, and the scheduler that it shares with the loops of users.

Steps of one or several kinds run on one stream of batches, on workers or in this process, and are
joined at the end of each epoch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from psrun.closures.input_streams import Stream
from psrun.closures.measurements import StepProfiler
from psrun.closures.stage import Step
from psrun.closures.stages import Closure
from psrun.closures.training_closures import Steps
from psrun.config.run_config import RunConfig
from psrun.program import objective
from psrun.program.compiled_model import Program
from psrun.training import loop
from psrun.training.loop import Trainer, TrainingRun

_MOST_KINDS = 8


def trainer(run: RunConfig) -> Trainer:
    """The trainer of a run; it accepts every configuration."""
    return Trainer(_train)


def _train(program: Program, run: TrainingRun) -> None:
    """Runs all epochs of the program's configuration. The step is the network's own `train_step`, as in Keras."""
    steps = Scheduler(program, run)
    for epoch in run.epochs(steps.join):
        for piece in epoch.pieces():
            piece.num_steps = steps.schedule(piece.max_steps)
            run.after_piece(piece)
        run.after_epoch(epoch, steps.results)


class Scheduler:
    """Schedules the steps of a program on workers; without workers, runs them at once."""

    def __init__(self, program: Program, run: TrainingRun) -> None:
        self._program = program
        self._run = run
        self._on_workers: dict[Step | None, Steps] = {}
        self._coordinator = program.distribution.coordinator
        self._do: dict[Step | None, Callable[[int], int]] = {}
        self._last: Any = None  # additional values that the network's own `train_step` returned in this process

    def schedule(self, most: int, step: Step | None = None) -> int:
        """Schedules the steps of one execution, at most `most`; returns their number.

        Args:
          step: a function of a batch; None for the network's `train_step`.

        Raises:
          ValueError: too many different step functions: each one is traced.
        """
        if step not in self._do:
            if len(self._do) == _MOST_KINDS:
                message = f"more than {_MOST_KINDS} different step functions, each of which is traced"
                raise ValueError(f"{message}; define them once, outside the loop")
            has_workers = self._program.config.cluster.has_workers
            self._do[step] = self._make(step).schedule if has_workers else self._alone(step)
        return self._do[step](most)

    def join(self) -> None:
        """Waits for all scheduled steps; raises the error of a failed step."""
        for steps in self._on_workers.values():
            steps.join()

    def done(self) -> bool:
        """Whether all scheduled steps are done; never waits. Raises as `join`."""
        return self._coordinator is None or bool(self._coordinator.done())

    def results(self) -> dict[str, float | None]:
        """The metrics of an epoch, None for undefined ones; call when its steps are joined."""
        own = self._program.own_step
        steps = self._on_workers.get(None)
        if own is None:
            return {metric.name: objective.value_of(metric) for metric in self._program.network.metrics}
        return own.results(self._last if steps is None else steps.logs)

    def returned(self) -> dict[str, float | None]:
        """The values of the network's own `train_step`, as `results`; empty if it was not scheduled."""
        return self.results() if self._program.own_step is not None and None in self._do else {}

    @functools.cached_property
    def _feed(self) -> Stream:
        return self._run.feed()

    @functools.cached_property
    def _profiler(self) -> StepProfiler:
        return self._run.make_profiler()

    @functools.cached_property
    def _iterator(self) -> Any:
        dataset = self._run.train_dataset()
        return iter(self._program.distribution.strategy.experimental_distribute_dataset(dataset()))

    def _make(self, step: Step | None) -> Steps:
        self._on_workers[step] = loop.steps_on_workers(self._program, self._run, self._feed, self._profiler, step)
        return self._on_workers[step]

    def _alone(self, step: Step | None) -> Callable[[int], int]:
        closure = Closure(self._program, Stream(self._program.data.train_dataset), [], step)
        steps = closure.function()
        length = self._program.config.trainer.num_steps_packed

        def do(most: int) -> int:
            num_steps = min(most, length)
            returned = steps(*closure.flat({"iterator": self._iterator, "num_steps": tf.constant(num_steps)}))
            self._last = returned if step is None else self._last
            return num_steps

        return do
