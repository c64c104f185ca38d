"""The position in the training data at which a run starts or resumes, in this process or on the workers."""

from __future__ import annotations

import functools
from collections.abc import Callable

import tensorflow as tf

from psrun.checkpoint.manifest import Position
from psrun.closures.input_streams import DealtInput, Stream
from psrun.program.compiled_model import Program

# Skipping this many batches of in-memory data takes about 10 s.
_MAX_SKIPPED_BATCHES = 50_000


class InputPosition:
    """The data of a training that resumes at `start`, after `first_step` applied steps.

    Attributes:
      stream: the step at which the resumed stream of batches began; None if each worker has a separate stream.
    """

    def __init__(self, program: Program, start: Position, first_step: int) -> None:
        self._program = program
        self._start = start
        self._first_step = first_step
        self._dealt: DealtInput | None = None
        begun = first_step if start.stream is None else start.stream
        begun = first_step if first_step - begun > _MAX_SKIPPED_BATCHES else begun
        self.stream = None if program.own_streams else begun

    def next_batch(self, scheduled: int) -> int:
        """The number of the next batch, if batches are numbered, after `scheduled` steps of this process."""
        return self._start.batch + scheduled if self._dealt is None else self._dealt.next_number

    @property
    def left(self) -> list[int]:
        """The numbers of earlier batches that were not applied, and that a resumed run reads."""
        return list(self._start.again) if self._dealt is None else self._dealt.left

    def on_workers(self, scheduled: int) -> Stream:
        """The input of the steps on workers, after `scheduled` steps."""
        if self._program.dealt:
            first = self.next_batch(scheduled)
            self._dealt = DealtInput(self._program.train_dataset, first, self.left)
            return self._dealt
        return Stream(self.dataset(scheduled))

    def dataset(self, scheduled: int) -> Callable[..., tf.data.Dataset]:
        """Creates the training data after `scheduled` steps; for this process, or for each worker.

        A single stream of batches resumes at its position, unless that would take too long. Separate streams of
        workers start from the beginning, each time shuffled differently.
        """
        make, step = self._program.train_dataset, self._first_step + scheduled
        if self._program.config.data.visitation != "every_worker":  # position without skipping
            return functools.partial(make, num_batches_done=self.next_batch(scheduled))
        if self.stream is None:
            return functools.partial(make, first_step=step)
        return functools.partial(make, first_step=self.stream, num_batches_done=step - self.stream)
