"""Stale synchronous parallel: which worker may take the next execution."""

from __future__ import annotations

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
