"""What the coordinator does where TensorFlow's own would not go on."""

from __future__ import annotations

import threading

import pytest
import tensorflow as tf
from tensorflow.python.distribute.coordinator import cluster_coordinator
from tensorflow.python.eager import cancellation

from psrun import choices, strategy

pytestmark = pytest.mark.inprocess


def _slowly(number: tf.Tensor) -> tf.Tensor:
    product = tf.random.uniform([600, 600])
    for _ in range(4):
        product = tf.linalg.matmul(product, product) * 1e-3
    return number + tf.cast(product[0, 0] * 0, tf.int64)


def test_a_worker_whose_step_was_cancelled_reads_on(cluster_spec, monkeypatch):
    """TensorFlow cancels with the step the iterator that it reads from, for good, and says that the data is at its end.

    It is what happens when the connection between a worker and a parameter server breaks: the closure is run again.
    """
    coordinator = strategy.parameter_servers(cluster_spec[1], choices.NoPartitioner("none")).coordinator
    assert coordinator is not None
    iterator = iter(coordinator.create_per_worker_dataset(lambda: tf.data.Dataset.counter().map(_slowly)))

    @tf.function
    def steps(source):
        total = tf.constant(0, tf.int64)
        for _ in tf.range(50):
            total += next(source)
        return total

    closure = steps.get_concrete_function(iterator._values[0]._type_spec)
    coordinator.schedule(closure, args=(iterator,))
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
    found = coordinator.schedule(closure, args=(iterator,))
    coordinator.join()
    assert tries == ["Closure", "ResourceClosure", "Closure"]
    assert found.fetch() == sum(range(50))  # the data was made anew
