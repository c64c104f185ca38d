"""Virtual clusters without TensorFlow: their speed, the age of weights, and each gradient applied once."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from psrun.closures.rules import GradientRule
from psrun.errors import TrainingError
from psrun.virtual.losses import Losses, Saves, ServerLosses
from psrun.virtual.simulation import (
    CHIEF,
    Applied,
    AsynchronousCluster,
    Cancelled,
    Costs,
    Discarded,
    Events,
    Lost,
    QueuedCluster,
    Read,
)
from psrun.virtual.times import StepSeconds

FREE = Costs()


def asynchronous(num_workers, steps, seconds, costs=FREE, *, length=1, **options):
    cluster = AsynchronousCluster(num_workers, seconds, costs, **options)
    for _ in range(steps // length):
        cluster.schedule(length, None)
    cluster.join()
    return cluster


def queued(num_workers, updates, seconds, costs=FREE, *, most=None, losses=None, **options):
    rule = GradientRule(num_workers, most or num_workers, **options)
    rows = options.get("updates_rows", False)
    cluster = QueuedCluster(num_workers, seconds, costs, rule, losses=losses, updates_rows=rows)
    for update in range(updates):
        cluster.schedule(1, updates - update)
    cluster.join()
    return cluster


def mean_staleness(cluster):
    total = sum(cluster.counts.staleness.values(), Counter())
    return sum(age * count for age, count in total.items()) / total.total()


def test_the_steps_of_one_worker_follow_each_other():
    costs = Costs(closure_s=0.0, start_s=0.01, read_s=[0.02], push_s=[0.03])
    cluster = asynchronous(1, 10, StepSeconds(0.1), costs, length=10)
    assert cluster.now_s == pytest.approx(0.01 + 10 * (0.02 + 0.03 + 0.1))
    assert cluster.counts.staleness == {0: {0: 10}}


def test_a_step_sends_four_messages():
    cluster = asynchronous(1, 4000, StepSeconds(0.1, latency_s=0.05), length=4000)
    assert cluster.now_s == pytest.approx(4000 * (0.1 + 4 * 0.05), rel=0.03)


def test_messages_bring_workers_out_of_step():
    together = asynchronous(8, 800, StepSeconds(0.1))
    apart = asynchronous(8, 800, StepSeconds(0.1, latency_s=0.001))
    assert mean_staleness(together) == pytest.approx(3.5)  # all read, then all push
    assert mean_staleness(apart) == pytest.approx(7, rel=0.1)


def test_workers_wait_for_the_chief_at_the_begin_of_each_epoch_and_not_between_them():
    cluster = AsynchronousCluster(4, StepSeconds(1.0), Costs(closure_s=0.01))
    for _ in range(3):
        for _ in range(4):
            cluster.schedule(1, None)
        cluster.join()
    assert cluster.waited_s == pytest.approx({worker: 3 * 0.01 * worker for worker in range(4)})


@pytest.mark.parametrize("num_workers", [2, 8, 64])
def test_workers_of_equal_speed_are_as_stale_as_there_are_others(num_workers):
    cluster = asynchronous(num_workers, 100 * num_workers, StepSeconds(0.1, 0.1))
    assert cluster.now_s == pytest.approx(0.1 * 100, rel=0.05)
    assert mean_staleness(cluster) == pytest.approx(num_workers - 1, rel=0.02)


def test_a_server_that_is_busy_limits_all_workers():
    costs = Costs(read_s=[0.01, 0.001], push_s=[0.002, 0.001])
    cluster = asynchronous(16, 1600, StepSeconds(0.01), costs)
    assert 1600 / cluster.now_s == pytest.approx(100, rel=0.02)


def test_the_chief_limits_all_workers_unless_closures_have_more_steps():
    costs = Costs(closure_s=0.01)
    assert 1600 / asynchronous(64, 1600, StepSeconds(0.01), costs).now_s == pytest.approx(100, rel=0.02)
    longer = asynchronous(64, 16_000, StepSeconds(0.01), costs, length=10)
    assert 16_000 / longer.now_s == pytest.approx(1000, rel=0.02)


@pytest.mark.parametrize("staleness", [0, 3])
def test_no_worker_is_further_ahead_than_the_staleness(staleness):
    """A worker may read for its next step while its clock is ahead by the staleness."""
    slow = StepSeconds(0.1, slow_s={0: 0.9})
    cluster = asynchronous(4, 200, slow, staleness=staleness)
    clocks = Counter({worker: counts.total() for worker, counts in cluster.counts.staleness.items()})
    assert cluster.now_s >= min(clocks.values()) * 1.0
    assert max(clocks.values()) - min(clocks.values()) <= staleness + 1
    free = asynchronous(4, 200, slow)
    assert free.now_s < cluster.now_s / 2


def test_rounds_wait_for_all_but_the_last_ones():
    cluster = asynchronous(4, 40, StepSeconds(0.1), max_delay=1)
    assert cluster.now_s == pytest.approx(0.1 * 20)  # two rounds at a time
    assert max(max(counts) for counts in cluster.counts.staleness.values()) == 1


def test_a_synchronous_update_waits_for_the_slowest_and_not_with_a_backup_worker():
    slow = StepSeconds(0.1, slow_s={0: 0.9})
    assert queued(4, 10, slow).now_s == pytest.approx(10 * 1.0)
    cluster = queued(4, 10, slow, most=3)
    assert cluster.now_s < 2.5
    assert cluster.counts.dropped[0] >= 1
    assert set(cluster.counts.staleness[CHIEF]) == {0}


@pytest.mark.parametrize("tolerance", [1, 4])
def test_no_gradient_of_a_global_batch_is_older_than_the_tolerance(tolerance):
    cluster = queued(8, 200, StepSeconds(0.1, 1.0), tolerance=tolerance, waits=False)
    ages = [age for action in cluster.actions if isinstance(action, Applied) for age in action.ages]
    assert max(ages) == tolerance
    assert cluster.counts.dropped.total() > 0


MODES = {
    "async": {},
    "ssp": {"staleness": 2},
    "bounded_delay": {"max_delay": 3},
    "sync": {"most": 8},
    "backup workers": {"most": 6},
    "gba": {"most": 8, "tolerance": 1, "waits": False},
    "gba of few": {"most": 3, "tolerance": 2, "waits": False},
    "k_async": {"most": 3, "tolerance": None},
    "hybrid": {"most": 8, "tolerance": 1, "waits": False, "updates_rows": True},
    "hybrid of synchronous updates": {"most": 6, "updates_rows": True},
}


def run(mode, seed, num_workers=8, steps=60, losses=None):
    seconds = StepSeconds(0.1, 1.0, {3: 0.4}, 0.1, 0.7, 0.002, seed)
    costs = Costs(closure_s=0.001, update_s=0.01, read_s=[0.003, 0.001], push_s=[0.004, 0.001])
    options = MODES[mode] | {"losses": losses}
    if "most" in options:
        return queued(num_workers, steps, seconds, costs, **options)
    return asynchronous(num_workers, steps, seconds, costs, **options)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(3))
def test_each_gradient_is_read_once_and_then_applied_or_discarded_once(mode, seed):
    cluster = run(mode, seed)
    open_ = set()
    for action in cluster.actions:
        if isinstance(action, Read):
            assert action.number not in open_
            open_.add(action.number)
        elif isinstance(action, Applied):
            assert open_.issuperset(action.numbers)
            open_.difference_update(action.numbers)
        elif isinstance(action, Discarded):
            open_.remove(action.number)
    assert not open_
    updates = sum(isinstance(action, Applied) for action in cluster.actions)
    assert updates == 60
    assert run(mode, seed).actions == cluster.actions
    assert run(mode, seed + 7).actions != cluster.actions


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(3))
def test_a_gradient_that_is_lost_with_its_worker_is_read_for_again_or_cancelled(mode, seed):
    cluster = run(mode, seed, losses=Losses(1.0, 0.5, str(seed)))
    open_ = set()
    lost = set()
    ended = set()
    for action in cluster.actions:
        match action:
            case Read(number):
                assert number not in open_ | ended
                lost.discard(number)
                open_.add(number)
            case Lost(number):
                open_.remove(number)
                lost.add(number)
            case Applied(numbers):
                assert open_.issuperset(numbers)
                open_.difference_update(numbers)
                ended.update(numbers)
            case Discarded(number):
                open_.remove(number)
                ended.add(number)
            case Cancelled(number):
                assert number not in open_ | ended
                lost.discard(number)
                ended.add(number)
    assert not open_
    assert not lost
    assert sum(isinstance(action, Applied) for action in cluster.actions) == 60
    assert cluster.counts.lost == sum(isinstance(action, Lost) for action in cluster.actions) > 0


def test_workers_that_are_away_half_of_the_time_do_half_of_the_steps():
    cluster = asynchronous(16, 16_000, StepSeconds(0.1, 0.1), losses=Losses(5.0, 5.0, "seed"))
    assert 16_000 / cluster.now_s == pytest.approx(160 / 2, rel=0.1)


def test_synchronous_updates_go_on_without_lost_workers():
    cluster = queued(4, 400, StepSeconds(0.1), least=1, losses=Losses(5.0, 20.0, "seed"))
    assert cluster.now_s < 60
    assert cluster.counts.num_applied < 4 * 400


def test_a_lost_server_costs_what_followed_the_newest_checkpoint():
    per_s, back_s, interval_s = 1 / 30, 4.0, 25.0
    losses = ServerLosses(3, Losses(3 / per_s, back_s, "seed"), Saves(every_steps=10))
    for step in range(1, 40_001):
        losses.advance(step * interval_s / 10, 1)
    expected_s = (1 / per_s + back_s) * math.expm1(per_s * interval_s)  # Daly, 2006
    assert losses.lost_s / 4000 == pytest.approx(expected_s - interval_s, rel=0.05)
    assert losses.num_lost > 4000


def test_servers_that_are_always_lost_before_a_checkpoint_are_an_error():
    losses = ServerLosses(100, Losses(100.0, 1.0, "seed"), Saves())
    with pytest.raises(TrainingError, match=r"choose a larger cluster\.ps_mtbf_s, or more checkpoints"):
        losses.advance(1000.0, 10)


def test_a_wait_that_cannot_end_is_an_error():
    with pytest.raises(RuntimeError, match="never happens"):
        Events().advance(lambda: False)


def test_times_have_the_mean_and_the_deviation_that_are_asked_for():
    seconds = StepSeconds(0.2, 0.5, {1: 1.0}, seed=3)
    drawn = [seconds(0) for _ in range(20_000)]
    mean = sum(drawn) / len(drawn)
    assert mean == pytest.approx(0.2, rel=0.02)
    variance = sum((value - mean) ** 2 for value in drawn) / len(drawn)
    assert variance**0.5 == pytest.approx(0.1, rel=0.05)
    assert sum(seconds(1) for _ in range(2000)) / 2000 == pytest.approx(1.2, rel=0.05)
    assert min(seconds(1) for _ in range(2000)) > 1.0
    seconds.begin(7)
    first = [seconds(0) for _ in range(5)]
    seconds.begin(7)
    assert [seconds(0) for _ in range(5)] == first
