"""A cluster in virtual time: when its workers take closures, read weights and push gradients.

Nothing is computed here, and nothing waits: an event has a virtual time, and the next event is the earliest one. Which
worker takes which closure, when an update is due and what a gradient weighs is decided by the rules of real clusters
(`psrun.closures.rules`). This module knows no TensorFlow.

A worker asks all parameter servers for the weights of a step, computes, and pushes the gradients. A server sends and
receives one message after the other, in each direction. The chief schedules one closure after the other.

A lost worker takes no closure until it is back. Another one does its closure, from the first step whose gradients are
not at the parameter servers. A lost parameter server costs time only: the training goes back to its newest checkpoint,
and does the steps since then once more.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from psrun.closures.rules import Dropped, Gradient, GradientRule, WorkerClocks
from psrun.virtual.losses import Losses
from psrun.virtual.times import StepSeconds

_PER_WORKER = 4  # closures in flight per worker, as on a real cluster


@dataclass(frozen=True)
class Costs:
    """What takes time beside the computing.

    Attributes:
      closure_s: seconds of the chief for each closure.
      update_s: seconds of the chief for an update of several gradients, with its messages.
      start_s: seconds until a worker begins a closure that it has taken.
      read_s: of each parameter server, the seconds in which it sends what a step reads.
      push_s: of each parameter server, the seconds in which it receives and applies the gradients of a step.
    """

    closure_s: float = 0.0
    update_s: float = 0.0
    start_s: float = 0.0
    read_s: Sequence[float] = ()
    push_s: Sequence[float] = ()


class Read(NamedTuple):
    """A worker reads the weights for a gradient."""

    number: int


class Arrived(NamedTuple):
    """The gradients of a step are at the parameter servers, which update the rows of tables at once."""

    number: int


class Applied(NamedTuple):
    """Gradients are applied.

    Attributes:
      weights: of each gradient.
      ages: of each gradient: the number of updates since its weights were read.
    """

    numbers: Sequence[int]
    weights: Sequence[float]
    ages: Sequence[int]


class Discarded(NamedTuple):
    """A gradient that was computed is dropped."""

    number: int


class Lost(NamedTuple):
    """A gradient that was computed is lost with its worker; unless it is cancelled, it is read for once more."""

    number: int


class Cancelled(NamedTuple):
    """A dropped gradient that was lost, or not computed yet, is not going to be computed."""

    number: int


Action = Read | Arrived | Applied | Discarded | Lost | Cancelled


class Events:
    """What is going to happen, in the order of virtual time; at equal times in the order of the calls.

    Attributes:
      now_s: virtual seconds since the beginning.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._num_added = 0

    def at(self, when_s: float, do: Callable[..., None], *arguments: Any) -> None:
        """Calls a function at a virtual time, which is not before now."""
        heapq.heappush(self._heap, (when_s, self._num_added, do, arguments))
        self._num_added += 1

    def advance(self, until: Callable[[], bool]) -> None:
        """Lets things happen until a condition is true.

        Raises:
          RuntimeError: nothing is going to happen any more, and the condition is not true.
        """
        while not until():
            if not self._heap:
                raise RuntimeError("the virtual cluster waits for something that never happens")
            self.now_s, _, do, arguments = heapq.heappop(self._heap)
            do(*arguments)


class Line:
    """Takes one thing after the other, in the order of the calls."""

    def __init__(self) -> None:
        self._free_s = 0.0

    def done_s(self, comes_s: float, takes_s: float) -> float:
        """The time at which something is done that comes at a time."""
        self._free_s = max(self._free_s, comes_s) + takes_s
        return self._free_s


def _last_done_s(lines: Sequence[Line], comes_s: float, takes_s: Sequence[float]) -> float:
    """The time at which the last of some lines is done with what comes to all of them at once."""
    last_s = comes_s
    for line, seconds in zip(lines, takes_s):
        last_s = max(last_s, line.done_s(comes_s, seconds))
    return last_s


@dataclass(eq=False)
class Closure:
    """Some steps of one worker.

    Attributes:
      first: the number of the gradient of its first step.
      mark: what the rule knows of it.
      num_done: how many of its steps are done.
      has_ended: whether all are done, or it was removed from the queue.
    """

    first: int
    num_steps: int
    mark: Any
    num_done: int = 0
    has_ended: bool = False


class Rule(Protocol):
    """Which worker takes which closure; as `psrun.tf_internals.coordinator.Rule`."""

    def choose(self, worker: int, queued: Sequence[Any]) -> int | None: ...

    def finished(self, worker: int, mark: Any) -> bool: ...

    def left(self, worker: int) -> bool: ...

    def returned(self, worker: int) -> None: ...

    def is_over(self, mark: Any) -> bool: ...


class InOrder:
    """The rule of asynchronous training: any worker takes the oldest closure."""

    def choose(self, worker: int, queued: Sequence[Any]) -> int | None:
        return 0 if queued else None

    def finished(self, worker: int, mark: Any) -> bool:
        return False

    def left(self, worker: int) -> bool:
        return False

    def returned(self, worker: int) -> None:
        pass

    def is_over(self, mark: Any) -> bool:
        return False


class _Marks(Sequence[Any]):
    """The marks of closures; not a list of them, because most rules look at the first one only."""

    def __init__(self, closures: deque[Closure]) -> None:
        self._closures = closures

    def __len__(self) -> int:
        return len(self._closures)

    def __getitem__(self, place: Any) -> Any:
        return self._closures[place].mark

    def __iter__(self) -> Iterator[Any]:
        return (closure.mark for closure in self._closures)


@dataclass(eq=False)
class _Run:
    """A closure on a worker, from the moment at which the worker takes it.

    Attributes:
      has_read: whether the weights of its current step are read, and the gradients have not arrived.
      is_lost: whether its worker was lost.
    """

    worker: int
    closure: Closure
    has_read: bool = False
    is_lost: bool = False

    @property
    def number(self) -> int:
        """The number of the gradient of the current step."""
        return self.closure.first + self.closure.num_done


class Workers:
    """The workers of a cluster, and the queue from which they take closures.

    Args:
      seconds: of the steps of workers.
      losses: when workers are lost; None: never.
      read: called when a worker reads the weights for a gradient, with the worker and the number of the gradient.
      arrived: called when the gradient is at the parameter servers.
      lost: called when the gradient is lost with the worker.
      ended: called when a worker has done a closure, or when it need not be done any more.

    Attributes:
      events: to advance the virtual time.
      num_lost: how often a worker was lost.
      waited_s: virtual seconds that each worker has waited for its next closure while others ran.
    """

    def __init__(
        self,
        num_workers: int,
        rule: Rule,
        seconds: StepSeconds,
        costs: Costs,
        losses: Losses | None,
        *,
        read: Callable[[int, int], None],
        arrived: Callable[[int, int], None],
        lost: Callable[[int], None],
        ended: Callable[[Closure], None],
    ) -> None:
        self.events = Events()
        self.num_lost = 0
        self.waited_s = dict.fromkeys(range(num_workers), 0.0)
        self._rule = rule
        self._seconds = seconds
        self._costs = costs
        self._read = read
        self._arrived = arrived
        self._lost = lost
        self._ended = ended
        self._chief = Line()
        self._sending = [Line() for _ in costs.read_s]
        self._receiving = [Line() for _ in costs.push_s]
        self._queued: deque[Closure] = deque()
        self._ready: dict[int, None] = dict.fromkeys(range(num_workers))  # wait; the first is the next
        self._refused: dict[int, None] = {}  # wait because of the rule
        self._running: dict[int, _Run] = {}
        self._waits_since_s: dict[int, float] = {}
        if losses is not None:
            for worker in range(num_workers):
                self._expect_loss(worker, losses)

    # -- the chief

    def chief_done_s(self, takes_s: float) -> float:
        """When the chief is done with something that it does next."""
        return self._chief.done_s(self.events.now_s, takes_s)

    def put(self, closures: Sequence[Closure]) -> None:
        """Schedules closures, which workers may take when the last one is there."""
        done_s = self.chief_done_s(len(closures) * self._costs.closure_s)
        self.events.at(done_s, self._put, closures)

    def _put(self, closures: Sequence[Closure]) -> None:
        for worker in (*self._ready, *self._refused):
            self._waits_since_s.setdefault(worker, self.events.now_s)
        for closure in closures:
            if self._rule.is_over(closure.mark):
                self._end(closure)
            else:
                self._queued.append(closure)
        self._hand_out()

    def rule_changed(self) -> None:
        """Call when the chief has changed what the rule decides by: workers that wait ask again.

        Queued closures that need not run any more are removed before.
        """
        for closure in list(self._queued):
            if self._rule.is_over(closure.mark):
                self._queued.remove(closure)
                self._end(closure)
        self._ask_again()

    def _end(self, closure: Closure) -> None:
        closure.has_ended = True
        self._ended(closure)

    def join(self) -> None:
        """Call when all closures are done: until the next one is scheduled, workers do not count as waiting."""
        self._waits_since_s.clear()

    # -- workers

    def _ask_again(self) -> None:
        self._ready.update(self._refused)
        self._refused.clear()
        self._hand_out()

    def _hand_out(self) -> None:
        """Gives queued closures to workers that wait."""
        marks = _Marks(self._queued)
        now_s = self.events.now_s
        while self._queued and self._ready:
            worker = next(iter(self._ready))
            del self._ready[worker]
            place = self._rule.choose(worker, marks)
            if place is None:
                self._refused[worker] = None
                continue
            closure = self._queued[place]
            del self._queued[place]
            self.waited_s[worker] += now_s - self._waits_since_s.pop(worker, now_s)
            run = self._running[worker] = _Run(worker, closure)
            self._later(now_s + self._costs.start_s, self._begin_step, run)

    def _later(self, when_s: float, do: Callable[[_Run], None], run: _Run) -> None:
        """Goes on with a closure at a time, unless its worker is lost before."""
        self.events.at(when_s, self._go_on, do, run)

    def _go_on(self, do: Callable[[_Run], None], run: _Run) -> None:
        if not run.is_lost:
            do(run)

    def _begin_step(self, run: _Run) -> None:
        """A worker asks for weights."""
        if run.closure.num_done == run.closure.num_steps:  # the worker that did it was lost before it said so
            self._next(run)
            return
        self._later(self.events.now_s + self._seconds.message_s(), self._read_weights, run)

    def _read_weights(self, run: _Run) -> None:
        now_s = self.events.now_s
        run.has_read = True
        self._read(run.worker, run.number)
        there_s = _last_done_s(self._sending, now_s, self._costs.read_s)
        seconds = self._seconds
        pushed_s = there_s + seconds.message_s() + seconds(run.worker) + seconds.message_s()
        self._later(pushed_s, self._push, run)

    def _push(self, run: _Run) -> None:
        there_s = _last_done_s(self._receiving, self.events.now_s, self._costs.push_s)
        self._later(there_s, self._arrive, run)

    def _arrive(self, run: _Run) -> None:
        self._arrived(run.worker, run.number)
        run.has_read = False
        run.closure.num_done += 1
        self._later(self.events.now_s + self._seconds.message_s(), self._next, run)

    def _next(self, run: _Run) -> None:
        closure = run.closure
        if closure.num_done < closure.num_steps:
            self._begin_step(run)
            return
        worker = run.worker
        del self._running[worker]
        self._ready[worker] = None
        self._waits_since_s[worker] = self.events.now_s
        if self._rule.finished(worker, closure.mark):
            self._ask_again()
        self._end(closure)
        self._hand_out()

    # -- lost workers

    def _expect_loss(self, worker: int, losses: Losses) -> None:
        self.events.at(self.events.now_s + losses.next_s(), self._lose, worker, losses)

    def _lose(self, worker: int, losses: Losses) -> None:
        self.num_lost += 1
        self._ready.pop(worker, None)
        self._refused.pop(worker, None)
        self._waits_since_s.pop(worker, None)
        run = self._running.pop(worker, None)
        if run is not None:
            self._put_back(run)
        self._rule.left(worker)
        self._ask_again()  # the rule has one worker less, and the queue may have one closure more
        self.events.at(self.events.now_s + losses.back_s, self._return, worker, losses)

    def _put_back(self, run: _Run) -> None:
        run.is_lost = True
        if run.has_read:
            self._lost(run.number)
        if self._rule.is_over(run.closure.mark):
            self._end(run.closure)
        else:
            self._queued.append(run.closure)

    def _return(self, worker: int, losses: Losses) -> None:
        self._rule.returned(worker)
        self._ready[worker] = None
        self._waits_since_s[worker] = self.events.now_s
        self._expect_loss(worker, losses)
        self._hand_out()


@dataclass
class Counts:
    """What happened in a virtual cluster.

    Attributes:
      staleness: of each worker, the number of its updates by staleness; CHIEF has the updates of no single worker.
      num_applied: number of gradients that were applied.
      weight: the sum of their weights.
      dropped: the number of gradients of each worker that were dropped.
      lost: the number of gradients that were lost with their workers.
    """

    staleness: dict[int, Counter[int]] = field(default_factory=dict)
    num_applied: int = 0
    weight: float = 0.0
    dropped: Counter[int] = field(default_factory=Counter)
    lost: int = 0

    def count(self, worker: int, staleness: int) -> None:
        """Counts an update."""
        self.staleness.setdefault(worker, Counter())[staleness] += 1


CHIEF = -1  # in `Counts.staleness`


class Cluster(Protocol):
    """A virtual cluster, with what its chief does.

    Attributes:
      counts: what happened.
      actions: what was done to weights and gradients since the list was emptied, in order.
    """

    counts: Counts
    actions: list[Action]

    @property
    def now_s(self) -> float:
        """Virtual seconds since the beginning."""
        ...

    @property
    def num_lost(self) -> int:
        """How often a worker was lost."""
        ...

    @property
    def waited_s(self) -> Mapping[int, float]:
        """Virtual seconds that each worker has waited for its next closure while others ran."""
        ...

    def schedule(self, num_steps: int, steps_left: int | None) -> None:
        """Schedules steps, and waits as the chief of a real cluster does.

        Args:
          steps_left: until the end of the epoch; None where epochs have no end.
        """

    def join(self) -> None:
        """Waits for all steps."""


class _TimedCluster:
    """The virtual time of a cluster with workers."""

    workers: Workers

    @property
    def now_s(self) -> float:
        return self.workers.events.now_s

    @property
    def num_lost(self) -> int:
        return self.workers.num_lost

    @property
    def waited_s(self) -> Mapping[int, float]:
        return self.workers.waited_s


class AsynchronousCluster(_TimedCluster):
    """Each gradient is an update, when it is at the parameter servers.

    Args:
      losses: as in `Workers`.
      max_delay, staleness: as in `psrun.config.choices.ConsistencyChoice`.
      dealt: called with the numbers of gradients, the first and how many, when their closure is scheduled.
    """

    def __init__(
        self,
        num_workers: int,
        seconds: StepSeconds,
        costs: Costs,
        *,
        losses: Losses | None = None,
        max_delay: int | None = None,
        staleness: int | None = None,
        dealt: Callable[[int, int], None] = lambda first, count: None,
    ) -> None:
        rule: Rule = InOrder() if staleness is None else WorkerClocks(num_workers, staleness)
        self.counts = Counts()
        self.actions: list[Action] = []
        self.workers = Workers(
            num_workers,
            rule,
            seconds,
            costs,
            losses,
            read=self._read,
            arrived=self._arrived,
            lost=self._lost,
            ended=self._ended,
        )
        self._most = _PER_WORKER * num_workers
        self._max_delay = max_delay
        self._dealt = dealt
        self._num_dealt = 0
        self._in_flight = 0
        self._unfinished: deque[Closure] = deque()  # in the order in which they were scheduled
        self._num_updates = 0
        self._read_at: dict[int, int] = {}  # the number of updates when the weights of a gradient were read

    def schedule(self, num_steps: int, steps_left: int | None) -> None:
        closure = Closure(self._num_dealt, num_steps, mark=True)
        self._dealt(self._num_dealt, num_steps)
        self._num_dealt += num_steps
        self._in_flight += 1
        self._unfinished.append(closure)
        self.workers.put([closure])
        self.workers.events.advance(self._may_go_on)

    def _may_go_on(self) -> bool:
        if self._in_flight > self._most:
            return False
        if self._max_delay is None:
            return True
        # All closures but the last `max_delay` have ended if the oldest unfinished one is among these.
        return len(self._unfinished) <= self._max_delay

    def join(self) -> None:
        self.workers.events.advance(lambda: not self._in_flight)
        self.workers.join()

    def _read(self, worker: int, number: int) -> None:
        self._read_at[number] = self._num_updates
        self.actions.append(Read(number))

    def _arrived(self, worker: int, number: int) -> None:
        age = self._num_updates - self._read_at.pop(number)
        self._num_updates += 1
        self.counts.num_applied += 1
        self.counts.count(worker, age)
        self.actions.append(Applied((number,), (1.0,), (age,)))

    def _lost(self, number: int) -> None:
        del self._read_at[number]
        self.counts.lost += 1
        self.actions.append(Lost(number))

    def _ended(self, closure: Closure) -> None:
        self._in_flight -= 1
        while self._unfinished and self._unfinished[0].has_ended:
            self._unfinished.popleft()


class QueuedCluster(_TimedCluster):
    """The gradients of several closures make an update, as `psrun.closures.scheduling.QueuedSteps` makes it.

    Args:
      rule: makes updates.
      losses: as in `Workers`.
      updates_rows: whether parameter servers update the rows of tables when a gradient is there.
      dealt: called with the numbers of gradients, the first and how many, when their closures are scheduled.
      dealt_again: called with a gradient that is dropped: another one gets its batch.
    """

    def __init__(
        self,
        num_workers: int,
        seconds: StepSeconds,
        costs: Costs,
        rule: GradientRule,
        *,
        losses: Losses | None = None,
        updates_rows: bool = False,
        dealt: Callable[[int, int], None] = lambda first, count: None,
        dealt_again: Callable[[Dropped], None] = lambda dropped: None,
    ) -> None:
        self.counts = Counts(dropped=rule.dropped)
        self.actions: list[Action] = []
        self.workers = Workers(
            num_workers,
            rule,
            seconds,
            costs,
            losses,
            read=self._read,
            arrived=self._arrived,
            lost=self._lost,
            ended=self._ended,
        )
        self._rule = rule
        self._costs = costs
        self._updates_rows = updates_rows
        self._dealt = dealt
        self._dealt_again = dealt_again
        self._unfinished: set[int] = set()  # gradients whose closures have not ended
        self._computed: set[int] = set()  # gradients at the parameter servers, neither applied nor discarded
        self._dropped: set[int] = set()  # gradients whose closures were taken and have not ended

    def schedule(self, num_steps: int, steps_left: int | None) -> None:
        """Applies one update, whatever `num_steps` is."""
        gradients = self._rule.deal(steps_left)
        if gradients:
            self._deal(gradients)
        self.workers.events.advance(self._rule.is_due)
        update = self._rule.take()
        self.counts.num_applied += len(update.numbers)
        self.counts.weight += sum(update.weights)
        self._drop(update.late)
        self.workers.rule_changed()
        num_before = self._rule.num_applied
        applied = Applied(update.numbers, update.weights, update.ages)
        done_s = self.workers.chief_done_s(self._costs.update_s)
        self.workers.events.at(done_s, self._apply, applied)
        self.workers.events.advance(lambda: self._rule.num_applied > num_before)

    def _deal(self, gradients: Sequence[Gradient]) -> None:
        closures = []
        for gradient in gradients:
            closures.append(Closure(gradient.number, 1, gradient))
            self._unfinished.add(gradient.number)
        self._dealt(gradients[0].number, len(gradients))
        self.workers.put(closures)

    def _apply(self, applied: Applied) -> None:
        self.actions.append(applied)
        self._computed.difference_update(applied.numbers)
        self.counts.count(CHIEF, max(applied.ages))
        self._rule.applied()
        self.workers.rule_changed()

    def _drop(self, dropped: Sequence[Dropped]) -> None:
        for each in dropped:
            if each.number in self._computed:
                self._computed.remove(each.number)
                self.actions.append(Discarded(each.number))
            elif each.was_taken:
                self._dropped.add(each.number)
            self._dealt_again(each)

    def join(self) -> None:
        self._drop(self._rule.drop())
        self.workers.rule_changed()
        self.workers.events.advance(lambda: not self._unfinished)
        self.workers.join()

    def _read(self, worker: int, number: int) -> None:
        self.actions.append(Read(number))

    def _arrived(self, worker: int, number: int) -> None:
        if self._updates_rows:
            self.actions.append(Arrived(number))
        if number in self._dropped:
            self._dropped.remove(number)
            self.actions.append(Discarded(number))
        else:
            self._computed.add(number)

    def _lost(self, number: int) -> None:
        self.counts.lost += 1
        self.actions.append(Lost(number))

    def _ended(self, closure: Closure) -> None:
        number = closure.first
        self._unfinished.remove(number)
        if number in self._dropped:  # its worker was lost
            self._dropped.remove(number)
            self.actions.append(Cancelled(number))


class DelayedCluster:
    """Each gradient is applied a drawn number of updates after its weights were read; no time passes.

    Update k, from 0, applies a gradient of the weights before update k - d, where d is drawn. After the beginning or a
    join, d is at most the number of updates since then (Dai et al.: Toward Understanding the Impact of Staleness in
    Distributed Machine Learning, ICLR 2019).

    Args:
      delay: draws the d of an update, by its number.
      longest: the greatest d.
      first: the number of the first update.
      dealt: called with the numbers of gradients, the first and how many, when they are scheduled.
    """

    now_s = 0.0
    num_lost = 0
    waited_s: Mapping[int, float] = MappingProxyType({})

    def __init__(
        self,
        delay: Callable[[int], int],
        longest: int,
        first: int,
        dealt: Callable[[int, int], None] = lambda first, count: None,
    ) -> None:
        self.counts = Counts()
        self.actions: list[Action] = []
        self._delay = delay
        self._longest = longest
        self._dealt = dealt
        self._begun = first  # no gradient is of earlier weights
        self._next = first  # the next update
        self._num_drawn = first
        self._num_scheduled = first
        self._due: dict[int, list[int]] = {}  # the gradients of the weights before an update
        self._ages: dict[int, int] = {}  # of gradients that are not applied yet

    def schedule(self, num_steps: int, steps_left: int | None) -> None:
        self._dealt(self._num_scheduled, num_steps)
        self._num_scheduled += num_steps
        # Later steps may need gradients of the weights before an update: it waits until it is known which.
        self._apply(self._num_scheduled - self._longest)

    def _apply(self, end: int) -> None:
        """Applies all updates before a number."""
        while self._next < end:
            self._draw(min(self._num_scheduled, self._next + self._longest + 1))
            number = self._next
            self.actions += [Read(each) for each in self._due.pop(number, ())]
            age = self._ages.pop(number)
            self.actions.append(Applied((number,), (1.0,), (age,)))
            self.counts.num_applied += 1
            self.counts.count(CHIEF, age)
            self._next += 1

    def _draw(self, end: int) -> None:
        for number in range(self._num_drawn, end):
            age = min(self._delay(number), number - self._begun)
            self._ages[number] = age
            self._due.setdefault(number - age, []).append(number)
        self._num_drawn = max(self._num_drawn, end)

    def join(self) -> None:
        self._apply(self._num_scheduled)
        self._begun = self._next
