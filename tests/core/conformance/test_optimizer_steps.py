"""Every optimizer of tf-keras and of psrun: steps as by NumPy, on shards and stacks as by Keras alone, or refused."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from support import run_config

from psrun.closures.training_closures import InFlightClosures
from psrun.cluster import strategy
from psrun.cluster.placement import Placed
from psrun.config import choices
from psrun.layers import Embedding
from psrun.layers.collection import TableOffsets
from psrun.layers.lookup import StackLayout
from psrun.optimizers import sparse
from psrun.program import build, compiled_model, make_optimizer

pytestmark = pytest.mark.tensorflow

ROWS, DIM = 6, 3
NAMES = ("layer/kernel", "table/embeddings", "layer/bias")
CLOSE = {"rtol": 1e-5, "atol": 2e-6}
# Found by the tests below, which fail where a class is missing here or need not be here.
NOT_BY_ROW = {"Adafactor"}
NOT_AS_TRACED = {"Nadam"}  # psrun refuses it
FLAGS = {"amsgrad": True, "centered": True, "adaptive_epsilon": True, "momentum": 0.5, "nesterov": True}
OPTIONS = (
    {"flags": True, "clipvalue": 0.2},
    {"weight_decay": 0.1, "excluded": "embeddings:0$", "global_clipnorm": 0.5},
    {"schedule": True, "clipnorm": 0.3},
)


def kinds() -> dict[str, type]:
    keras = tf_keras.optimizers
    modules = {"": keras, "experimental.": keras.experimental, "psrun.": sparse}
    classes: dict[str, type] = {}
    for prefix, module in modules.items():
        for name, kind in vars(module).items():
            is_optimizer = inspect.isclass(kind) and issubclass(kind, keras.Optimizer) and not inspect.isabstract(kind)
            has_a_rule = is_optimizer and of_keras(kind) is not keras.Optimizer
            if has_a_rule and not name.startswith("_") and kind not in classes.values():
                classes[f"{prefix}{name}"] = kind
    return classes


def of_keras(kind: type) -> type:
    """The optimizer of Keras that an optimizer of psrun extends, or itself."""
    return next(each for each in kind.__mro__ if each.__module__.startswith("tf_keras."))


KINDS = kinds()


def made(kind: type, given: dict[str, Any]) -> Any:
    """A new optimizer with those of the options that Keras' has; None if it refuses them."""
    known = inspect.signature(of_keras(kind)).parameters
    options = {name: value for name, value in given.items() if name not in ("flags", "schedule", "excluded")}
    if given.get("flags"):
        options |= {name: value for name, value in FLAGS.items() if name in known}
    rate = tf_keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5) if given.get("schedule") else 0.1
    try:
        optimizer = kind(learning_rate=rate, **options)
    except ValueError as error:
        if "not support" not in str(error):
            raise
        return None
    if "excluded" in given and hasattr(optimizer, "exclude_from_weight_decay"):
        optimizer.exclude_from_weight_decay(var_names=[given["excluded"]])
    return optimizer


RUN = run_config("mode=export", "resume=here")


def prepared(optimizer: Any) -> Any:
    make_optimizer.prepare(optimizer, RUN, "optimizer")
    return optimizer


def start() -> np.ndarray:
    return np.linspace(-1, 1, ROWS * DIM, dtype=np.float32).reshape(ROWS, DIM)


def steps() -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Of each step the gradient of the kernel, the ids and the rows of that of the table; some ids repeat."""
    random = np.random.default_rng(0)
    for ids in ([0, 3, 3, 5, 1, 3], [2, 2, 4, 0, 1, 4], [3, 3, 3, 3, 3, 3]):
        kernel, rows = random.normal(size=(2, ROWS, DIM)).astype(np.float32)
        yield kernel, np.array(ids), rows


def gradients(kernel: Any, ids: Any, rows: Any, num_shards: int) -> list[Any]:
    """The gradients of `cut` variables."""
    size = ROWS // num_shards
    sparse_gradients = []
    for index in range(num_shards):
        own = tf.where(ids // size == index)[:, 0]
        shape = tf.constant([size, DIM], tf.int64)
        sparse_gradients.append(tf.IndexedSlices(tf.gather(rows, own), tf.gather(ids, own) - index * size, shape))
    return [*tf.split(kernel, num_shards), *sparse_gradients, tf.constant([0.3, 0.4])]


def cut(num_shards: int) -> list[list[tf.Variable]]:
    first = [start(), start(), np.array([0.5, -0.25], np.float32)]
    if num_shards == 1:
        return [[tf.Variable(value, name=name)] for name, value in zip(NAMES, first)]
    shards = [
        [tf.Variable(part, name=f"{name}/part_{index}") for index, part in enumerate(np.split(value, num_shards))]
        for name, value in zip(NAMES[:2], first)
    ]
    return [*shards, [tf.Variable(first[2], name=NAMES[2])]]


def trained(optimizer: Any, num_shards: int = 1, traced: bool = False) -> list[np.ndarray]:
    """The kernel, the table and the bias after the steps."""
    shards = cut(num_shards)
    variables = [each for parts in shards for each in parts]
    optimizer.build(variables)

    def apply(*step: tf.Tensor) -> None:
        optimizer.apply_gradients(list(zip(gradients(*step, num_shards), variables)))

    run = tf.function(apply) if traced else apply
    for step in steps():
        run(*map(tf.constant, step))
    return [np.concatenate([each.numpy() for each in parts]) for parts in shards]


def agree(left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> bool:
    return all(np.allclose(one, other, **CLOSE) for one, other in zip(left, right, strict=True))


# -- steps of tables by NumPy


def summed() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Of each step, the rows that its gradient uses, and the sum for each."""
    for _, ids, rows in steps():
        used = np.unique(ids)
        yield used, np.stack([rows[ids == row].sum(axis=0) for row in used])


def adagrad(table: np.ndarray, rate: float, *, by_row: bool = False) -> None:
    accumulator = np.full((ROWS, 1) if by_row else table.shape, 0.1)
    for rows, gradient in summed():
        squares = gradient**2
        accumulator[rows] += squares.mean(axis=1, keepdims=True) if by_row else squares
        table[rows] -= rate * gradient / np.sqrt(accumulator[rows] + 1e-7)


def rowwise(table: np.ndarray, rate: float) -> None:
    adagrad(table, rate, by_row=True)


def adam(table: np.ndarray, rate: float) -> None:
    m, v = np.zeros_like(table), np.zeros_like(table)
    for step, (rows, gradient) in enumerate(summed(), start=1):
        m[rows] = 0.9 * m[rows] + 0.1 * gradient
        v[rows] = 0.999 * v[rows] + 0.001 * gradient**2
        alpha = rate * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        table[rows] -= alpha * m[rows] / (np.sqrt(v[rows]) + 1e-7)


def sgd(table: np.ndarray, rate: float) -> None:
    for rows, gradient in summed():
        table[rows] -= rate * gradient


def ftrl(table: np.ndarray, rate: float, l1: float = 0.02, l2: float = 0.03) -> None:
    n, z = np.full_like(table, 0.1), np.zeros_like(table)
    for rows, gradient in summed():
        grown = n[rows] + gradient**2
        z[rows] += gradient - (np.sqrt(grown) - np.sqrt(n[rows])) / rate * table[rows]
        n[rows] = grown
        clipped = np.clip(z[rows], -l1, l1)
        table[rows] = (clipped - z[rows]) / (np.sqrt(grown) / rate + 2 * l2)


BY_NUMPY = {
    sparse.SparseAdagrad: (adagrad, {}),
    sparse.RowwiseAdagrad: (rowwise, {}),
    sparse.LazyAdam: (adam, {}),
    sparse.SparseSGD: (sgd, {}),
    sparse.SparseFtrl: (ftrl, {"l1_regularization_strength": 0.02, "l2_regularization_strength": 0.03}),
}


@pytest.mark.parametrize("kind", BY_NUMPY)
def test_rows_that_occur_more_than_once_count_as_their_sum_and_others_stay(kind):
    by_numpy, options = BY_NUMPY[kind]
    expected = start().astype(np.float64)
    by_numpy(expected, 0.1)
    optimizer = kind(learning_rate=0.1, **options)
    table = tf.Variable(start(), name="embeddings")
    optimizer.build([table])
    step = tf.function(lambda gradient: optimizer.apply_gradients([(gradient, table)]))
    for _, ids, rows in steps():
        step(tf.IndexedSlices(tf.constant(rows), tf.constant(ids), tf.constant([ROWS, DIM])))
    np.testing.assert_allclose(table.numpy(), expected, rtol=2e-6, atol=2e-6)
    assert int(optimizer.iterations) == 3
    assert kind.from_config(optimizer.get_config()).get_config() == optimizer.get_config()


def test_sgd_does_not_add_what_others_write_to_its_slot():
    optimizer = prepared(tf_keras.optimizers.SGD(0.1))
    shards = cut(1)
    variables = [each for parts in shards for each in parts]
    optimizer.build(variables)
    for slot in optimizer.momentums:
        assign = slot.assign
        slot.assign = lambda value, *more, assign=assign, **options: assign(value + 5.0, *more, **options)
    given = next(steps())
    optimizer.apply_gradients(list(zip(gradients(*map(tf.constant, given), 1), variables)))
    expected = start()
    np.subtract.at(expected, given[1], 0.1 * given[2])
    np.testing.assert_allclose(variables[0].numpy(), start() - 0.1 * given[0], **CLOSE)
    np.testing.assert_allclose(variables[1].numpy(), expected, **CLOSE)


# -- shards and stacks as Keras alone


@pytest.mark.parametrize("name", [name for name in KINDS if name not in NOT_AS_TRACED])
def test_shards_are_updated_as_the_whole_variable_by_keras(name):
    kind = KINDS[name]
    agreeing = []
    for given in OPTIONS:
        whole, shards = made(kind, given), made(kind, given)
        if whole is not None:
            agreeing.append(agree(trained(whole), trained(prepared(shards), 2)))
    assert agreeing
    assert set(agreeing) == {name not in NOT_BY_ROW}


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in KINDS if not name.startswith("psrun.")])
def test_a_traced_step_is_as_one_that_is_not(name):
    eager, traced = (trained(made(KINDS[name], {}), traced=traced) for traced in (False, True))
    assert agree(eager, traced) == (name not in NOT_AS_TRACED)


@pytest.mark.parametrize("kind", BY_NUMPY)
def test_dense_gradients_are_updated_as_by_the_optimizer_of_keras(kind):
    for given in OPTIONS:
        own = made(kind, given)
        if own is not None:
            kernel, _, bias = trained(prepared(own))
            expected_kernel, _, expected_bias = trained(made(of_keras(kind), given))
            # TensorFlow's own kernel for Adam takes 1 - beta_2 as float32 does, which is 1e-5 of it away.
            np.testing.assert_allclose(kernel, expected_kernel, rtol=1e-5, atol=1e-5, err_msg=str(given))
            np.testing.assert_allclose(bias, expected_bias, rtol=1e-5, atol=1e-5, err_msg=str(given))


@pytest.mark.parametrize("dense", [False, True])
def test_clipnorm_bounds_the_gradient_of_each_table_of_a_stack(dense):
    layout = StackLayout((7, 5), 2)
    random = np.random.default_rng(1)
    tables = [random.normal(size=(rows, DIM)).astype(np.float32) for rows in layout.table_rows]
    alone = [tf.Variable(tf.zeros_like(table)) for table in tables]
    tf_keras.optimizers.SGD(1.0, clipnorm=0.7).apply_gradients(zip(map(tf.constant, tables), alone))

    stacked = np.zeros((2, layout.shard_rows, DIM), np.float32)
    for index, table in enumerate(tables):
        for block in layout.blocks(index):
            stacked[block.shard, block.offset : block.offset + block.num_rows] = table[block.first :][: block.num_rows]
    shards = [tf.Variable(tf.zeros_like(part), name=f"stack/embeddings/part_{i}") for i, part in enumerate(stacked)]
    for shard in shards:
        shard.psrun_table_offsets = TableOffsets(("a", "b"), (layout.offset(0), layout.offset(1)))
    of_shards = [tf.constant(part) for part in stacked]
    if not dense:
        of_shards = [tf.IndexedSlices(part, tf.range(len(part)), tf.constant(part.shape)) for part in of_shards]
    optimizer = prepared(tf_keras.optimizers.SGD(1.0, clipnorm=0.7))
    optimizer.apply_gradients(zip(of_shards, shards))
    for index, table in enumerate(alone):
        for block in layout.blocks(index):
            rows = shards[block.shard][block.offset : block.offset + block.num_rows]
            np.testing.assert_allclose(rows, table[block.first : block.first + block.num_rows], rtol=1e-5)


@pytest.mark.parametrize("option", [{}, {"clipnorm": 1.0}, {"clipvalue": 1.0}, {"global_clipnorm": 1.0}])
def test_gradients_that_are_clipped_are_not_summed_before(option):
    """As Keras: so the numbers are those of a run without parameter servers, which never deduplicates by itself."""
    layer = Embedding(8, 2)
    network = tf_keras.Sequential([tf_keras.Input((2,), dtype="int64"), layer])
    program: Any = SimpleNamespace(
        network=network,
        optimizer=tf_keras.optimizers.SGD(0.1, **option),
        distribution=SimpleNamespace(coordinator=object()),
        data=SimpleNamespace(first_batches=[(tf.zeros([4, 2], tf.int64), None)]),
    )
    decided = compiled_model.decide_lookups(program)
    assert [each.deduplicate for each in decided] == ([] if option else [True])
    assert layer.deduplicate == ("auto" if option else True)


@pytest.mark.inprocess
def test_parameter_servers_update_shards_as_keras_updates_the_whole_variable(cluster_spec):
    """In one function, with all options that go together."""
    cluster = strategy.parameter_servers(cluster_spec[1], choices.FixedShards("fixed_shards", 2))
    every = {"flags": True, "weight_decay": 0.1, "excluded": "embeddings:0$", "clipnorm": 0.3, "schedule": True}
    kinds = {name: kind for name, kind in KINDS.items() if name.startswith("psrun.") or name in ("Adam", "SGD")}
    updated = {}
    with cluster.strategy.scope():
        for name, kind in kinds.items():
            given = {"clipnorm": 0.3, "schedule": True} if name.startswith("psrun.") else every
            optimizer = prepared(made(kind, given))
            variables = [tf.Variable(start(), name=of) for of in NAMES[:2]]
            shards = [shard for each in variables for shard in each.variables]
            optimizer.build(shards)
            updated[name] = (optimizer, variables, shards, given)

    def step(*given: tf.Tensor) -> None:
        of_shards = gradients(*given, 2)[:-1]
        for optimizer, _, shards, _ in updated.values():
            optimizer.apply_gradients(list(zip(of_shards, shards)))

    arguments = [tuple(map(tf.constant, each)) for each in steps()]
    specs = map(tf.TensorSpec.from_tensor, arguments[0])
    with cluster.strategy.scope():  # else it is traced twice
        closure = tf.function(lambda *each: cluster.strategy.run(step, args=each)).get_concrete_function(*specs)
    for each in arguments:
        cluster.coordinator.schedule(closure, args=each)
        cluster.coordinator.join()
    for name, (_, variables, _, given) in updated.items():
        expected = trained(made(KINDS[name], given))
        for variable, value in zip(variables, expected):
            np.testing.assert_allclose(variable.numpy(), value, rtol=1e-5, atol=1e-5, err_msg=f"{name} {variable.name}")


@pytest.mark.inprocess
def test_no_update_of_a_row_is_lost_where_two_workers_meet(cluster_spec):
    """Every step adds 1 to the same rows, so that what is lost is missing in the sum."""
    cluster = strategy.parameter_servers(cluster_spec[2], choices.FixedShards("fixed_shards", 2))
    with cluster.strategy.scope():
        table = tf.Variable(tf.zeros([4000, 8]), name="embeddings")
        optimizer = sparse.SparseSGD(learning_rate=1.0)
        optimizer.build(table.variables)

    def step() -> None:
        ids = tf.range(1000)
        optimizer.apply_gradients([(tf.IndexedSlices(-tf.ones([1000, 8]), ids), shard) for shard in table.variables])

    def in_one_function() -> None:
        for _ in range(10):  # where a lock taken too soon would wait for ever
            cluster.strategy.run(step)

    packed = tf.function(in_one_function).get_concrete_function()
    in_flight = InFlightClosures(cluster)
    for _ in range(30):
        in_flight.add(cluster.coordinator.schedule(packed))
    in_flight.join()
    for shard in table.variables:
        np.testing.assert_array_equal(shard.numpy()[:1000], np.full((1000, 8), 300))
        assert not shard.numpy()[1000:].any()


@pytest.mark.parametrize(
    ("kind", "reported"),
    [
        (tf_keras.optimizers.Adam, True),
        (tf_keras.optimizers.SGD, False),
        (tf_keras.optimizers.Adagrad, False),
        (sparse.LazyAdam, False),
    ],
)
def test_an_optimizer_that_updates_all_of_a_large_table_is_reported(kind, reported):
    shards = [
        Placed(f"{slot}embedding/embeddings", index, f"ps-{index}", 4_000_000, of, (2_000_000, 1), "float32")
        for index in range(2)
        for slot, of in (("", "model"), ("m/", "optimizer"))
    ]
    small = Placed("small/embeddings", 0, "ps-0", 8, "model", (2, 1), "float32")
    assert len(build.costs_of_dense_tables(kind(), [*shards, small])) == reported


@pytest.mark.thorough
def test_copies_on_several_devices_learn_as_one_process_does(train, psrun):
    # A rate at which it shows where a slot is updated twice, or that of another device.
    run = ("data.num_train_examples=400", "data.num_eval_examples=100", "data.global_batch_size=32", "trainer.epochs=2",
           "trainer.steps_per_epoch=10", "optimizer=lazy_adam", "optimizer.learning_rate=0.1")  # fmt: skip
    one, _ = train("cluster=none", *run)
    two = psrun("cluster=mirrored", "cluster.num_replicas=2", *run)  # a process, whose CPU is in two parts
    assert two.code == 0, two.stderr
    assert two.result["metrics"]["val_loss"] == pytest.approx(one["metrics"]["val_loss"], rel=1e-3)
