"""Consistency modes: what workers in this process do, as the parameter server observes it."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import counting
import numpy as np
import pytest
import tensorflow as tf
from outcomes import check_equal
from support import REPOSITORY, TABLED, run_config, variables

from psrun.checkpoint.storage import Store
from psrun.closures.delays import wait
from psrun.closures.input_streams import DealtInput, NextBatches
from psrun.closures.scheduling import AsynchronousClosures
from psrun.cluster import strategy
from psrun.config import choices
from psrun.results import tracking
from psrun.results.run_folder import RunFolder
from psrun.roles import chief

pytestmark = pytest.mark.inprocess

SMALL = ("trainer.epochs=2", "trainer.steps_per_epoch=20", "trainer.steps_per_execution=2", "evaluation=exact")


def observed(distribution, num_rounds, slow_s, delay=0) -> Any:
    """Counts on the parameter server; each worker's rounds of ten updates take 2 ms, those of worker 0 `slow_s`.

    `gap`: the largest number of rounds that a worker had done more than the slowest; `early`: rounds that began before
    all rounds `delay` earlier were done; `done`: rounds by worker.
    """
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
    return SimpleNamespace(schedule=schedule, gap=gap, early=early, done=by_worker, updates=updates)


@pytest.fixture
def three_workers():
    spec = strategy.start_in_process(num_workers=3, num_ps=1)
    return strategy.parameter_servers(spec, choices.NoPartitioner("none"))


@pytest.mark.thorough
def test_no_bound_is_broken_in_ten_thousand_updates_with_a_slow_worker(three_workers):
    num_rounds = 1000
    for mode, delay in (
        (choices.StaleSynchronous("ssp", staleness=2), 0),
        (choices.BoundedDelay("bounded_delay", max_delay=4), 4),
        (choices.Asynchronous("async"), 0),
    ):
        rounds = observed(three_workers, num_rounds, 0.01, delay)
        closures = AsynchronousClosures(three_workers, mode)
        for number in range(num_rounds if mode.needs_parameter_servers else 300):
            rounds.schedule(closures, number)
        closures.join()
        waited_s = closures.facts()["waited_s"]
        by_worker, gap = rounds.done.numpy().tolist(), int(rounds.gap.numpy()[0])
        if mode.staleness is not None:
            assert int(rounds.updates.numpy()) == 10_000
            assert 0 < gap <= 2
            assert max(by_worker) - min(by_worker) <= 3
            # All wait for the chief; the others also for worker 0, some 8 ms in each of its rounds.
            assert min(waited_s["worker-1"], waited_s["worker-2"]) > waited_s["worker-0"] + 1.0
        elif mode.max_delay is not None:
            assert int(rounds.updates.numpy()) == 10_000
            assert not rounds.early.numpy()[0]
        else:  # this observes what the modes prevent
            assert gap > 2
            assert rounds.early.numpy()[0]


@pytest.mark.thorough
def test_workers_of_ssp_are_never_too_far_apart(train):
    result, _ = train(*SMALL, "trainer=custom_loop", "consistency=ssp", "consistency.staleness=1",
                      "cluster.slow_workers={0: 0.05}", "data.visitation=once")  # fmt: skip
    assert result["steps"]["applied"] == 40
    assert result["consistency"]["staleness"] == 1
    waited_s = result["consistency"]["waited_s"]
    assert waited_s["worker-1"] > 0.05  # of some 0.4 s, in which worker 0 alone works


LARGE_BATCH = [  # initial values by seed depend on the shards
    "model=embedding", *TABLED, "model._target_=embeddings.model", "+model.embeddings_initializer=ones",
    "data.visitation=once", "trainer.steps_per_epoch=25", "trainer.epochs=2",
]  # fmt: skip
EQUAL = [
    ("custom_loop", "optimizer=sparse_adagrad", ["partitioner=fixed_shards"]),
    ("fit", "optimizer=sgd", ["optimizer.learning_rate=0.1", "+optimizer.global_clipnorm=0.05"]),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("trainer", "optimizer", "more"), EQUAL)
def test_synchronous_training_is_that_of_one_process_with_the_batches_of_all_workers(train, trainer, optimizer, more):
    run = [*LARGE_BATCH, f"trainer={trainer}", optimizer]
    result, folder = train(*run, *more, "consistency=sync", "trainer.steps_per_execution=1")
    own = [override for override in more if "partitioner" not in override]
    _, alone = train(*run, *own, "cluster=none", "data.global_batch_size=16", "trainer.steps_per_execution=5")
    check_equal(variables(folder), variables(alone), rtol=1e-5, atol=1e-6)
    assert result["steps"] == {"applied": 50, "scheduled": 50, "repeated": 0}
    assert result["consistency"]["gradients_applied"] == 100
    assert (result["staleness"]["updates"], result["staleness"]["histogram"]) == (50, [[0, 50]])
    assert result["consistency"]["updates_dropped"] == {"worker-0": 0, "worker-1": 0}


@pytest.mark.thorough
def test_dropped_batches_are_dealt_again_also_after_a_resume_in_another_mode(train):
    run = counting.arguments(examples=64, batch=8)
    backup = [
        "consistency=sync",
        "consistency.backup_workers=1",
        "cluster.slow_workers={0: 0.05}",
        "trainer.steps_per_execution=1",
    ]
    result, folder = train(*run, *backup, "trainer.epochs=2")
    assert counting.wrong(folder.checkpoints, epochs=2) == []
    assert result["steps"] == {"applied": 16, "scheduled": 16, "repeated": 0}
    dropped = result["consistency"]["updates_dropped"]
    assert dropped["worker-0"] > dropped["worker-1"] >= 0
    result, _ = train(*run, *backup, "trainer.epochs=3", "checkpoint.every_steps=3", into=folder)
    position = Store(folder.checkpoints).manifest(22).position
    assert (position.steps, position.batch - len(position.again)) == (6, 22)
    for file in folder.checkpoints.glob("*24.*"):
        file.unlink()  # as if the run had ended before
    result, _ = train(*run, "consistency=async", "trainer.epochs=4", "trainer.steps_per_execution=3", into=folder)
    assert result["steps"]["applied"] == 32
    assert counting.wrong(folder.checkpoints, epochs=4) == []  # the third by two processes


@pytest.mark.thorough
@pytest.mark.parametrize(
    "own",
    [
        ["model=dense", "~model.hidden_units", "model._target_=user_models.steps", "+model.nan_at=-1", "trainer=fit"],
        ["trainer=own_loop", "trainer._target_=user_code.plain"],
    ],
    ids=["step", "loop"],
)
def test_steps_and_loops_of_users_are_synchronous_too(train, own):
    result, _ = train(
        *own, "optimizer=sgd", "consistency=sync", "trainer.steps_per_execution=1", "checkpoint.every_steps=5"
    )
    assert result["steps"] == {"applied": 24, "scheduled": 24, "repeated": 0}
    assert result["consistency"]["gradients_applied"] == 48
    assert {each["step"] for each in result["checkpoints"]} >= {17, 22, 24}


def test_batches_that_were_not_applied_come_first():
    dealt = DealtInput(lambda: None, NextBatches(12, (3, 7)))
    assert [int(dealt._number(np.int64(place))) for place in range(4)] == [3, 7, 12, 13]
    assert dealt.position() == (12, (3, 7), ())
    dealings = [dealt.deal(1) for _ in range(4)]
    assert dealt.position() == (14, (), ())
    dealt.deal_again([dealings[2], dealings[0]])
    assert dealt.position() == (14, (3, 12), ())
    assert [int(dealt.deal(1)["place"]) for _ in range(3)] == [0, 2, 4]
    assert dealt.position() == (15, (), ())


# -- a mode of the user's, which adds a stage from outside the package


SHORT = ("optimizer=sgd", "trainer.epochs=1", "trainer.steps_per_epoch=3", "evaluation=none")


@pytest.fixture
def project(monkeypatch):
    """A mode in a user's project."""
    folder = REPOSITORY / "tests" / "harness" / "outside" / "damped"
    monkeypatch.syspath_prepend(folder)
    yield f"hydra.searchpath=[file://{folder}/myconf]", "consistency=damped"
    for name in [name for name in sys.modules if name.startswith("damped")]:
        del sys.modules[name]


@pytest.mark.parametrize("model", ["dense", pytest.param("embedding", marks=pytest.mark.thorough)])
def test_a_consistency_mode_from_outside_the_package_trains(train, project, model):
    """Half of each gradient is half of the learning rate, for SGD; gradients of tables are IndexedSlices."""
    rate = "optimizer.learning_rate"
    result, folder = train(f"model={model}", *SHORT, *project, f"{rate}=0.2", num_workers=1)
    assert (result["consistency"]["mode"], result["consistency"]["factor"]) == ("damped", 0.5)
    _, expected = train(f"model={model}", *SHORT, f"{rate}=0.1", num_workers=1)
    held = variables(folder)
    for name, value in variables(expected).items():
        if np.size(value) > 1:
            np.testing.assert_allclose(held[name], value, rtol=1e-5, atol=1e-7, err_msg=name)


def test_a_run_shows_the_steps_of_a_round_and_a_bound_that_no_worker_meets(tmp_path):
    run = run_config("cluster=inprocess", "consistency=bounded_delay", "consistency.max_delay=9",
                     "data.global_batch_size=8", "trainer.epochs=1", "trainer.steps_per_epoch=42")  # fmt: skip
    told = []
    reporter = SimpleNamespace(warn=lambda text: told.append(text), emit=lambda kind, **data: told.append({kind: data}))
    chief._planned(run, SimpleNamespace(), reporter, RunFolder.create(tmp_path / "run", raw=run.raw))
    assert told[0] == {"planned": {"trainer.steps_per_execution": 10}}
    assert told[1].startswith("consistency.max_delay: is 9, but an epoch has only 5 rounds")
    assert len(told) == 2


@pytest.mark.parametrize("packed", ["null", "4"])
def test_a_tracker_gets_the_steps_of_a_round_once(tmp_path, monkeypatch, packed):
    given = []
    monkeypatch.setattr(choices.TensorBoard, "load", lambda self: lambda chosen, tracked: given.append(tracked.values))
    run = run_config("cluster=inprocess", "consistency=bounded_delay", f"trainer.steps_per_execution={packed}")
    tracking.tracker_sinks(run, RunFolder.create(tmp_path / "run", raw=run.raw), lambda text: None)
    assert given[0].get("trainer.steps_per_execution") == (None if packed == "null" else 4)
    assert ("trainer.steps_per_execution" in given[0]) == (packed == "4")
