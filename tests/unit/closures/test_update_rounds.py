"""Synchronous training: who computes the gradients of a round, and which of them make the update."""

from __future__ import annotations

from psrun.closures.synchronous_steps import Slot, UpdateRounds


def taken(rounds, worker, queued):
    """The slot that a worker takes from a queue, or None."""
    place = rounds.choose(worker, queued)
    return None if place is None else queued.pop(place).index


def test_each_worker_computes_one_gradient_of_a_round_and_the_first_ones_count():
    rounds = UpdateRounds(3)
    rounds.begin()
    queued = [Slot(1, index) for index in range(3)]
    assert [taken(rounds, worker, queued) for worker in (2, 0)] == [0, 1]
    assert rounds.choose(2, queued) is None  # worker 1 has not taken its own
    assert rounds.choose(2, [*queued, None]) == 1
    rounds.finished(0, Slot(1, 1))
    rounds.finished(2, Slot(1, 0))
    assert taken(rounds, 1, queued) == 2
    assert not rounds.is_over(Slot(1, 2))
    assert rounds.choose_first(2) == [0, 1]
    assert rounds.is_over(Slot(1, 2))
    rounds.begin()
    assert rounds.is_over(Slot(1, 2))
    queued = [Slot(2, index) for index in range(3)]
    assert [taken(rounds, worker, queued) for worker in (0, 2)] == [0, 1]
    rounds.finished(1, Slot(1, 2))  # too late
    assert dict(rounds.dropped) == {1: 1}
    assert taken(rounds, 1, queued) == 2
    for worker in (1, 0, 2):
        rounds.finished(worker, Slot(2, (1 + worker) % 3))
    assert rounds.choose_first(2) == [1, 2]
    assert dict(rounds.dropped) == {1: 1, 2: 1}


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
