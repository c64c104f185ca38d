"""Which worker takes which closure, which gradients make an update, and what they weigh."""

from __future__ import annotations

import random

from psrun.closures.rules import Gradient, GradientRule, Update, WorkerClocks

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


def test_the_slowest_clock_is_known_after_any_order_of_events():
    """Beside a minimum over all live workers."""
    generator = random.Random(7)
    clocks, live, by_hand = WorkerClocks(5, staleness=1), set(range(5)), dict.fromkeys(range(5), 0)
    for _ in range(5_000):
        worker = generator.randrange(5)
        event = generator.choice(["finished"] * 8 + ["left", "returned"])
        if event == "finished":
            clocks.finished(worker, TICK)
            by_hand[worker] += 1
        elif event == "left":
            clocks.left(worker)
            live.discard(worker)
        elif worker not in live:
            clocks.returned(worker)
            by_hand[worker] = min((by_hand[each] for each in live), default=by_hand[worker])
            live.add(worker)
        for each in live:
            waits = by_hand[each] - min(by_hand[other] for other in live) > 1
            assert (clocks.choose(each, [TICK]) is None) == waits


def test_workers_ask_again_when_the_slowest_one_is_faster_or_lost():
    clocks = WorkerClocks(2, staleness=0)
    assert not clocks.finished(0, TICK)
    assert clocks.finished(1, TICK)
    assert not clocks.finished(0, TICK)
    assert clocks.left(1)
    assert not clocks.left(1)


def taken(rule, worker, queued):
    """The index of the gradient that a worker takes from a queue, or None."""
    place = rule.choose(worker, queued)
    return None if place is None else queued.pop(place).index


def update(rule):
    """The next update, which is applied."""
    assert rule.is_due()
    due = rule.take()
    rule.applied()
    return due


def test_each_worker_computes_its_own_gradient_of_the_same_weights_and_the_first_ones_count():
    rule = GradientRule(3, 2)
    queued = rule.deal(None)
    first = list(queued)
    assert [taken(rule, worker, queued) for worker in (2, 0)] == [2, 0]
    assert rule.choose(2, queued) is None  # worker 1 has not taken its own
    assert rule.choose(2, [*queued, None]) == 1
    assert not rule.is_due()
    rule.finished(0, first[0])
    rule.finished(2, first[2])
    assert taken(rule, 1, queued) == 1
    assert not rule.is_over(first[1])
    due = rule.take()
    assert (due.numbers, due.weights, due.ages, due.late, due.kept) == ([0, 2], [1.0, 1.0], [0, 0], [(1, True)], [])
    assert rule.is_over(first[1])
    rule.applied()
    queued = rule.deal(None)
    second = list(queued)
    assert [(each.number, each.index) for each in second] == [(3, 0), (4, 1), (5, 2)]
    assert [taken(rule, worker, queued) for worker in (0, 2)] == [0, 2]
    rule.finished(1, first[1])  # too late
    assert dict(rule.dropped) == {1: 1}
    assert taken(rule, 1, queued) == 1
    for worker in (1, 2, 0):
        rule.finished(worker, second[worker])
    assert update(rule).numbers == [4, 5]
    assert dict(rule.dropped) == {1: 1, 0: 1}
    assert len(rule.deal(1)) == 2  # the last update of an epoch: no gradient more than it has


def test_the_gradients_of_a_lost_worker_are_computed_by_others():
    rule = GradientRule(2, 2)
    queued = rule.deal(None)
    own = list(queued)
    assert [taken(rule, worker, queued) for worker in (0, 1)] == [0, 1]
    assert rule.left(1)
    queued.append(own[1])  # put back
    assert rule.num_live == 1
    rule.finished(0, own[0])
    assert taken(rule, 0, queued) == 1
    rule.finished(0, own[1])
    rule.finished(0, own[1])  # again, as its result was in transit
    assert update(rule).numbers == [0, 1]
    assert not rule.dropped
    rule.returned(1)
    assert rule.num_live == 2


def test_with_fewer_live_workers_an_update_has_fewer_gradients_but_never_less_than_the_least():
    rule = GradientRule(3, 3, least=2)
    rule.left(0)
    assert len(rule.deal(None)) == rule.num_averaged == 2
    rule.drop()
    rule.left(1)
    assert len(rule.deal(None)) == rule.num_averaged == 2


def test_nobody_waits_for_a_global_batch_and_too_old_gradients_are_dropped():
    rule = GradientRule(2, 2, tolerance=1, decay=0.5, waits=False)
    queued = rule.deal(None)
    dealt = list(queued)
    assert len(dealt) == rule.most_pending == 4
    assert [taken(rule, worker, queued) for worker in (0, 1)] == [0, 1]
    rule.finished(0, dealt[0])
    assert taken(rule, 0, queued) == 2
    rule.finished(0, dealt[2])
    assert update(rule) == Update([0, 2], [1.0, 1.0], [0, 0], late=[], kept=[1, 3])
    queued += rule.deal(None)
    third, fourth = queued[0], queued[1]
    assert taken(rule, 0, queued) == 3
    rule.finished(0, third)
    rule.finished(1, dealt[1])  # one update was applied meanwhile
    assert update(rule) == Update([1, 3], [0.5, 1.0], [1, 0], late=[], kept=[4, 5])
    queued += rule.deal(None)
    taken(rule, 1, queued)  # the fourth
    for _ in range(2):
        for _ in range(2):
            mark = queued[0]
            taken(rule, 0, queued)
            rule.finished(0, mark)
        due = update(rule)
        queued += rule.deal(None)
    assert due.late == [(fourth.number, True)]  # it would be of weights of two updates before
    assert rule.is_over(fourth)
    rule.finished(1, fourth)
    assert dict(rule.dropped) == {1: 1}


def test_a_gradient_keeps_its_age_when_another_worker_computes_it_again():
    """Some servers may have the gradient of the lost worker."""
    rule = GradientRule(2, 1, tolerance=2, waits=False)
    queued = rule.deal(None)
    lost = queued[0]
    taken(rule, 0, queued)
    mark = queued[0]
    taken(rule, 1, queued)
    rule.finished(1, mark)
    update(rule)
    rule.left(0)
    queued.insert(0, lost)
    taken(rule, 1, queued)
    rule.finished(1, lost)
    assert update(rule).ages == [1]


def test_a_worker_waits_for_the_update_with_its_gradient_however_old_others_are():
    rule = GradientRule(3, 2, least=1, tolerance=None)
    queued = rule.deal(None)
    dealt = list(queued)
    assert [taken(rule, worker, queued) for worker in (0, 1, 2)] == [0, 1, 2]
    for _ in range(5):
        marks = dealt[:2]
        assert not rule.is_due()
        for worker in (0, 1):
            rule.finished(worker, marks[worker])
            assert rule.choose(worker, []) is None
        due = rule.take()
        assert due.numbers == [mark.number for mark in marks]
        assert due.late == []
        rule.applied()
        queued = rule.deal(None)
        dealt = list(queued)
        assert len(dealt) == 2
        assert [taken(rule, worker, queued) for worker in (0, 1)] == [0, 1]
    rule.finished(2, Gradient(2, 2))
    rule.finished(0, dealt[0])
    assert update(rule).ages == [5, 0]
    rule.left(1)
    rule.left(2)
    rule.drop()
    assert len(rule.deal(None)) == rule.num_averaged == 1


def test_what_is_dropped_at_a_join_is_counted_if_it_was_computed():
    rule = GradientRule(2, 2, tolerance=3, waits=False)
    queued = rule.deal(None)
    mark = queued[0]
    taken(rule, 1, queued)
    rule.finished(1, mark)
    assert rule.drop() == [(0, True), *((number, False) for number in range(1, 6))]
    assert dict(rule.dropped) == {1: 1}
    assert not rule.is_due()


def test_a_closure_that_updates_rows_runs_to_its_end_although_its_gradient_is_dropped():
    rule = GradientRule(2, 1, tolerance=1, waits=False, updates_rows=True)
    queued = rule.deal(None)
    slow = queued[0]
    taken(rule, 0, queued)
    for _ in range(2):
        mark = queued[0]
        taken(rule, 1, queued)
        rule.finished(1, mark)
        due = update(rule)
    assert due.late == [(slow.number, True)]
    assert not rule.is_over(slow)  # its worker may be lost: another one has to update the rest of the rows
    rule.finished(0, slow)
    assert rule.is_over(slow)
    assert dict(rule.dropped) == {0: 1}
    begun = queued[0]
    taken(rule, 1, queued)
    assert rule.drop() == [(begun.number, True), *((mark.number, False) for mark in queued)]
    assert [rule.is_over(mark) for mark in (begun, *queued)] == [False, *(True for _ in queued)]
