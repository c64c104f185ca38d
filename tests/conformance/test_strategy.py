"""What the coordinator does where TensorFlow's own would not go on."""

from __future__ import annotations

import threading

import pytest
import tensorflow as tf
from tensorflow.python.distribute.coordinator import cluster_coordinator
from tensorflow.python.eager import cancellation

from psrun.closures.input_streams import DealtInput, Stream
from psrun.cluster import strategy
from psrun.config import choices

pytestmark = pytest.mark.inprocess


def _slowly(number: tf.Tensor) -> tf.Tensor:
    product = tf.random.uniform([600, 600])
    for _ in range(4):
        product = tf.linalg.matmul(product, product) * 1e-3
    return number + tf.cast(product[0, 0] * 0, tf.int64)


def _stream() -> Stream:
    return Stream(lambda context, numbers: tf.data.Dataset.counter().map(_slowly))


def _dealt() -> DealtInput:
    return DealtInput(lambda context, numbers: numbers().map(lambda number: (number, number, _slowly(number))), 0)


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
