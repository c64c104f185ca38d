"""Consistency modes: what workers in this process do, as the parameter server observes it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

pytestmark = pytest.mark.inprocess

SMALL = ("trainer.epochs=2", "trainer.steps_per_epoch=20", "trainer.steps_per_execution=2", "evaluation=exact")


@dataclass
class Observed:
    """What the closures of rounds have seen when they began.

    Attributes:
      schedule: schedules round `number` of `num_rounds`.
      gap: the largest number of rounds that a worker had done more than the slowest.
      early: rounds that began before all rounds `delay` earlier were done.
      done: rounds by worker.
    """

    schedule: object
    gap: object
    early: object
    done: object
    updates: object


def observed(distribution, num_rounds, slow_s, delay=0):
    """Counts on the parameter server; each worker's rounds of ten updates take 2 ms, those of worker 0 `slow_s`."""
    import tensorflow as tf

    from psrun.training.parameter_server.slow_workers import wait

    num_workers = distribution.num_workers
    with tf.device("/job:ps/replica:0/task:0/device:CPU:0"):
        by_worker = tf.Variable(tf.zeros([num_workers], tf.int32))
        done = tf.Variable(tf.zeros([num_rounds], tf.int32))
        updates = tf.Variable(0)
        gap, early = tf.Variable(tf.zeros([1], tf.int32)), tf.Variable(tf.zeros([1], tf.int32))

    @tf.function
    def one(number):
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        seconds = tf.where(worker == 0, slow_s, 0.002)
        counts = by_worker.read_value()
        ahead = counts[worker] - tf.reduce_min(counts)
        missing = tf.reduce_sum(1 - done.read_value()[: tf.maximum(number - delay, 0)])
        gap.scatter_max(tf.IndexedSlices([ahead], [0]))
        early.scatter_add(tf.IndexedSlices([tf.cast(missing > 0, tf.int32)], [0]))
        with tf.control_dependencies([ahead, missing]):
            waited = wait(seconds)
        with tf.control_dependencies([waited]):
            done.scatter_update(tf.IndexedSlices([1], [number]))
            by_worker.scatter_add(tf.IndexedSlices([1], [worker]))
            for _ in range(10):
                updates.assign_add(1)

    one = one.get_concrete_function(tf.TensorSpec([], tf.int32))
    schedule = lambda closures, number: closures.schedule(one, (tf.constant(number),))  # noqa: E731
    return Observed(schedule, gap, early, by_worker, updates)


@pytest.fixture
def three_workers():
    from psrun.cluster import inprocess, strategy
    from psrun.config import choices

    spec = inprocess.start(num_workers=3, num_ps=1)
    return strategy.parameter_servers(spec, choices.NoPartitioner("none"))


@pytest.mark.thorough
def test_no_bound_is_broken_in_ten_thousand_updates_with_a_slow_worker(three_workers):
    from psrun.cluster.training_closures import TrainingClosures
    from psrun.config import choices

    num_rounds = 1000
    for mode, delay in (
        (choices.StaleSynchronous("ssp", staleness=2), 0),
        (choices.BoundedDelay("bounded_delay", max_delay=4), 4),
        (choices.Asynchronous("async"), 0),
    ):
        rounds = observed(three_workers, num_rounds, 0.01, delay)
        closures = TrainingClosures(three_workers, mode)
        for number in range(num_rounds if mode.needs_parameter_servers else 300):
            rounds.schedule(closures, number)
        closures.join()
        waited_s = closures.facts()["waited_s"]
        by_worker, gap = rounds.done.numpy().tolist(), int(rounds.gap.numpy()[0])
        if mode.staleness is not None:
            assert int(rounds.updates.numpy()) == 10_000
            assert 0 < gap <= 2
            assert max(by_worker) - min(by_worker) <= 3
            assert waited_s["worker-1"] > 10 * waited_s["worker-0"]
        elif mode.max_delay is not None:
            assert int(rounds.updates.numpy()) == 10_000
            assert not rounds.early.numpy()[0]
        else:  # this observes what the modes prevent
            assert gap > 2
            assert rounds.early.numpy()[0]


@pytest.mark.parametrize("trainer", ["custom_loop", pytest.param("fit", marks=pytest.mark.thorough)])
def test_workers_of_ssp_are_never_too_far_apart(train, trainer):
    result, _ = train(*SMALL, f"trainer={trainer}", "consistency=ssp", "consistency.staleness=1",
                      "cluster.slow_workers={0: 0.05}", "data.visitation=once", "data.audit=true")  # fmt: skip
    assert result["steps"]["applied"] == 40
    assert result["consistency"]["staleness"] == 1
    waited_s = result["consistency"]["waited_s"]
    assert waited_s["worker-1"] > 0.05  # of some 0.4 s, in which worker 0 alone works
