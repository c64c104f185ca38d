"""Synchronous training: rounds of gradients, of which the first ones make an update."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psrun.closures.training_closures import TrainingClosures
from psrun.cluster.strategy import Distribution
from psrun.config import choices


@dataclass(frozen=True)
class Slot:
    """One gradient of a round: the mark of its closure."""

    round: int
    index: int


class UpdateRounds:
    """The rule by which workers take the closures of rounds, for `tf_internals.closure_queue`.

    Each live worker computes one gradient of a round. If there are more closures than live workers, because workers
    were lost, those that have computed one take another.

    Attributes:
      number: of the current round.
      done: the slots of the round that are done, with the workers, in the order in which they were done.
      dropped: how many gradients came too late, by worker.
    """

    def __init__(self, num_workers: int) -> None:
        self.number = 0
        self.done: dict[int, int] = {}
        self.dropped: Counter[int] = Counter()
        self._live = set(range(num_workers))
        self._took: dict[int, int] = {}  # the last round of each worker
        self._chosen: set[int] | None = None

    @property
    def num_live(self) -> int:
        return len(self._live)

    def begin(self) -> None:
        """Begins the next round."""
        self.number += 1
        self.done, self._chosen = {}, None

    def choose_first(self, num_chosen: int) -> list[int]:
        """The first slots of the round that were done, sorted; the others are late from now on."""
        chosen = list(self.done)[:num_chosen]
        self._chosen = set(chosen)
        self.dropped.update(worker for slot, worker in self.done.items() if slot not in self._chosen)
        return sorted(chosen)

    def choose(self, worker: int, queued: Sequence[Any]) -> int | None:
        waiting = [mark for mark in queued if mark is not None]
        for place, mark in enumerate(queued):
            if mark is None or self._may_take(worker, len(waiting)):
                return place
        return None

    def _may_take(self, worker: int, num_waiting: int) -> bool:
        others = sum(self._took.get(each) != self.number for each in self._live)
        may = self._took.get(worker) != self.number or num_waiting > others
        if may:
            self._took[worker] = self.number
        return may

    def finished(self, worker: int, mark: Slot) -> None:
        if mark.round == self.number and self._chosen is None:
            self.done.setdefault(mark.index, worker)
        else:
            self.dropped[worker] += 1

    def left(self, worker: int) -> None:
        self._live.discard(worker)

    def returned(self, worker: int) -> None:
        self._live.add(worker)

    def is_over(self, mark: Slot) -> bool:
        return mark.round < self.number or self._chosen is not None


class RoundClosures(TrainingClosures):
    """The closures of rounds."""

    def __init__(self, distribution: Distribution, consistency: choices.ConsistencyChoice) -> None:
        super().__init__(distribution, consistency)
        self._rounds = UpdateRounds(distribution.num_workers)
        self._most = consistency.gradients_per_update(distribution.num_workers)
        self._least = self._most if consistency.min_workers is None else consistency.min_workers
        self._num_averaged = 0
        self._queue.follow(self._rounds)

    @property
    def num_live(self) -> int:
        """The number of workers that are not lost."""
        return self._rounds.num_live

    def begin_round(self) -> tuple[int, int, int]:
        """Begins a round; returns its number, how many gradients make an update, and how many to compute.

        With fewer live workers than an update has gradients, it has fewer, but not fewer than `min_workers`.
        """
        with self._queue.locked():
            self._rounds.begin()
            live = self._rounds.num_live
            num_averaged = max(self._least, min(self._most, live))
            return self._rounds.number, num_averaged, max(num_averaged, live)

    def schedule_slot(self, function: Any, arguments: Sequence[Any], slot: Slot) -> Any:
        """Schedules the closure of a slot of the current round; raises as `schedule`."""
        with self._queue.marking(slot):
            return self._coordinator.schedule(function, args=tuple(arguments))

    def first(self, num_averaged: int) -> list[int]:
        """Waits for so many slots of the current round, and ends it; returns those slots, sorted.

        Raises:
          tf.errors.OpError: a closure failed.
        """
        if not self._queue.wait_for(lambda: len(self._rounds.done) >= num_averaged):
            self._coordinator.join()
            raise AssertionError("a closure failed without an error")
        with self._queue.locked():
            chosen = self._rounds.choose_first(num_averaged)
        self._queue.drop_what_is_over()
        self._num_averaged += num_averaged
        return chosen

    def facts(self) -> dict[str, Any]:
        """Also `gradients_applied`, and `updates_dropped`: how many gradients of each worker came too late."""
        dropped = self._rounds.dropped
        by_worker = {f"worker-{index}": dropped[index] for index in range(self._num_workers)}
        return {**super().facts(), "gradients_applied": self._num_averaged, "updates_dropped": by_worker}
