"""Placement: the prediction against what TensorFlow does, own partitioners, and large variables."""

from __future__ import annotations

import sys
import textwrap
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support import SMALL, run_config
from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

from psrun import layers
from psrun.cluster import placement, strategy
from psrun.config import choices
from psrun.data import loading
from psrun.optimizers.sparse import LazyAdam, SparseAdagrad
from psrun.program import build
from psrun.program.build import build_program, build_state, start_afresh
from psrun.roles import planner
from psrun.tf_internals.strategies import variables_of


def _cluster(cluster_spec, run):
    return strategy.parameter_servers(cluster_spec[2], run.partitioner, placement.RULES[run.cluster.placement])


PLANS = [
    pytest.param("adagrad", ("model=embedding", "partitioner=none"), marks=pytest.mark.thorough),
    ("ftrl", ("model=embedding", "partitioner=fixed_shards", "partitioner.num_shards=3")),
    pytest.param("rowwise_adagrad", ("model=embedding", "partitioner=min_size", "partitioner.min_shard_bytes=100"),
                 marks=pytest.mark.thorough),
    ("adam", ("model=dense", "partitioner=max_size", "partitioner.max_shard_bytes=1000", "partitioner.max_shards=4")),
    pytest.param("sparse_sgd", ("model=dense", "partitioner=fixed_shards", "trainer=fit", "evaluation=validation"),
                 marks=pytest.mark.thorough),
    ("adagrad", ("model=dense", "cluster.placement=round_robin", "partitioner=max_size",
                 "partitioner.max_shard_bytes=1000")),
]  # fmt: skip


@pytest.mark.inprocess
@pytest.mark.parametrize(("optimizer", "pieces"), PLANS)
def test_the_plan_is_what_tensorflow_does(cluster_spec, optimizer, pieces):
    data = "features" if "model=embedding" in pieces else "regression"
    run = run_config(f"optimizer={optimizer}", *pieces, *SMALL[data])
    source = loading.load_source(run)
    planned = planner.make(run, source).placed
    start_afresh(run.seed)
    built = build_program(run, source, _cluster(cluster_spec, run))
    build_state(built)
    assert sorted(planned, key=repr) == sorted(build.placement_of(built), key=repr)
    assert {p.task for p in planned if p.kind == "model"} == {"ps-0", "ps-1"}


@pytest.mark.inprocess
def test_any_scope_of_the_strategy_places_variables_by_the_rule(cluster_spec):
    asked = []

    def rule(sizes, held_bytes, num_placed):
        asked.append((list(sizes), tuple(held_bytes), num_placed))
        return placement.greedy(sizes, held_bytes, num_placed)

    ps_strategy = strategy.parameter_servers(cluster_spec[2], choices.FixedShards("fixed_shards", 2), rule).strategy
    with ps_strategy.scope():
        scalar = tf.Variable(1.0)
        table = tf.Variable(lambda: tf.ones([3, 2]))  # of a shape that nobody names
        with ps_strategy.extended.colocate_vars_with(table.variables[0]):
            slot = tf.Variable(tf.zeros([2, 2]))
    with ps_strategy.scope():
        late = tf.Variable(np.zeros(1, np.float64))
    assert asked == [
        ([4], (0, 0), 0),
        ([16, 8], (4, 0), 1),
        ([8], (12, 32), 3),
    ]
    names = [placement.task_of(v.device) for v in (scalar, *table.variables, slot, *getattr(late, "variables", [late]))]
    assert names == ["ps-0", "ps-1", "ps-0", "ps-1", "ps-0"]
    np.testing.assert_array_equal(tf.concat(table.variables, 0), np.ones([3, 2]))


@pytest.mark.inprocess
def test_variables_that_shards_do_not_fit_are_in_one_piece(cluster_spec):
    made = strategy.parameter_servers(cluster_spec[2], choices.FixedShards("fixed_shards", 2))
    with made.strategy.scope():
        growing = tf.Variable([0.0, 0.0], shape=[None], trainable=False)  # as layers have that `adapt`
        growing.assign([1.0, 2.0, 3.0])
        words = tf.Variable(["a", "b"], trainable=False)
        generator = tf.random.Generator.from_seed(1)
        table = tf.Variable([[1], [2], [3], [4]], trainable=False)
    own = [growing, words, table, generator.state, object()]  # Keras lists tables of adapted lookups
    placed = placement.observed("model", variables_of(SimpleNamespace(variables=own)))
    shapes = [(each.shard, each.variable_shape, each.bytes) for each in placed]
    assert shapes == [(0, (3,), 12), (0, (2,), 0), (0, (4, 1), 8), (1, (4, 1), 8), (0, (3,), 24)]


@pytest.mark.tensorflow
def test_variables_of_one_name_are_variables_of_their_own():
    twins = [tf.Variable(tf.zeros([rows, 2]), name="twin") for rows in (3, 5)]
    shards = [tf.Variable(tf.zeros([rows, 2]), name=f"cut/part_{number}") for number, rows in enumerate((4, 3))]
    placed = placement.observed("model", [*twins, *shards])
    assert [each.variable_shape for each in placed] == [(3, 2), (5, 2), (7, 2), (7, 2)]


@pytest.mark.inprocess
def test_a_strategy_creates_variables_where_it_is_guided():
    """What `tf_internals.cluster.VariableCreation` takes hold of has no public name."""
    from tensorflow.python.distribute.parameter_server_strategy_v2 import ParameterServerStrategyV2Extended as Extended

    names = Extended._create_variable_round_robin.__code__.co_names
    assert {"_variable_count", "_num_ps"} <= set(names)
    assert "_variable_partitioner" in Extended._create_variable.__code__.co_names


@pytest.mark.tensorflow
def test_the_plan_spreads_the_bytes_of_a_step_over_tasks():
    run = run_config("partitioner=fixed_shards", "cluster.num_workers=3", *SMALL["features"])
    source = loading.load_source(run)
    plan = planner.make(run, source)
    # Each of three replicas of a worker reads the kernel and the bias, and its own rows.
    split = run_config("partitioner=fixed_shards", "cluster.replicas_per_worker=3", *SMALL["features"])
    traffic = planner.make(split, source).traffic
    assert traffic.read_bytes == plan.traffic.read_bytes + 2 * (20 * 4 + 4)
    assert traffic.pushed_bytes == plan.traffic.pushed_bytes
    # A table of 8 x 20 and a kernel of 20 x 1, each cut in two, and a bias.
    table = plan.traffic_by_variable["embedding/embeddings"]
    assert plan.traffic.read_bytes == table.read_bytes + 20 * 4 + 4
    moved = plan.traffic_by_task
    assert {task: t.read_bytes for task, t in moved.items() if task.startswith("worker")} == dict.fromkeys(
        ("worker-0", "worker-1", "worker-2"), plan.traffic.read_bytes
    )
    assert moved["ps-0"].pushed_bytes + moved["ps-1"].pushed_bytes == 3 * plan.traffic.pushed_bytes
    bias = next(p.task for p in plan.placed if p.variable == "prediction/bias")
    assert moved[bias].read_bytes == 3 * (table.read_bytes // 2 + 40 + 4)
    assert moved["chief-0"] == planner.Traffic(0, 0)
    alone = run_config("cluster=none", *SMALL["features"])
    assert planner.make(alone, source, memory_bytes=1000).traffic_by_task == {}


# -- partitioners named by `_target_`, as TensorFlow takes them


OF_TENSORFLOW = "tensorflow.distribute.experimental.partitioners.FixedShardsPartitioner"


@pytest.fixture
def cutting(tmp_path, monkeypatch):
    """A module of a person's own."""
    (tmp_path / "cutting.py").write_text(
        textwrap.dedent("""
        import numpy as np

        def by_rows(shape, dtype, axis=0, rows: int = 3):
            return [np.int64(-(-shape[0] // rows)), *(1 for _ in shape[1:])]

        class Wide:
            def __init__(self, least: int): self.least = least
            def __call__(self, shape, dtype, axis=0): return (2,) if shape[0] >= self.least else (1,)
        """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("cutting", None)


def custom(name: str, *options: str) -> list[str]:
    return ["partitioner=custom", f"partitioner._target_={name}", *(f"+partitioner.{option}" for option in options)]


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("overrides", "counts"),
    [
        (custom(OF_TENSORFLOW, "num_shards=4"), [4, 1]),
        (custom("cutting.by_rows"), [3, 1]),
        (custom("cutting.by_rows", "rows=2"), [4, 1]),
        (custom("cutting.Wide", "least=7"), [2]),
    ],
)
def test_it_is_called_as_tensorflow_calls_it(cutting, overrides, counts):
    partition = strategy.make_partitioner(run_config(*overrides).partitioner)
    assert partition(shape=tf.TensorShape([7, 3]), dtype=tf.float32) == counts


@pytest.mark.thorough
@pytest.mark.inprocess
def test_a_run_is_cut_as_planned_saved_and_resumed_with_another_partitioner(train, cutting):
    by_rows = custom("cutting.by_rows")
    few = ("trainer.steps_per_epoch=3", "trainer.steps_per_execution=1")
    done, folder = train(*by_rows, *few, "trainer.epochs=1")
    assert [row["shard"] for row in done["placement"] if row["variable"] == "embedding/embeddings"] == [0, 1, 2]
    run = run_config(*by_rows, *SMALL["features"])
    planned = [asdict(shard) for shard in planner.make(run, loading.load_source(run)).placed]
    assert sorted(map(str, planned)) == sorted(
        str({**row, "variable_shape": tuple(row["variable_shape"])}) for row in done["placement"]
    )
    resumed, _ = train(*custom(OF_TENSORFLOW, "num_shards=4"), *few, f"resume='{folder.path}'", into=folder)
    assert resumed["steps"]["applied"] == 2 * done["steps"]["applied"]
    assert [row["shard"] for row in resumed["placement"] if row["variable"] == "embedding/embeddings"] == [0, 1, 2, 3]


# -- large variables


@pytest.mark.inprocess
def test_a_large_table_and_its_slots_are_filled_in_place_with_the_same_numbers(cluster_spec, monkeypatch):
    def create_variables() -> dict[str, Any]:
        start_afresh(1)
        distribution = strategy.parameter_servers(cluster_spec[1], choices.FixedShards("fixed_shards", 2))
        with strategy.creating_in_place(), distribution.strategy.scope():
            layer = layers.Embedding(20000, 40)
            layer.build(None)
            adagrad, adam = SparseAdagrad(initial_accumulator_value=0.3), LazyAdam()
            for optimizer in (adagrad, adam):
                optimizer.build(layer.trainable_variables)
        tables = {f"table {index}": shard for index, shard in enumerate(layer.embeddings.variables)}
        slots = {f"slot {index}": slot for index, slot in enumerate([*adagrad._accumulators, *adam._momentums])}
        return {**tables, **slots}

    filled = create_variables()
    monkeypatch.setattr(strategy, "_LARGE_BYTES", 1 << 40)
    plain = create_variables()
    assert len(filled) == 6
    for name, variable in filled.items():
        assert isinstance(variable._v, UninitializedVariable), name
        assert not isinstance(plain[name]._v, UninitializedVariable), name
        assert variable.device == plain[name].device
        np.testing.assert_array_equal(variable.numpy(), plain[name].numpy(), err_msg=name)
    assert set(np.unique(filled["slot 0"].numpy())) == {np.float32(0.3)}
    assert np.ptp(filled["table 0"].numpy()) > 0.05
