"""Embedding tables that are stored as one variable: the same numbers, checkpoints and messages as of single tables."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from embeddings import Basket, basket
from outcomes import check_equal
from support import SAME, run_config

from psrun.checkpoint import commands
from psrun.checkpoint.checkpoints import compare, logical_checkpoint
from psrun.checkpoint.storage import Contents, Store
from psrun.cluster import strategy
from psrun.data import loading
from psrun.errors import ExitCode, NonFiniteLossError, PsrunError
from psrun.layers import EmbeddingCollection, Table
from psrun.layers.collection import Stack, arranged_for
from psrun.layers.lookup import RowOrder
from psrun.optimizers.sparse import LazyAdam
from psrun.program.embeddings import collections, tables_of
from psrun.roles import planner
from psrun.tf_internals.keras import CompositeOptimizer

MODEL = (
    "~model.embedding_dim", "~data.num_train_examples", "~data.num_eval_examples", "data._target_=embeddings.Basket",
    "data.global_batch_size=8", "evaluation=none", "model._target_=embeddings.basket", "optimizer=lazy_adam",
)  # fmt: skip
TABLES = {"item", "shop", "city", "brand"}
pytestmark = pytest.mark.inprocess


@pytest.mark.parametrize("num_servers", [1, 3, 20])
def test_positions_are_those_of_the_layout(num_servers):
    tables = (Table("a", ("x", "y"), 100, 4), Table("b", ("z",), 37, 4, spread=False), Table("c", ("w",), 3, 4))
    stack = Stack("s", tables, "error", False)
    with arranged_for(num_servers):
        stack.arrange()
    ids = {"x": tf.range(99)[:, None], "y": tf.range(1, 100)[:, None]}
    ids |= {"z": tf.range(99)[:, None] % 37, "w": tf.repeat(tf.range(99)[:, None] % 3, 2, axis=1)}
    lookup = stack.positions(ids, "layer")
    assert list(lookup.columns.values()) == [1, 1, 1, 2]
    by_table: dict[str, set[int]] = {}
    for column, name in enumerate("aabcc"):
        by_table.setdefault(name, set()).update(np.reshape(lookup.positions, (99, 5))[:, column].tolist())
    for index, table in enumerate(tables):
        rows = {
            block.shard * stack.layout.shard_rows + block.offset + row
            for block in stack.layout.blocks(index)
            for row in range(block.num_rows)
        }
        assert len(by_table[table.name]) == table.num_ids
        assert by_table[table.name] <= rows


def test_a_cluster_trains_stacks_as_one_process_trains_single_tables(train, capsys, monkeypatch):
    """One worker applies the same steps in the same order; the checkpoints compare by table, slots included.

    The plan names the tables, and counts them as the run does.
    """
    folders = []
    for stack, pieces in (("false", ["cluster=none"]), ("auto", ["cluster=inprocess", "partitioner=none"])):
        result, folder = train(*MODEL, f"+model.stack={stack}", *pieces, num_workers=1)
        folders.append(folder)
    run = run_config(*MODEL, "+model.stack=auto", "cluster=inprocess", "partitioner=none")
    source = loading.load_source(run)
    plan = planner.make(run, source)
    assert _placed(map(vars, plan.placed)) == _placed(result["placement"])
    apart = planner.make(run_config(*MODEL, "+model.stack=false", "cluster=inprocess", "partitioner=none"), source)
    assert plan.traffic_by_variable == apart.traffic_by_variable
    assert {f"{name}/embeddings" for name in TABLES} < set(plan.traffic_by_variable)

    rows = {row["variable"]: set() for row in result["placement"]}
    for row in result["placement"]:
        rows[row["variable"]].add(row["task"])
    assert {name.rpartition("/")[0] for name in rows if name.endswith("/embeddings")} >= TABLES
    assert all(rows[f"{name}/embeddings"] == {"ps-0", "ps-1"} for name in TABLES - {"brand"})  # brand is alone
    assert rows["brand/embeddings"] == {"ps-0"} or rows["brand/embeddings"] == {"ps-1"}
    assert not any("stack" in name for name in rows)
    prefixes = [next(str(file)[: -len(".index")] for file in each.checkpoints.glob("*.index")) for each in folders]
    comparison = {row.name: row for row in compare(*prefixes)}
    assert {f"{slot}{name}/embeddings" for slot in ("", "m/", "v/") for name in TABLES} < set(comparison)
    assert not any("only in" in row.differs or " is " in row.differs for row in comparison.values())
    held = [_values(folder) for folder in folders]
    check_equal(held[1], held[0], **SAME)

    monkeypatch.setenv("COLUMNS", "200")
    shown = []
    for prefix in prefixes:
        assert commands.main(["inspect", prefix]) == ExitCode.DONE
        lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
        rows_shown = [re.split(" {2,}", line) for line in lines[lines.index("Variables") + 2 : lines.index("Files")]]
        shown.append({name: cells for name, *cells in rows_shown})
    stacked = {name: cells for name, cells in shown[1].items() if name.endswith("/embeddings")}
    assert stacked.keys() == {f"{slot}{name}/embeddings" for slot in ("", "m/", "v/") for name in TABLES}
    assert {name: cells[:2] for name, cells in shown[1].items()} == {n: cells[:2] for n, cells in shown[0].items()}
    assert stacked["city/embeddings"] == ["model", "40x3 float32", "ps-0 ps-1", "480 bytes"]
    assert stacked["m/shop/embeddings"][:3] == ["optimizer", "8x3 float32", "ps-1 ps-0"]
    assert not any("stack" in name for name in shown[1])


def _placed(rows: Any) -> set[tuple[Any, ...]]:
    return {(row["variable"], row["shard"], row["task"], row["bytes"]) for row in rows if row["kind"] != "metric"}


def _values(folder: Any) -> dict[str, np.ndarray]:
    """All values in the newest checkpoint of a run, by name."""
    store = Store(folder.checkpoints)
    held, reader = store.manifest(store.steps()[0]), tf.train.load_checkpoint(store.prefix(store.steps()[0]))
    return {name: reader.get_tensor(key) for name, key in held.contents.keys.items()}


@pytest.mark.parametrize("two", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_every_layout_restores_every_other_bit_by_bit(cluster_spec, tmp_path, two):
    """From one layout to the next and back to the first, with all slots; each then takes the same step."""
    batch = next(iter(Basket().train(batch_size=32, seed=tf.constant(1, tf.int64))))
    sharded = strategy.parameter_servers(cluster_spec[1], run_config("partitioner=fixed_shards").partitioner).strategy
    before: tuple[str, Contents] | None = None
    values: dict[str, np.ndarray] = {}
    chain = [
        (None, False, 1),
        (sharded, True, 2),
        (None, True, 1),
        (sharded, False, 2),
        (None, True, 3),
        (None, False, 1),
    ]
    for number, (on, stack, num_shards) in enumerate(chain):
        tf_keras.backend.clear_session()
        with arranged_for(num_shards), on.scope() if on else contextlib.nullcontext():
            network, optimizer = basket(Basket(), stack=stack), LazyAdam(0.1)
            if two:
                of_tables = tables_of(network)
                optimizer = CompositeOptimizer(
                    tf_keras.optimizers.Adagrad(0.1), optimizer, lambda _, tables=of_tables: tables
                )
            optimizer.build(network.trainable_variables)
        checkpoint = logical_checkpoint(network, optimizer)

        @tf.function
        def step(network: Any = network, optimizer: Any = optimizer) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((network(batch[0]) - batch[1]) ** 2)
            gradients = tape.gradient(loss, network.trainable_variables)
            optimizer.apply_gradients(zip(gradients, network.trainable_variables))

        if before is None:
            step()
        else:
            checkpoint.restore(*before)
        path = str(tmp_path / str(number))
        saving = checkpoint.saving()
        saving.stage(copies=True)
        present = [variable.read_value() for variable in network.variables]
        step()  # the file holds the values before it
        assert not all(np.array_equal(old, new) for old, new in zip(present, network.variables))
        saving.write(path)
        reader = tf.train.load_checkpoint(path)
        held = {name: reader.get_tensor(key) for name, key in checkpoint.keys.items()}
        assert {f"{slot}{name}/embeddings" for slot in ("", "m/", "v/") for name in TABLES} < set(held)
        assert np.abs(held["m/item/embeddings"]).max() > 0
        check_equal(held, values)
        values, before = held, (path, Contents.of("LazyAdam", [], checkpoint.keys))


def test_an_id_outside_of_its_table_is_an_error_with_feature_table_and_ids(train):
    with pytest.raises(PsrunError, match=r"\[shop \(table shop, ids from 0 to 6\)\] \[7\] \[7\]"):
        train(*MODEL, "cluster=inprocess", "trainer=custom_loop", "+data.outside=true")


@pytest.mark.thorough
def test_a_gradient_that_is_not_finite_names_the_table(train):
    with pytest.raises(NonFiniteLossError, match=r"gradient of.*(item|shop|city|brand)"):
        train(*MODEL, "cluster=inprocess", "trainer=fit", "+model.root=true")


@pytest.mark.thorough
def test_collections_with_different_optimizers_train_as_single_tables(train):
    """Rules and learning rates differ by collection, in a loop of the user; each collection is a stack."""
    own = [*MODEL, "model._target_=embeddings.two_collections", "trainer=own_loop"]
    own += ["trainer._target_=user_code.two_optimizers", "optimizer=sparse_adagrad", "optimizer.learning_rate=0.05"]
    _, folder = train(*own, "+model.stack=false", "cluster=none", num_workers=1)
    result, stacked = train(*own, "+model.stack=true", "cluster=inprocess", num_workers=1)
    assert result["steps"]["applied"] == 24
    expected, held = _values(folder), _values(stacked)
    check_equal(held, expected, **SAME)
    # The other optimizer has trained the other tables: the slots of the run's optimizer for them are as at the start.
    slots = {name: held[f"accumulator/{name}/embeddings"] for name in TABLES}
    assert {name for name, slot in slots.items() if len(np.unique(slot)) > 1} == {"item", "shop"}
    assert all(np.abs(held[f"{name}/embeddings"] - 1).max() > 0.01 for name in TABLES)


def test_a_stack_is_not_taken_for_one_with_a_longer_name():
    tables = [Table("a", ("x",), 8, 2), Table("b", ("y",), 8, 2)]
    with arranged_for(1):
        (stack,) = EmbeddingCollection(tables, name="t").stacks
        stack.arrange()
    shape = (stack.num_rows, 2)
    for name in ("t/stack_2_of_a/embeddings", "m/t/stack_2_of_a/embeddings", "Adam/t/stack_2_of_a/embeddings/m"):
        assert stack.holds(name, shape)
    assert not stack.holds("m/other_t/stack_2_of_a/embeddings", shape)
    assert not stack.holds("m/t/stack_2_of_a/embeddings", ())


def test_ids_of_a_stack_fit_in_int32_and_tables_above_the_limit_stay_alone():
    tables = [Table(name, (name,), 900_000_000, 1) for name in "abcd"]
    layer = EmbeddingCollection(tables, stack=True)
    assert [[table.name for table in stack.tables] for stack in layer.stacks] == [["a", "b"], ["c", "d"]]
    tables = [Table(name, (name,), size, 4) for name, size in (("a", 10), ("b", 100), ("c", 20))]
    layer = EmbeddingCollection(tables, max_stacked_table_bytes=100 * 4 * 4 - 1)
    assert [[table.name for table in stack.tables] for stack in layer.stacks] == [["a", "c"], ["b"]]


def test_weights_that_keras_saves_fit_every_layout(cluster_spec, tmp_path):
    """A callback of Keras saves by its own way, and a network of another layout loads that."""
    sharded = strategy.parameter_servers(cluster_spec[1], run_config("partitioner=none").partitioner).strategy
    with sharded.scope():
        network = basket(Basket(), stack=True)
    (layer,) = collections(network)
    values = np.random.default_rng(2).normal(size=(RowOrder.of(300).num_rows, 3)).astype(np.float32)
    for block in layer.stacks[0].layout.blocks(0):
        shard = layer.stacks[0].variable.variables[block.shard]
        places = tf.range(block.offset, block.offset + block.num_rows)
        shard.scatter_update(tf.IndexedSlices(values[block.first : block.first + block.num_rows], places))
    network.save_weights(str(tmp_path / "weights"))
    alone = basket(Basket(), stack=False)
    alone.load_weights(str(tmp_path / "weights")).assert_existing_objects_matched()
    np.testing.assert_array_equal(collections(alone)[0].stacks[0].variable, values)
