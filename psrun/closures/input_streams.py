"""The input of a closure's steps: the worker's own stream, or batches that the closure's arguments
select.

`TrainingInput` is the training data of a run, in this process or on the workers, from the position
at which it starts or resumes.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from psrun.checkpoint.storage import Position
from psrun.closures.stage import Inputs, Take
from psrun.program.compiled_model import Program
from psrun.tf_internals.coordinator import per_worker_iterator

_MOST_WAITING = 64  # numbers in the queue of a worker; the numbers of lost closures stay
# Skipping this many batches of in-memory data takes about 10 s.
_MAX_SKIPPED_BATCHES = 50_000


class NextBatches(NamedTuple):
    """The numbered batches that a training reads next.

    Attributes:
      first: the number of the first batch that was never dealt.
      again: sorted numbers of earlier batches that were not applied; they are read first.
      partly: some of these numbers: the rows of tables are updated, and the dense weights are not.
    """

    first: int
    again: tuple[int, ...] = ()
    partly: tuple[int, ...] = ()


class Stream:
    """Each worker reads its own endless stream of batches.

    Args:
      dataset: creates it, as `ProgramData.train_dataset` does.

    Attributes:
      least: closures of fewer steps wait for their batches longer than necessary.
      is_dealt: whether the chief decides which batch a closure reads, so that it can be read again.
    """

    least = 1
    is_dealt = False

    def __init__(self, dataset: Callable[..., tf.data.Dataset]) -> None:
        self._dataset = dataset
        self._iterator: Any = None

    def iterator(self, coordinator: tf.distribute.coordinator.ClusterCoordinator | None) -> Any:
        """One iterator per worker, created once: closures of several kinds share one stream.

        Args:
          coordinator: None for an iterator of this process.
        """
        if self._iterator is None:
            make_dataset = functools.partial(self._dataset, context=coordinator, numbers=self._numbers())
            if coordinator is None:
                self._iterator = iter(make_dataset())
            else:
                self._iterator = per_worker_iterator(coordinator, make_dataset)
        return self._iterator

    def _numbers(self) -> Callable[[], tf.data.Dataset] | None:
        """Creates the numbers of the batches to read; None if the stream has its own order."""
        return None

    def inputs(self) -> dict[str, tf.TensorSpec]:
        """What a closure passes for its batches, by name."""
        return {}

    def deal(self, num_steps: int) -> Inputs:
        """The values of `inputs` for a closure of the next `num_steps` steps."""
        return {}

    def later(self, inputs: Inputs, num_steps: int) -> Inputs:
        """The inputs of a closure that leaves out the first steps of the one with `inputs`."""
        return inputs

    def deal_again(self, inputs: Sequence[Inputs], *, partly: bool = False) -> None:
        """Takes back the inputs of closures of one step that were not applied.

        Args:
          partly: they have updated the rows of tables.
        """

    def is_partly_applied(self, inputs: Inputs) -> bool:
        """Whether a closure of one step has updated the rows of its batch before."""
        return False

    def begin(self, num_steps: tf.Tensor | int, inputs: Inputs) -> None:
        """Call in the closure, before any step."""

    def taker(self, iterator: Any, first: tf.Tensor | int, inputs: Inputs) -> Take:
        """A function that returns the next batch of a closure at each call.

        Args:
          first: index of the first batch among the steps of the closure.
        """
        return functools.partial(next, iterator)


class DealtInput(Stream):
    """Each closure has its batches: it reads the same ones wherever, and however often, it runs.

    A worker has one pipeline, which takes the numbers of batches from a queue, so that it reads ahead within a closure.
    A closure that was interrupted leaves numbers or batches behind; later closures skip them by number.

    Batches have places: first those that are `again` to read, then those from `first` on.

    Args:
      begin: the batches to read; their places begin at 0.
    """

    least = 4  # the first batch is only read when the closure begins
    is_dealt = True

    def __init__(self, dataset: Callable[..., tf.data.Dataset], begin: NextBatches) -> None:
        super().__init__(dataset)
        self._first = begin.first
        self._again = begin.again
        self._next_place = 0
        self._returned: list[int] = []  # places, a heap
        self._partly = {place for place, number in enumerate(begin.again) if number in begin.partly}
        self._name = f"psrun-{uuid.uuid4().hex}"  # workers outlive a chief and keep its queue

    def inputs(self) -> dict[str, tf.TensorSpec]:
        return {"place": tf.TensorSpec([], tf.int64)}

    def deal(self, num_steps: int) -> Inputs:
        if self._returned and num_steps == 1:
            return {"place": tf.constant(heapq.heappop(self._returned), tf.int64)}
        place = self._next_place
        self._next_place += num_steps
        return {"place": tf.constant(place, tf.int64)}

    def later(self, inputs: Inputs, num_steps: int) -> Inputs:
        return {"place": inputs["place"] + num_steps}

    def deal_again(self, inputs: Sequence[Inputs], *, partly: bool = False) -> None:
        for each in inputs:
            place = int(each["place"])
            heapq.heappush(self._returned, place)
            if partly:
                self._partly.add(place)

    def is_partly_applied(self, inputs: Inputs) -> bool:
        return int(inputs["place"]) in self._partly

    def position(self) -> NextBatches:
        """The batches that were not dealt yet, or not applied."""
        num_again = len(self._again)
        again: list[int] = []
        partly: list[int] = []
        for place in [*range(self._next_place, num_again), *self._returned]:
            number = self._again[place] if place < num_again else self._first + place - num_again
            again.append(number)
            if place in self._partly:
                partly.append(number)
        num_dealt = max(0, self._next_place - num_again)
        return NextBatches(self._first + num_dealt, tuple(sorted(again)), tuple(sorted(partly)))

    def _number(self, place: tf.Tensor) -> tf.Tensor:
        """The number of the batch at a place."""
        if not self._again:
            return self._first + place
        again = tf.constant(self._again, tf.int64)
        number = tf.gather(again, tf.minimum(place, len(self._again) - 1))
        return tf.where(place < len(self._again), number, self._first + place - len(self._again))

    def begin(self, num_steps: tf.Tensor | int, inputs: Inputs) -> None:
        piece = tf.stack([inputs["place"], tf.cast(num_steps, tf.int64)])
        tf.raw_ops.QueueEnqueueV2(handle=self._queue(), components=[piece])

    def taker(self, iterator: Any, first: tf.Tensor | int, inputs: Inputs) -> Take:
        steps = itertools.count()

        def take() -> Any:
            number = self._number(self._place(first, next(steps), inputs))
            # Values in which the batch is wrapped, not the tensors of it, go through the loop.
            (element,) = tf.while_loop(
                lambda element: tf.not_equal(element.get_value()[0], number),
                lambda element: (iterator.get_next_as_optional(),),
                (iterator.get_next_as_optional(),),
            )
            _, batch = element.get_value()
            return batch

        return take

    def _place(self, first: tf.Tensor | int, index: int, inputs: Inputs) -> tf.Tensor:
        """The place of the batch of a step of a closure.

        Args:
          index: of the step among those that are traced one after the other, from `first` on.
        """
        return inputs["place"] + tf.cast(first, tf.int64) + index

    def _numbers(self) -> Callable[[], tf.data.Dataset]:
        def next_piece(_: tf.Tensor) -> tf.Tensor:
            (piece,) = tf.raw_ops.QueueDequeueV2(handle=self._queue(), component_types=[tf.int64])
            return tf.ensure_shape(piece, [2])

        def places_of(piece: tf.Tensor) -> tf.data.Dataset:
            first, num_steps = piece[0], piece[1]
            return tf.data.Dataset.range(first, first + num_steps)

        def numbers() -> tf.data.Dataset:
            pieces = tf.data.Dataset.counter().map(next_piece)
            return pieces.flat_map(places_of).map(self._number)

        return numbers

    def _queue(self) -> tf.Tensor:
        """The worker's queue, created by its first use there. tf.queue would create it on the chief."""
        with tf.device("/device:CPU:0"):  # where the pipeline runs, on a worker with other devices, too
            return tf.raw_ops.FIFOQueueV2(
                component_types=[tf.int64], shapes=[[2]], capacity=_MOST_WAITING, shared_name=self._name
            )


class TrainingInput:
    """The data of a training that resumes at `start`, after `first_step` applied steps.

    Attributes:
      stream: the step at which the resumed stream of batches began; None if each worker has a separate stream.
    """

    def __init__(self, program: Program, start: Position, first_step: int) -> None:
        self._program = program
        self._start = start
        self._first_step = first_step
        self._dealt: DealtInput | None = None
        self.stream = _stream_begin(program, start, first_step)

    def position(self, scheduled: int) -> NextBatches:
        """The next batches, if batches are numbered, after `scheduled` steps of this process."""
        if self._dealt is not None:
            return self._dealt.position()
        again, partly = tuple(self._start.again), tuple(self._start.partly)
        if not self._program.config.consistency.updates_rows:  # rows are updated once
            again, partly = tuple(number for number in again if number not in partly), ()
        return NextBatches(self._start.batch + scheduled, again, partly)

    def on_workers(self, scheduled: int, dealt_input: type[DealtInput]) -> Stream:
        """The input of the steps on workers, after `scheduled` steps.

        Args:
          dealt_input: the class of the input, where the chief decides which batch a closure reads.
        """
        if not self._program.data.dealt:
            return Stream(self.dataset(scheduled))
        self._dealt = dealt_input(self._program.data.train_dataset, self.position(scheduled))
        return self._dealt

    def dataset(self, scheduled: int) -> Callable[..., tf.data.Dataset]:
        """Creates the training data after `scheduled` steps; for this process, or for each worker.

        A single stream of batches resumes at its position, unless that would take too long. Separate streams of
        workers start from the beginning, each time shuffled differently.
        """
        make = self._program.data.train_dataset
        if self._program.config.data.visitation != "every_worker":  # position without skipping
            return functools.partial(make, num_batches_done=self.position(scheduled).first)
        step = self._first_step + scheduled
        if self.stream is None:
            return functools.partial(make, first_step=step)
        return functools.partial(make, first_step=self.stream, num_batches_done=step - self.stream)


def _stream_begin(program: Program, start: Position, first_step: int) -> int | None:
    """The step at which the stream of batches began, or begins anew if skipping to its position takes too long."""
    if program.data.own_streams:
        return None
    if start.stream is None or first_step - start.stream > _MAX_SKIPPED_BATCHES:
        return first_step
    return start.stream
