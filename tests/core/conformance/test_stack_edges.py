"""Stacks of tables where something is missing, unusual or refused."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from embeddings import Basket, baskets
from support import write_values

from psrun.checkpoint.checkpoints import logical_checkpoint
from psrun.checkpoint.storage import Contents
from psrun.checkpoint.trained_model import KerasCheckpoints
from psrun.errors import ConfigError
from psrun.layers import EmbeddingCollection, Table
from psrun.layers.collection import first_values, stored_alone
from psrun.layers.lookup import StackLayout
from psrun.models.model import Model
from psrun.optimizers import sparse
from psrun.optimizers.sparse import SparseAdagrad
from psrun.program import embeddings
from psrun.program.compiled_model import decide_lookups
from psrun.program.embeddings import stacks_of

pytestmark = pytest.mark.tensorflow


def _tables(*names: str, **options: Any) -> list[Any]:
    return [Table(name, (name,), 10 + 3 * index, 4, **options) for index, name in enumerate(names)]


def _network(*names: str, stack: bool) -> Any:
    tf_keras.backend.clear_session()
    inputs = {name: tf_keras.Input((1,), dtype="int64", name=name) for name in names}
    rows = EmbeddingCollection(_tables(*names), stack=stack, name="tables")(inputs)
    summed = rows[names[0]] if len(names) == 1 else tf_keras.layers.Add()(list(rows.values()))
    return tf_keras.Model(inputs, tf_keras.layers.Dense(1)(tf_keras.layers.Flatten()(summed)))


def test_a_shard_of_which_a_batch_uses_no_row_stays_as_it_is():
    layer = EmbeddingCollection(_tables("a", "b"), stack=True)
    layer.build(None)
    (variable,) = layer.trainable_variables
    optimizer, before = SparseAdagrad(0.1), variable.numpy()
    optimizer.build([variable])
    no_row = tf.IndexedSlices(tf.zeros([0, 4]), tf.zeros([0], tf.int32), variable.shape)
    optimizer.apply_gradients([(no_row, variable)])
    np.testing.assert_array_equal(variable, before)
    bad = tf.IndexedSlices([[0.0] * 4, [np.nan] * 4], [0, layer.stacks[0].layout.offset(1)], variable.shape)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[b\]"):
        optimizer.apply_gradients([(bad, variable)])


def test_tables_of_a_stack_begin_with_any_initializer():
    def threes(shape: Any, dtype: Any = None) -> tf.Tensor:
        return tf.fill(shape, tf.constant(3, dtype))

    def numbered(shape: Any, dtype: Any = None, **options: Any) -> tf.Tensor:
        return tf.reshape(tf.range(shape[0] * shape[1], dtype=dtype), shape)

    matrix = np.arange(28, dtype=np.float32).reshape(7, 4)
    keras = tf_keras.initializers
    initializers = {
        threes: np.full((7, 4), 3), numbered: matrix, keras.Constant(matrix): matrix,
        tf.constant_initializer(2.0): np.full((7, 4), 2), keras.Orthogonal(seed=1): keras.Orthogonal(seed=1)((7, 4)),
        keras.Identity(): np.eye(7, 4), keras.Ones(): np.ones((7, 4)),
    }  # fmt: skip
    for initializer, expected in initializers.items():
        for other in (initializer, keras.Zeros()):
            layout = StackLayout((7, 7), 3)
            first = first_values(layout, [initializer, other])
            whole = first((layout.num_rows, 4), dtype=tf.float32)
            for block in layout.blocks(0):
                before = block.shard * layout.shard_rows
                part = {"partition_shape": (layout.shard_rows, 4), "partition_offset": (before, 0)}
                shard = first((layout.num_rows, 4), dtype=tf.float32, **part)
                for values, row in ((whole, before + block.offset), (shard, block.offset)):
                    np.testing.assert_array_equal(
                        values[row : row + block.num_rows], expected[block.first : block.first + block.num_rows]
                    )


def excluding(name: str, kind: type = tf_keras.optimizers.AdamW) -> Any:
    optimizer = kind(0.1)
    optimizer.exclude_from_weight_decay(var_names=[name])
    return optimizer


@pytest.mark.parametrize(
    ("make", "refused"),
    [
        (lambda: tf_keras.optimizers.Adam(0.1), False),
        (lambda: excluding("^b/embeddings:0$"), True),
        (lambda: excluding("^b/embeddings:0$", tf_keras.optimizers.Adam), False),  # without a decay
        (lambda: excluding("embeddings:0$"), False),
        (lambda: excluding("stack_4_of_a"), True),
        (lambda: excluding("bias"), False),
    ],
)
def test_weight_decay_of_some_tables_is_refused_for_stacks(make, refused):
    embeddings.check_storable(_network("a", "b", stack=False), make())
    network = _network("a", "b", stack=True)
    with pytest.raises(ConfigError, match=r"^optimizer") if refused else contextlib.nullcontext():
        embeddings.check_storable(network, make())


def _checkpointed(kind: str, stack: bool, rate: Any, steps: int = 0, **options: Any) -> tuple[Any, Any]:
    """An optimizer after some steps of a network, and their checkpoint."""
    kinds = {"Adam": tf_keras.optimizers.Adam, "LazyAdam": sparse.LazyAdam}
    network, optimizer = _network("a", "b", stack=stack), kinds[kind](rate, **options)
    optimizer.build(network.trainable_variables)
    for _ in range(steps):
        optimizer.apply_gradients([(tf.ones_like(each), each) for each in network.trainable_variables])
    return optimizer, logical_checkpoint(network, optimizer)


@pytest.mark.parametrize(
    ("kind", "stack", "with_schedule"), [("Adam", True, True), ("Adam", False, False), ("LazyAdam", True, False)]
)
def test_a_schedule_and_a_rate_take_each_others_place(tmp_path, kind, stack, with_schedule):
    schedule, path = tf_keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5), str(tmp_path / "written")
    rates = (schedule, 0.2) if with_schedule else (0.2, schedule)
    before, written = _checkpointed(kind, stack, rates[0], steps=3)
    after, restored = _checkpointed(kind, stack, rates[1])
    write_values(written, path)
    restored.restore(path, Contents.of("Adam", [], written.keys))
    assert int(after.iterations) == 3
    assert len(after.variables()) == len(before.variables()) > 6
    for left, right in zip(before.variables(), after.variables()):
        np.testing.assert_array_equal(left, right)
    if with_schedule:
        assert float(after.learning_rate) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("kind", "stack", "name"),
    [("Adam", True, "iteration"), ("Adam", False, "dense/kernel")],
)
def test_a_checkpoint_without_a_value_of_an_object_does_not_restore(tmp_path, kind, stack, name):
    _, checkpoint = _checkpointed(kind, stack, 0.1)
    path = str(tmp_path / "written")
    write_values(checkpoint, path)
    there = {each: key for each, key in checkpoint.keys.items() if each != name}
    assert len(there) < len(checkpoint.keys)
    with pytest.raises(KeyError, match=f"no value for {name}"):
        checkpoint.restore(path, Contents.of(kind, [], there))


def test_a_compiled_network_restores_from_a_checkpoint_with_another_optimizer(tmp_path):
    """A network tracks the optimizer that it was compiled with, which its evaluation does not need."""
    networks = [_network("a", "b", stack=stack) for stack in (False, True)]
    written, path = logical_checkpoint(networks[0]), str(tmp_path / "written")
    write_values(written, path)
    networks[1].compile(optimizer="adam", loss="mse")
    logical_checkpoint(networks[1]).restore(path, Contents.of("", [], written.keys))
    ids = {name: np.arange(6)[:, np.newaxis] for name in "ab"}
    np.testing.assert_array_equal(networks[0](ids), networks[1](ids))


@pytest.mark.parametrize("stack", [True, False])
def test_weights_of_keras_without_a_table_are_those_of_another_model(tmp_path, stack):
    _network("a", stack=stack).save_weights(str(tmp_path / "ckpt-1"))
    with pytest.raises(ConfigError, match="b/embeddings"):
        KerasCheckpoints(tmp_path).restore(Model(_network("a", "b", stack=stack)), "ckpt-1", 1)
    _network("a", "b", stack=False).save_weights(str(tmp_path / "ckpt-2"))
    network = _network("a", "b", stack=stack)
    KerasCheckpoints(tmp_path).restore(Model(network), "ckpt-2", 1)
    prediction = network({name: np.ones((1, 1), np.int64) for name in "ab"})
    assert np.isfinite(prediction).all()


def test_the_configuration_keeps_that_a_collection_is_stored_alone():
    with stored_alone():
        layer = EmbeddingCollection(_tables("a", "b"), stack=True)
    clone = EmbeddingCollection.from_config(layer.get_config())
    assert [len(each.stacks) for each in (layer, clone)] == [2, 2]


@pytest.mark.parametrize("compiled", [True, False])
def test_pooled_features_of_batches_of_other_sizes_are_an_error(compiled):
    """Lists of 4, 3 and 5 examples are as many as three times 4."""
    layer = EmbeddingCollection(_tables("a", "b", "c"), stack=True, combiner="sum")
    lists = {name: tf.RaggedTensor.from_row_lengths([0] * 6, [6] + [0] * more) for name, more in zip("abc", (3, 2, 4))}
    called = tf.function(layer) if compiled else layer
    with pytest.raises(tf.errors.InvalidArgumentError, match="same number of examples"):
        called(lists)


def test_the_tables_in_stacks_are_those_that_share_a_variable():
    assert embeddings.tables_in(_network("a", "b", stack=True)) == {"a/embeddings", "b/embeddings"}
    assert embeddings.tables_in(_network("a", "b", stack=False)) == set()


def test_no_batch_is_read_once_every_stack_is_decided():
    program: Any = SimpleNamespace(network=_network("a", "b", stack=True), distribution=SimpleNamespace(coordinator=1))
    (stack,) = stacks_of(program.network)
    stack.deduplicate = True
    assert decide_lookups(program) == []


def test_two_collections_with_a_table_of_the_same_name_are_refused():
    with pytest.raises(ConfigError, match="'item'"):
        embeddings.check_storable(baskets(Basket()), tf_keras.optimizers.Adam(0.1))


def test_a_checkpoint_reads_a_small_stack_in_one_operation_for_any_number_of_tables():
    """A thousand tables took ten seconds to trace."""

    def traced(num_tables: int) -> Any:
        layer = EmbeddingCollection(_tables(*(f"table_{index}" for index in range(num_tables))), stack=True)
        layer.build(None)
        (variable,) = layer.trainable_variables
        variable.assign(tf.random.normal(variable.shape))
        views = layer.stacks[0].views(variable, layer.stacks[0].variable_name).children
        function = tf.function(lambda: {name: view.read() for name, view in views.items()}).get_concrete_function()
        for name, rows in function().items():
            np.testing.assert_array_equal(rows, views[name].read())
        kinds = [each.type for each in function.graph.get_operations()]
        return kinds.count("ResourceGather"), kinds.count("SplitV")

    assert traced(2) == traced(12) == (1, 1)


def test_a_checkpoint_copies_the_rows_of_a_small_stack_once():
    def copies(num_tables: int) -> int:
        network = _network(*(f"table_{index}" for index in range(num_tables)), stack=True)
        definition = logical_checkpoint(network).saving()._stage.graph.as_graph_def()
        branches = [node.op for function in definition.library.function for node in function.node_def]
        return branches.count("DeepCopy")

    assert copies(2) == copies(12) == 2  # the kernel and the bias of the dense layer
