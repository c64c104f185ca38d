"""Which worker takes which closure: stale synchronous parallel, and the rounds of synchronous training."""

from __future__ import annotations

from psrun.closures.scheduling import Slot, UpdateRounds
from psrun.closures.training_closures import WorkerClocks

TICK, OTHER = True, None


def test_a_worker_waits_while_it_is_too_far_ahead_of_the_slowest_live_one():
    clocks = WorkerClocks(3, staleness=1)
    assert clocks.choose(0, []) is None
    assert clocks.choose(0, [TICK, TICK]) == 0
    clocks.finished(0, TICK)
    assert clocks.choose(0, [TICK]) == 0
    clocks.finished(0, TICK)
    assert clocks.choose(0, [TICK]) is None
    assert clocks.choose(0, [TICK, OTHER]) == 1  # an evaluation waits for nobody
    clocks.finished(1, TICK)
    assert clocks.choose(0, [TICK]) is None
    clocks.finished(2, TICK)
    assert clocks.choose(0, [TICK]) == 0


def test_a_lost_worker_delays_nobody_and_is_one_of_the_slowest_when_it_is_back():
    clocks = WorkerClocks(3, staleness=0)
    clocks.finished(0, TICK)
    clocks.finished(2, TICK)
    assert clocks.choose(0, [TICK]) is None
    clocks.left(1)
    assert clocks.choose(0, [TICK]) == 0
    clocks.finished(0, TICK)
    clocks.returned(1)
    assert clocks.choose(1, [TICK]) == 0
    assert clocks.choose(0, [TICK]) is None
    clocks.finished(1, TICK)
    assert clocks.choose(0, [TICK]) is None  # worker 2 is at 1, too
    for worker in (0, 1, 2):
        clocks.left(worker)
    clocks.returned(0)  # the first one back
    assert clocks.choose(0, [TICK]) == 0


def taken(rounds, worker, queued):
    """The slot that a worker takes from a queue, or None."""
    place = rounds.choose(worker, queued)
    return None if place is None else queued.pop(place).index


def test_each_worker_computes_its_own_gradient_of_a_round_and_the_first_ones_count():
    rounds = UpdateRounds(3)
    rounds.begin()
    queued = [Slot(1, index) for index in range(3)]
    assert [taken(rounds, worker, queued) for worker in (2, 0)] == [2, 0]
    assert rounds.choose(2, queued) is None  # worker 1 has not taken its own
    assert rounds.choose(2, [*queued, None]) == 1
    rounds.finished(0, Slot(1, 0))
    rounds.finished(2, Slot(1, 2))
    assert taken(rounds, 1, queued) == 1
    assert not rounds.is_over(Slot(1, 1))
    assert rounds.choose_first(2) == [0, 2]
    assert rounds.is_over(Slot(1, 1))
    rounds.begin()
    assert rounds.is_over(Slot(1, 1))
    queued = [Slot(2, index) for index in range(3)]
    assert [taken(rounds, worker, queued) for worker in (0, 2)] == [0, 2]
    rounds.finished(1, Slot(1, 1))  # too late
    assert dict(rounds.dropped) == {1: 1}
    assert taken(rounds, 1, queued) == 1
    for worker in (1, 2, 0):
        rounds.finished(worker, Slot(2, worker))
    assert rounds.choose_first(2) == [1, 2]
    assert dict(rounds.dropped) == {1: 1, 0: 1}


def test_the_gradients_of_a_lost_worker_are_computed_by_others():
    rounds = UpdateRounds(2)
    rounds.begin()
    queued = [Slot(1, 0), Slot(1, 1)]
    assert [taken(rounds, worker, queued) for worker in (0, 1)] == [0, 1]
    rounds.left(1)
    queued.append(Slot(1, 1))  # put back
    assert rounds.num_live == 1
    rounds.finished(0, Slot(1, 0))
    assert taken(rounds, 0, queued) == 1
    rounds.finished(0, Slot(1, 1))
    rounds.finished(0, Slot(1, 1))  # again, as its result was in transit
    assert rounds.choose_first(2) == [0, 1]
    assert not rounds.dropped
    rounds.returned(1)
    assert rounds.num_live == 2
