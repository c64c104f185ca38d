"""Stacks of tables where something is missing, unusual or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import run_config

from psrun.errors import ConfigError

MODEL = (
    "~model.embedding_dim", "~data.num_train_examples", "~data.num_eval_examples", "data._target_=embeddings.Basket",
    "data.global_batch_size=8", "evaluation=none", "model._target_=embeddings.basket",
)  # fmt: skip
pytestmark = pytest.mark.tensorflow


def _tables(*names: str, **options: Any) -> list[Any]:
    from psrun.layers import Table

    return [Table(name, (name,), 10 + 3 * index, 4, **options) for index, name in enumerate(names)]


def _network(*names: str, stack: bool) -> Any:
    import tf_keras

    from psrun.layers import EmbeddingCollection

    tf_keras.backend.clear_session()
    inputs = {name: tf_keras.Input((1,), dtype="int64", name=name) for name in names}
    rows = EmbeddingCollection(_tables(*names), stack=stack, name="tables")(inputs)
    summed = rows[names[0]] if len(names) == 1 else tf_keras.layers.Add()(list(rows.values()))
    return tf_keras.Model(inputs, tf_keras.layers.Dense(1)(tf_keras.layers.Flatten()(summed)))


def test_a_shard_of_which_a_batch_uses_no_row_stays_as_it_is():
    import tensorflow as tf

    from psrun.layers import EmbeddingCollection
    from psrun.optimizers.sparse import SparseAdagrad

    layer = EmbeddingCollection(_tables("a", "b"), stack=True)
    layer.build(None)
    (variable,) = layer.trainable_variables
    optimizer, before = SparseAdagrad(0.1), variable.numpy()
    optimizer.build([variable])
    no_row = tf.IndexedSlices(tf.zeros([0, 4]), tf.zeros([0], tf.int32), variable.shape)
    optimizer.apply_gradients([(no_row, variable)])
    np.testing.assert_array_equal(variable, before)
    bad = tf.IndexedSlices([[0.0] * 4, [np.nan] * 4], [0, layer.stacks[0].layout.offset(1)], variable.shape)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"not finite: the gradient of table.*\[b\]"):
        optimizer.apply_gradients([(bad, variable)])


def test_tables_of_a_stack_begin_with_any_initializer():
    import tensorflow as tf
    import tf_keras

    from psrun.layers import first_values
    from psrun.layers.layout import StackLayout

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
            first = first_values.of(layout, [initializer, other])
            whole = first((layout.num_rows, 4), dtype=tf.float32)
            for block in layout.blocks(0):
                before = block.shard * layout.shard_rows
                part = {"partition_shape": (layout.shard_rows, 4), "partition_offset": (before, 0)}
                shard = first((layout.num_rows, 4), dtype=tf.float32, **part)
                for values, row in ((whole, before + block.offset), (shard, block.offset)):
                    np.testing.assert_array_equal(
                        values[row : row + block.num_rows], expected[block.first : block.first + block.num_rows]
                    )


@pytest.mark.parametrize("scaled", [False, True])
def test_a_legacy_optimizer_is_refused_for_stacks(scaled):
    import tf_keras

    from psrun.layers import stacks

    optimizer = tf_keras.optimizers.legacy.Adam(0.1)
    optimizer = tf_keras.mixed_precision.LossScaleOptimizer(optimizer) if scaled else optimizer
    with pytest.raises(ConfigError, match=r"legacy.Adam loses its slots .*\(a, b\).*use tf_keras.optimizers.Adam, or"):
        stacks.check_optimizer(_network("a", "b", stack=True), optimizer)
    stacks.check_optimizer(_network("a", "b", stack=False), optimizer)
    stacks.check_optimizer(_network("a", "b", stack=True), tf_keras.optimizers.Adam(0.1))


def test_a_plan_refuses_a_legacy_optimizer_for_stacks():
    from psrun.data import load
    from psrun.roles import planner

    pieces = (*MODEL, "optimizer._target_=tf_keras.optimizers.legacy.Adam")
    run = run_config(*pieces)
    with pytest.raises(ConfigError, match=r"optimizer: legacy.Adam loses its slots of tables .*\(item, shop, city\)"):
        planner.make(run, load.load_source(run))
    run = run_config(*pieces, "+model.stack=false")
    planner.make(run, load.load_source(run))
