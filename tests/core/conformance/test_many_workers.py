"""The queue of a coordinator with a thousand workers, some of which are lost, in every consistency mode."""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest
from fake_workers import Lost, Workers

from psrun.closures.rules import Gradient
from psrun.closures.scheduling import AsynchronousClosures, QueuedClosures
from psrun.config import choices

pytestmark = [pytest.mark.tensorflow, pytest.mark.thorough]

MANY = 1024
ASYNCHRONOUS = {
    "async": choices.Asynchronous("async"),
    "ssp": choices.StaleSynchronous("ssp", staleness=1),
    "bounded_delay": choices.BoundedDelay("bounded_delay", max_delay=1500),
}
QUEUED = {
    "sync": (choices.Synchronous("sync", backup_workers=0, min_workers=None), MANY),
    "backup workers": (choices.Synchronous("sync", backup_workers=24, min_workers=None), MANY - 24),
    "gba": (choices.GlobalBatch("gba", gradients=None, tolerance=2, decay=1.0), MANY),
    "small gba": (choices.GlobalBatch("gba", gradients=64, tolerance=40, decay=1.0), 64),
    "k_async": (choices.KAsynchronous("k_async", gradients=100), 100),
}


def test_no_worker_computes_a_gradient_that_was_dropped_before_it_took_it():
    """A worker that waits for the update with its gradient is free when that is taken from the queue."""
    done, executed = threading.Event(), []

    def execute(worker: int, number: int) -> None:
        executed.append((worker, number))
        if worker == 0:
            assert done.wait(60)

    cluster = Workers(2, execute)
    closures = QueuedClosures(cluster, choices.Synchronous("sync", backup_workers=1, min_workers=None))
    late = []
    try:
        for _ in range(20):
            closures.deal(
                None, lambda gradient: closures.schedule_gradient(None, (gradient.number,), gradient), together=True
            )
            late += closures.next_update().late
            closures.applied(seconds=0.0)
        never = {number for number, was_taken in late if not was_taken}
        assert len(never) == 19  # worker 0 takes one
        assert not never & {number for _, number in executed}
    finally:
        done.set()
        closures.join()
        cluster.stop()


def test_an_update_has_its_gradients_while_workers_are_lost():
    """One worker that is left computes them one after the other: with fewer, an epoch would leave out examples."""
    lost = threading.Event()

    def execute(worker: int, number: int) -> None:
        if worker and not lost.is_set():
            raise Lost

    cluster = Workers(3, execute, lost_s=0.3)
    closures = QueuedClosures(cluster, choices.KAsynchronous("k_async", gradients=2))
    try:
        for _ in range(10):
            closures.deal(None, lambda gradient: closures.schedule_gradient(None, (0,), gradient), together=False)
            assert len(closures.next_update().numbers) == 2
            closures.applied(seconds=0.0)
    finally:
        lost.set()
        closures.drop()
        closures.join()
        cluster.stop()


@pytest.fixture
def executed():
    """Workers of which one in fifty executions is lost, and how often each argument was executed, and by whom."""
    generator, lock = random.Random(3), threading.Lock()
    numbers: Counter[int] = Counter()
    workers: Counter[int] = Counter()

    def execute(worker: int, number: int) -> None:
        with lock:
            if generator.random() < 0.02:
                raise Lost
            numbers[number] += 1
            workers[worker] += 1

    made = Workers(MANY, execute, lost_s=0.05)
    yield made, numbers, workers
    made.stop()


@pytest.mark.parametrize("mode", ASYNCHRONOUS)
def test_each_closure_is_executed_once_and_each_worker_has_some(executed, mode):
    cluster, numbers, workers = executed
    closures = AsynchronousClosures(cluster, ASYNCHRONOUS[mode])
    for number in range(4 * MANY):
        closures.schedule(None, (number,))
    closures.join()
    assert numbers == Counter(range(4 * MANY))
    assert len(workers) == MANY
    if mode == "ssp":
        assert max(workers.values()) - min(workers.values()) <= 8  # lost ones begin again at the slowest clock


@pytest.mark.parametrize("mode", QUEUED)
def test_each_gradient_is_in_one_update_and_each_worker_computes_some(executed, mode):
    cluster, numbers, workers = executed
    chosen, in_update = QUEUED[mode]
    closures = QueuedClosures(cluster, chosen)

    def schedule(gradient: Gradient) -> None:
        closures.schedule_gradient(None, (gradient.number,), gradient)

    applied: list[int] = []
    num_updates = 4 * MANY // in_update
    for left in range(num_updates, 0, -1):
        closures.deal(left, schedule, together=False)
        applied += closures.next_update().numbers
        closures.applied(seconds=0.0)
    closures.drop()
    closures.join()
    assert len(applied) == len(set(applied)) == num_updates * in_update
    assert set(applied) <= set(numbers)
    assert len(workers) > 0.9 * MANY
