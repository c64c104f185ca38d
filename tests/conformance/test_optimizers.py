"""Optimizers on the rows that a batch touches: equal to the papers' formulas, also with repeated rows."""

from __future__ import annotations

import json

import numpy as np
import pytest

ROWS, DIM, STEPS = 11, 3, 6


def gradients(seed: int = 0):
    """(ids with duplicates, values) of each step, and the sum by row as (touched rows, sums)."""
    rng = np.random.default_rng(seed)
    for _ in range(STEPS):
        ids = rng.integers(ROWS // 2, size=8)
        values = rng.normal(size=(8, DIM)).astype(np.float32)
        touched = np.unique(ids)
        yield ids, values, touched, np.stack([values[ids == row].sum(axis=0) for row in touched])


def adagrad(w, rate, epsilon=1e-7):
    accumulator = np.full_like(w, 0.1)
    for _, _, rows, g in gradients():
        accumulator[rows] += g**2
        w[rows] -= rate * g / np.sqrt(accumulator[rows] + epsilon)


def rowwise(w, rate, epsilon=1e-7):
    accumulator = np.full((ROWS, 1), 0.1)
    for _, _, rows, g in gradients():
        accumulator[rows] += (g**2).mean(axis=1, keepdims=True)
        w[rows] -= rate * g / np.sqrt(accumulator[rows] + epsilon)


def adam(w, rate, beta_1=0.9, beta_2=0.999, epsilon=1e-7):
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, (_, _, rows, g) in enumerate(gradients(), start=1):
        m[rows] = beta_1 * m[rows] + (1 - beta_1) * g
        v[rows] = beta_2 * v[rows] + (1 - beta_2) * g**2
        alpha = rate * np.sqrt(1 - beta_2**t) / (1 - beta_1**t)
        w[rows] -= alpha * m[rows] / (np.sqrt(v[rows]) + epsilon)


def sgd(w, rate):
    for _, _, rows, g in gradients():
        w[rows] -= rate * g


def ftrl(w, rate, l1=0.02, l2=0.03):
    n, z = np.full_like(w, 0.1), np.zeros_like(w)
    for _, _, rows, g in gradients():
        grown = n[rows] + g**2
        z[rows] += g - (np.sqrt(grown) - np.sqrt(n[rows])) / rate * w[rows]
        n[rows] = grown
        clipped = np.clip(z[rows], -l1, l1)
        w[rows] = (clipped - z[rows]) / (np.sqrt(grown) / rate + 2 * l2)


REFERENCES = {
    "SparseAdagrad": (adagrad, {}), "RowwiseAdagrad": (rowwise, {}), "LazyAdam": (adam, {}), "SparseSGD": (sgd, {}),
    "SparseFtrl": (ftrl, {"l1_regularization_strength": 0.02, "l2_regularization_strength": 0.03}),
}  # fmt: skip


def start():
    return np.linspace(-1, 1, ROWS * DIM).reshape(ROWS, DIM)


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", REFERENCES)
def test_rows_that_occur_more_than_once_count_as_their_sum_and_others_stay(name):
    import tensorflow as tf

    from psrun.optimizers import sparse

    reference, options = REFERENCES[name]
    expected = start()
    reference(expected, 0.1)
    optimizer = getattr(sparse, name)(learning_rate=0.1, **options)
    table = tf.Variable(start().astype(np.float32), name="embeddings")
    optimizer.build([table])
    step = tf.function(lambda g: optimizer.apply_gradients([(g, table)]))
    for ids, values, _, _ in gradients():
        step(tf.IndexedSlices(tf.constant(values), tf.constant(ids), tf.constant([ROWS, DIM])))
    np.testing.assert_allclose(table.numpy(), expected, rtol=2e-6, atol=2e-6)
    np.testing.assert_array_equal(table.numpy()[ROWS // 2 :], start().astype(np.float32)[ROWS // 2 :])
    assert int(optimizer.iterations) == STEPS
    again = type(optimizer).from_config(optimizer.get_config())
    assert again.get_config() == optimizer.get_config()


@pytest.mark.tensorflow
def test_what_an_optimizer_cannot_do_is_reported():
    from psrun.optimizers import sparse

    with pytest.raises(ValueError, match="does not support momentum"):
        sparse.SparseSGD(momentum=0.9)
    with pytest.raises(ValueError, match="not support amsgrad"):
        sparse.LazyAdam(amsgrad=True)
    with pytest.raises(ValueError, match="update all rows"):
        sparse.SparseAdagrad(weight_decay=0.1)


@pytest.mark.inprocess
def test_no_update_of_a_row_is_lost_where_two_workers_meet(cluster_spec):
    """Every step adds 1 to the same rows, so that what is lost is missing in the sum."""
    import tensorflow as tf

    from psrun.closures.training_closures import InFlightClosures
    from psrun.cluster import strategy
    from psrun.config import choices
    from psrun.optimizers.sparse import SparseSGD

    cluster = strategy.parameter_servers(cluster_spec[2], choices.FixedShards("fixed_shards", 2))
    with cluster.strategy.scope():
        table = tf.Variable(tf.zeros([4000, 8]), name="embeddings")
        optimizer = SparseSGD(learning_rate=1.0)
        optimizer.build(table.variables)

    def step():
        ids = tf.range(1000)
        optimizer.apply_gradients([(tf.IndexedSlices(-tf.ones([1000, 8]), ids), shard) for shard in table.variables])

    def steps():
        for _ in range(10):  # packed in one function, where a lock taken too soon would wait for ever
            cluster.strategy.run(step)

    packed = tf.function(steps).get_concrete_function()
    in_flight = InFlightClosures(cluster)
    for _ in range(60):
        in_flight.add(cluster.coordinator.schedule(packed))
    in_flight.join()
    for shard in table.variables:
        np.testing.assert_array_equal(shard.numpy()[:1000], np.full((1000, 8), 600))
        assert not shard.numpy()[1000:].any()


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("optimizer", "reported"),
    [("adam", True), ("rmsprop", True), ("sgd", False), ("adagrad", False), ("lazy_adam", False)],
)
def test_an_optimizer_that_updates_all_of_a_large_table_is_reported(optimizer, reported):
    import tf_keras

    from psrun.cluster.placement import Placed
    from psrun.program import inventory

    instance = tf_keras.optimizers.get(optimizer) if optimizer != "lazy_adam" else sparse_optimizer("LazyAdam")
    shards = [Placed(f"{slot}embedding/embeddings", i, f"ps-{i}", 4_000_000, kind, (2_000_000, 1), "float32")
              for i in range(2) for slot, kind in (("", "model"), ("m/", "optimizer"))]  # fmt: skip
    messages = inventory.costs_of_dense_tables(
        instance, [*shards, Placed("small/embeddings", 0, "ps-0", 8, "model", (2, 1), "float32")]
    )
    assert len(messages) == reported
    if reported:
        assert "updates all 2,000,000 rows of embedding/embeddings in every step" in messages[0]


def sparse_optimizer(name: str):
    from psrun.optimizers import sparse

    return getattr(sparse, name)()


@pytest.mark.thorough
@pytest.mark.inprocess
@pytest.mark.parametrize(
    ("trainer", "optimizer"),
    [
        ("custom_loop", "rowwise_adagrad"), ("fit", "lazy_adam"), ("custom_loop", "ftrl"),
    ],
)  # fmt: skip
def test_models_with_many_tables_learn_on_a_cluster(train, trainer, optimizer):
    result, folder = train(
        "model=wide_deep", "partitioner=fixed_shards", f"optimizer={optimizer}", "optimizer.learning_rate=0.05",
        f"trainer={trainer}", "trainer.epochs=6", "evaluation=none", "checkpoint=none",
    )  # fmt: skip
    losses = [event["metrics"]["loss"] for event in map(json.loads, folder.metrics.read_text().splitlines())
              if event["event"] == "epoch"]  # fmt: skip
    assert losses[-1] < losses[0]
    assert result["steps"]["applied"] == result["steps"]["scheduled"]


@pytest.mark.thorough
@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "lazy_adam", "ftrl"])
def test_copies_on_several_devices_learn_as_one_process_does(train, psrun, optimizer):
    # A rate at which it shows where a slot is updated twice, or that of another device.
    run = ("data.num_train_examples=400", "data.num_eval_examples=100", "data.global_batch_size=32", "trainer.epochs=2",
           "trainer.steps_per_epoch=10", f"optimizer={optimizer}", "optimizer.learning_rate=0.1")  # fmt: skip
    one, _ = train("cluster=none", *run)
    two = psrun("cluster=mirrored", "cluster.num_replicas=2", *run)  # a process, whose CPU is in two parts
    assert two.code == 0, two.stderr
    assert two.result["metrics"]["val_loss"] == pytest.approx(one["metrics"]["val_loss"], rel=1e-3)
