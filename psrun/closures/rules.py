"""The rules of consistency modes: which worker takes which closure, when an update is due, and what a gradient weighs.

Rules know no TensorFlow. The queue of closures calls their methods with its lock held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from psrun.config.choices import ConsistencyChoice


class WorkerClocks:
    """Stale synchronous parallel: a worker that is too far ahead of the slowest live worker takes no closure.

    The clock of a worker counts the closures with a mark that it has done. A worker whose clock is more than
    `staleness` ahead of the slowest live worker's takes no closure with a mark (Ho et al.: More Effective Distributed
    ML via a Stale Synchronous Parallel Parameter Server, NIPS 2013). The clock of a lost worker does not count; when
    the worker is back, its clock is set to the clock of the slowest live worker.
    """

    def __init__(self, num_workers: int, staleness: int) -> None:
        self._clocks = dict.fromkeys(range(num_workers), 0)
        self._staleness = staleness
        self._live = set(self._clocks)
        self._at = Counter({0: num_workers})  # how many live workers have a clock
        self._slowest = 0  # the least clock of a live worker: with 1,024 workers, a minimum for each closure is slow

    def choose(self, worker: int, queued: Sequence[Any]) -> int | None:
        if not queued:
            return None
        if self._clocks[worker] - self._slowest <= self._staleness:
            return 0
        for place, mark in enumerate(queued):
            if mark is None:
                return place
        return None

    def finished(self, worker: int, mark: Any) -> bool:
        clock = self._clocks[worker]
        self._clocks[worker] = clock + 1
        if worker in self._live:
            self._at[clock + 1] += 1
            return self._leave(clock)
        return False

    def left(self, worker: int) -> bool:
        if worker not in self._live:
            return False
        self._live.discard(worker)
        return self._leave(self._clocks[worker])

    def _leave(self, clock: int) -> bool:
        """One live worker less has this clock; returns whether another one is the least now."""
        self._at[clock] -= 1
        if self._at[clock]:
            return False
        del self._at[clock]
        if clock != self._slowest or not self._at:
            return False
        self._slowest = min(self._at)
        return True

    def returned(self, worker: int) -> None:
        if worker in self._live:
            return
        if self._live:
            self._clocks[worker] = self._slowest
        else:
            self._slowest = self._clocks[worker]
        self._live.add(worker)
        self._at[self._clocks[worker]] += 1

    def is_over(self, mark: Any) -> bool:
        return False


@dataclass(frozen=True)
class Gradient:
    """The gradient of one batch: the mark of its closure.

    Attributes:
      number: of the gradient, from 0 in the order in which they are dealt.
      index: its place among the gradients that were dealt since the last update.
    """

    number: int
    index: int


class Dropped(NamedTuple):
    """A gradient that is not applied.

    Attributes:
      was_taken: whether a worker had taken its closure.
    """

    number: int
    was_taken: bool


@dataclass(frozen=True)
class Update:
    """The gradients of an update.

    Attributes:
      numbers: of the gradients, sorted.
      weights: of each gradient.
      ages: of each gradient: the number of updates since its weights were read.
      late: the gradients that are dropped, sorted: they would be too old for the next update.
      kept: the numbers of the gradients that later updates may have.
    """

    numbers: list[int]
    weights: list[float]
    ages: list[int]
    late: list[Dropped]
    kept: list[int]


class GradientRule:
    """The first gradients that are there make an update.

    With `tolerance` 0 the gradients of an update are of the same weights. Then each live worker computes one of them,
    and if workers are lost, others compute theirs (Chen et al.: Revisiting Distributed Synchronous SGD, 2016). With
    more, workers wait for nobody, and a gradient that is too old is dropped (GBA: Su et al.: GBA: A Tuning-free
    Approach to Switch between Synchronous and Asynchronous Training for Recommendation Model, NeurIPS 2022). Without a
    tolerance no gradient is too old. A worker that `waits` computes no other gradient before the update with its last
    one (K-async SGD: Dutta et al.: Slow and Stale Gradients Can Win the Race, AISTATS 2018).

    The age of a gradient is counted from the moment at which a worker takes its closure: its weights are not older.

    Args:
      most: the number of gradients of an update.
      least: the least number of them, while fewer workers are live.
      tolerance: the greatest age of a gradient that is applied; None: any.
      decay: the weight of a gradient is `decay` to the power of its age.
      updates_rows: whether closures also update rows of tables themselves: a closure that was taken runs to its end,
        also if its gradient is dropped.

    Attributes:
      num_averaged: how many gradients make the next update: with fewer live workers fewer, but not fewer than `least`.
      num_applied: number of updates.
      dropped: how many gradients were dropped, by the worker that computes them.
    """

    def __init__(
        self,
        num_workers: int,
        most: int,
        *,
        least: int | None = None,
        tolerance: int | None = 0,
        decay: float = 1.0,
        waits: bool = True,
        updates_rows: bool = False,
    ) -> None:
        self._most = most
        self._least = most if least is None else least
        self._tolerance = tolerance
        self._decay = decay
        self._waits = waits
        self._updates_rows = updates_rows
        self._ends_anyway: set[int] = set()  # dropped gradients whose closures have to run to their end
        self._num_workers = num_workers
        self._live = set(range(num_workers))
        self.num_applied = 0
        self.dropped: Counter[int] = Counter()
        self._num_dealt = 0
        self._index = 0
        self._pending: dict[int, int | None] = {}  # the update before which each gradient was taken, if it is taken
        self._done: dict[int, int] = {}  # gradients that are there, in this order, with their workers
        self._took: dict[int, int] = {}  # the last gradient of each worker
        self.num_averaged = self._most

    @property
    def num_live(self) -> int:
        return len(self._live)

    @property
    def most_pending(self) -> int:
        """The greatest number of gradients that are pending at a time."""
        return self._num_wanted(self._most, self._num_workers)

    def _num_wanted(self, num_averaged: int, num_live: int) -> int:
        """How many gradients are to be pending, with so many in an update."""
        wanted = max(num_averaged, num_live)
        if self._waits:
            return wanted
        ahead = num_averaged + 2 * num_live  # one of each worker is on its way, and one more waits for it
        return ahead if self._tolerance is None else min(ahead, wanted * (self._tolerance + 1))

    def deal(self, updates_left: int | None) -> list[Gradient]:
        """The gradients to compute from now on, besides the pending ones.

        Args:
          updates_left: no more updates follow before all gradients have to be applied; None: unknown.
        """
        self.num_averaged = max(self._least, min(self._most, self.num_live))
        wanted = self._num_wanted(self.num_averaged, self.num_live)
        if updates_left is not None:
            wanted = min(wanted, max(updates_left, 1) * self.num_averaged)
        dealt = []
        while len(self._pending) < wanted:
            gradient = Gradient(self._num_dealt, self._index)
            self._num_dealt += 1
            self._index += 1
            self._pending[gradient.number] = None
            dealt.append(gradient)
        return dealt

    def is_due(self) -> bool:
        """Whether the gradients of the next update are there."""
        return len(self._done) >= self.num_averaged

    def take(self) -> Update:
        """The next update, which is due. Call `applied` when it is applied."""
        chosen = sorted(list(self._done)[: self.num_averaged])
        ages = [self._age(number) for number in chosen]
        for number in chosen:
            del self._done[number]
            del self._pending[number]
        weights = [self._decay**age for age in ages]
        late = self._drop([number for number in self._pending if self._will_be_late(number)])
        return Update(chosen, weights, ages, late, list(self._pending))

    def applied(self) -> None:
        """Counts an update."""
        self.num_applied += 1
        self._index = 0

    def _age(self, number: int) -> int:
        taken = self._pending[number]
        return 0 if taken is None else self.num_applied - taken

    def _will_be_late(self, number: int) -> bool:
        """Whether a gradient is too old for the next update but one."""
        if self._tolerance is None:
            return False
        if self._tolerance == 0:
            return True
        return self._pending[number] is not None and self._age(number) + 1 > self._tolerance

    def drop(self) -> list[Dropped]:
        """Drops all gradients that are not applied yet, and returns them, sorted; call before a join."""
        return self._drop(list(self._pending))

    def _drop(self, numbers: list[int]) -> list[Dropped]:
        dropped = []
        for number in sorted(numbers):
            was_taken = self._pending.pop(number) is not None
            dropped.append(Dropped(number, was_taken))
            if number in self._done:
                self.dropped[self._done.pop(number)] += 1
            elif was_taken and self._updates_rows:
                self._ends_anyway.add(number)
        return dropped

    # -- of a rule

    def choose(self, worker: int, queued: Sequence[Any]) -> int | None:
        if not queued:
            return None
        may_take = self._may_take(worker, queued)
        for place, mark in enumerate(queued):
            if mark is None:
                return place
            if may_take:
                # Gradients are summed in the order of their numbers: with gradients of their own, workers give equal
                # sums in each run, whichever is the fastest.
                own = _own_place(worker, queued) if self._waits else place
                place = place if own is None else own
                self._take(worker, queued[place])
                return place
        return None

    def _may_take(self, worker: int, queued: Sequence[Any]) -> bool:
        if not self._waits or not self._holds(worker):
            return True
        num_waiting = sum(mark is not None for mark in queued)
        others = sum(not self._holds(each) for each in self._live)
        return num_waiting > others

    def _holds(self, worker: int) -> bool:
        """Whether the last gradient that a worker took is not applied yet."""
        return self._took.get(worker) in self._pending

    def _take(self, worker: int, mark: Gradient) -> None:
        self._took[worker] = mark.number
        if self._pending.get(mark.number, 0) is None:  # the gradient of a lost worker keeps its age
            self._pending[mark.number] = self.num_applied

    def finished(self, worker: int, mark: Gradient) -> bool:
        if mark.number in self._pending:
            self._done.setdefault(mark.number, worker)  # it may run twice, if its result was in transit
        else:
            self.dropped[worker] += 1
        self._ends_anyway.discard(mark.number)
        return False

    def left(self, worker: int) -> bool:
        self._live.discard(worker)
        return True

    def returned(self, worker: int) -> None:
        self._live.add(worker)

    def is_over(self, mark: Gradient) -> bool:
        return mark.number not in self._pending and mark.number not in self._ends_anyway


def rule_of(consistency: ConsistencyChoice, num_workers: int) -> GradientRule:
    """The rule of a mode in which an update averages several gradients."""
    queue = consistency.queue
    return GradientRule(
        num_workers,
        queue.gradients_per_update(num_workers),
        least=queue.min_workers,
        tolerance=queue.tolerance,
        decay=queue.decay,
        waits=queue.waits,
        updates_rows=consistency.updates_rows,
    )


def _own_place(worker: int, queued: Sequence[Any]) -> int | None:
    """The place in the queue of the gradient with the index of a worker; None if it is not there."""
    for place, mark in enumerate(queued):
        if mark is not None and mark.index == worker:
            return place
    return None
