"""The bound on closures in flight, with workers in this process."""

from __future__ import annotations

import threading
import time

import pytest
import tensorflow as tf

from psrun.closures.training_closures import InFlightClosures
from psrun.cluster import strategy
from psrun.config import choices
from psrun.tf_internals.closure_queue import has_ended

pytestmark = pytest.mark.inprocess

WITHIN_S = 60.0


@pytest.fixture
def cluster(cluster_spec):
    return strategy.parameter_servers(cluster_spec[2], choices.NoPartitioner("none"))


@pytest.fixture
def blocking(cluster):
    """A function for workers that returns its argument, and a function that ends the call with 0, which waits."""
    with tf.device("/job:ps/replica:0/task:0"):
        queue = tf.queue.FIFOQueue(1, tf.bool, shapes=[])

    @tf.function
    def call(number):
        return number + tf.cast(queue.dequeue(), tf.int64) if number == 0 else number

    def release():
        with tf.device("/job:ps/replica:0/task:0"):
            queue.enqueue(False)

    return call.get_concrete_function(tf.TensorSpec([], tf.int64)), release


def test_a_slow_worker_delays_only_its_own_closures(cluster, blocking):
    function, release = blocking
    in_flight, finished = InFlightClosures(cluster), []
    timer = threading.Timer(WITHIN_S, release)
    timer.start()
    for number in range(3 * in_flight.most):
        scheduled = cluster.coordinator.schedule(function, args=(tf.constant(number, tf.int64),))
        finished += in_flight.add(scheduled)
    assert timer.is_alive()
    assert len(finished) == 2 * in_flight.most
    timer.cancel()
    release()
    assert sorted(int(closure.fetch()) for closure in finished)[0] > 0
    in_flight.join()


def test_closures_are_awaited_in_order_where_that_is_asked_for(cluster, blocking):
    function, release = blocking
    in_flight = InFlightClosures(cluster, 1, in_order=True)
    threading.Timer(0.5, release).start()
    closures = []
    for number in range(6):
        closures += in_flight.add(cluster.coordinator.schedule(function, args=(tf.constant(number, tf.int64),)))
    closures += in_flight.rest()
    assert [int(closure.fetch()) for closure in closures] == list(range(6))


@pytest.mark.parametrize("max_delay", [0, 3])
def test_no_round_starts_before_those_that_it_has_to_wait_for(cluster, blocking, max_delay):
    function, release = blocking
    in_flight, scheduled = InFlightClosures(cluster, max_delay=max_delay), []

    def release_when_scheduled():
        while len(scheduled) <= max_delay:
            time.sleep(0.01)
        num_scheduled.append(len(scheduled))
        release()

    num_scheduled = []
    threading.Thread(target=release_when_scheduled).start()
    for number in range(20):
        scheduled.append(cluster.coordinator.schedule(function, args=(tf.constant(number, tf.int64),)))
        in_flight.add(scheduled[-1])
        assert all(has_ended(closure) for closure in scheduled[: max(0, number + 1 - max_delay)])
    assert num_scheduled == [max_delay + 1]  # the first one was still running
    in_flight.join()


@pytest.mark.parametrize("in_order", [True, False])
def test_the_error_of_a_closure_is_raised(cluster, in_order):
    @tf.function
    def check(number):
        return tf.debugging.check_numerics(1 / tf.cast(number - 5, tf.float32), "five")

    function = check.get_concrete_function(tf.TensorSpec([], tf.int64))
    in_flight = InFlightClosures(cluster, in_order=in_order)

    def schedule():
        for number in range(100):
            in_flight.add(cluster.coordinator.schedule(function, args=(tf.constant(number, tf.int64),)))
        in_flight.join()

    with pytest.raises(tf.errors.InvalidArgumentError):
        schedule()
