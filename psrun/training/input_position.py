"""Where the training data of a run goes on, in this process or on the workers."""

from __future__ import annotations

import functools
from collections.abc import Callable

import tensorflow as tf

from psrun.checkpoint.manifest import Position
from psrun.program.compiled_model import Program
from psrun.training.audit import Audit
from psrun.training.data_service_input import DataServiceInput
from psrun.training.input_streams import DealtInput, Stream

# Finding the place in a stream of data again takes time: some 10 s for so many batches of data in memory.
_MOST_BATCHES_LEFT_OUT = 50_000


class InputPosition:
    """The data of a training that goes on at `start`, when `first_step` steps had been applied.

    Attributes:
      stream: at which step the stream of batches began that goes on here; None where each worker has one of its own.
    """

    def __init__(self, program: Program, start: Position, first_step: int, audit: Audit | None) -> None:
        self._program, self._start, self._first_step, self._audit = program, start, first_step, audit
        begun = first_step if start.stream is None else start.stream
        begun = first_step if first_step - begun > _MOST_BATCHES_LEFT_OUT else begun
        self.stream = None if program.own_streams else begun

    def next_batch(self, scheduled: int) -> int:
        """The number of the next batch, where all are numbered, after so many steps of this process."""
        return self._start.batch + scheduled

    def on_workers(self, scheduled: int) -> Stream:
        """Where the steps on workers get their batches, after so many steps."""
        first = self.next_batch(scheduled)
        if self._program.distribution.data_service:
            return DataServiceInput(self._program, first, self._audit)
        if self._program.dealt:
            return DealtInput(self._program.train_dataset, first, self._audit)
        return Stream(self.dataset(scheduled), self._audit)

    def dataset(self, scheduled: int) -> Callable[..., tf.data.Dataset]:
        """Makes the training data after so many steps; for this process, or for each worker.

        One stream of batches goes on where it was left, unless that would take too long; where each worker has its
        own, they begin anew, each time shuffled differently.
        """
        make, step = self._program.train_dataset, self._first_step + scheduled
        if self._program.config.data.visitation != "every_worker":  # whose place is found at once
            return functools.partial(make, num_batches_done=self.next_batch(scheduled))
        if self.stream is None:
            return functools.partial(make, first_step=step)
        return functools.partial(make, first_step=self.stream, num_batches_done=step - self.stream)
