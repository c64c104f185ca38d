"""The bound on closures in flight, with workers in this process."""

from __future__ import annotations

import threading
import time

import pytest
import tensorflow as tf
from tensorflow.python.distribute.coordinator import cluster_coordinator
from tensorflow.python.eager import cancellation

from psrun.closures.input_streams import DealtInput, NextBatches, Stream
from psrun.closures.training_closures import InFlightClosures
from psrun.cluster import strategy
from psrun.config import choices
from psrun.tf_internals.coordinator import has_ended

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


# -- what the coordinator does where TensorFlow's own would not go on


def _slowly(number: tf.Tensor) -> tf.Tensor:
    product = tf.random.uniform([600, 600])
    for _ in range(4):
        product = tf.linalg.matmul(product, product) * 1e-3
    return number + tf.cast(product[0, 0] * 0, tf.int64)


def _stream() -> Stream:
    return Stream(lambda context, numbers: tf.data.Dataset.counter().map(_slowly))


def _dealt() -> DealtInput:
    return DealtInput(lambda context, numbers: numbers().map(lambda number: (number, _slowly(number))), NextBatches(0))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("make", "firsts"),
    [
        # A worker's own stream begins anew.
        (_stream, (0, 50)),
        (_dealt, (50, 100)),  # a worker reads the rows that it was dealt
    ],
)
def test_a_worker_whose_step_was_cancelled_reads_on(cluster_spec, monkeypatch, make, firsts):
    """TensorFlow cancels with the step the iterator that it reads from, for good, and reports the end of the data.

    It is what happens when the connection between a worker and a parameter server breaks: the closure is run again.
    """
    coordinator = strategy.parameter_servers(cluster_spec[1], choices.NoPartitioner("none")).coordinator
    assert coordinator is not None
    feed = make()
    iterator = feed.iterator(coordinator)

    @tf.function
    def steps(source, *arguments):
        total = tf.constant(0, tf.int64)
        inputs = dict(zip(feed.inputs(), arguments))
        feed.begin(50, inputs)
        for place in tf.range(50):
            total += feed.taker(source, place, inputs)()
        return total

    closure = steps.get_concrete_function(iterator._values[0]._type_spec, *feed.inputs().values())
    coordinator.schedule(closure, args=(iterator, *feed.deal(50).values()))
    coordinator.join()
    execute, tries = cluster_coordinator.Closure.execute_on, []

    def execute_on(self, worker):
        tries.append(type(self).__name__)
        function = self._function
        if len(tries) == 1:
            manager = cancellation.CancellationManager()
            self._function = manager.get_cancelable_function(closure)
            threading.Timer(0.1, manager.start_cancel).start()  # into the middle: the closure takes much longer
        try:
            return execute(self, worker)
        finally:
            self._function = function

    monkeypatch.setattr(cluster_coordinator.Closure, "execute_on", execute_on)
    retried = coordinator.schedule(closure, args=(iterator, *feed.deal(50).values()))
    after = coordinator.schedule(closure, args=(iterator, *feed.deal(50).values()))
    coordinator.join()
    assert tries[:2] == ["Closure", "ResourceClosure"]  # the data is made anew
    assert sorted(tries[2:]) == ["Closure", "Closure"]
    assert {int(retried.fetch()), int(after.fetch())} == {sum(range(first, first + 50)) for first in firsts}
