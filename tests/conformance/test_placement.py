"""Placement: the arithmetic without TensorFlow, and the prediction against what TensorFlow does."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from support import SMALL, run_config

from psrun.cluster import placement
from psrun.cluster.placement import Placed, Planned
from psrun.config import choices
from psrun.errors import ConfigError

VARIABLES = [
    Planned("table", (5, 2), "float32", 4, "model"),
    Planned("bias", (1,), "float32", 4, "model"),
    Planned("m/table", (5, 2), "float32", 4, "optimizer", beside="table"),
    Planned("iteration", (), "int64", 8, "optimizer"),
    Planned("total", (6,), "float32", 4, "metric"),
]


def test_in_turn_shards_go_to_the_next_parameter_servers_and_slots_beside_their_variable():
    placed = placement.predicted(VARIABLES, num_ps=2, num_shards=lambda _: 3, rule=placement.round_robin)
    assert [(p.variable, p.shard, p.task, p.bytes) for p in placed] == [
        ("table", 0, "ps-0", 16), ("table", 1, "ps-1", 16), ("table", 2, "ps-0", 8),
        ("bias", 0, "ps-1", 4),
        ("m/table", 0, "ps-0", 16), ("m/table", 1, "ps-1", 16), ("m/table", 2, "ps-0", 8),
        ("iteration", 0, "ps-0", 8),
        ("total", 0, "ps-1", 8), ("total", 1, "ps-0", 8), ("total", 2, "ps-1", 8),
    ]  # fmt: skip


def test_greedily_they_go_where_the_fewest_bytes_are_those_of_slots_included():
    placed = placement.predicted(VARIABLES, num_ps=3, num_shards=lambda variable: 2 if variable.shape[0] > 1 else 1)
    assert [(p.variable, p.shard, p.task, p.bytes) for p in placed] == [
        ("table", 0, "ps-0", 24), ("table", 1, "ps-1", 16),
        ("bias", 0, "ps-2", 4),
        ("m/table", 0, "ps-0", 24), ("m/table", 1, "ps-1", 16),
        ("iteration", 0, "ps-2", 8),
        ("total", 0, "ps-1", 12), ("total", 1, "ps-2", 12),
    ]  # fmt: skip
    assert placement.balance(placed).bytes_by_task == {"ps-0": 48, "ps-1": 44, "ps-2": 24}


@pytest.mark.parametrize(
    ("sizes", "held", "first"),
    [
        ([5], [0, 0, 0], 0),
        ([5], [9, 2, 7], 1),
        ([5], [100, 4, 3, 3], 2),
        ([8, 8], [100, 60, 0, 0], 2),
        ([8, 8], [0, 60, 50, 0], 3),  # the last server and, after it, the first
        ([8, 8], [16, 16, 0], 1),  # the fullest will hold 24 in any case
        ([9, 1], [3, 0], 1),
        ([4, 4, 2], [3, 0], 1),  # more shards than servers
    ],
)
def test_the_rule_takes_the_servers_of_which_the_fullest_then_holds_least(sizes, held, first):
    assert placement.greedy(sizes, held, 0) == first


def test_what_is_moved_for_a_variable_is_spread_over_its_shards_and_nothing_is_lost():
    shards = [Placed("table", i, f"ps-{i % 2}", size, "model", (5, 2), "float32") for i, size in enumerate((16, 16, 8))]
    assert placement.spread(100, shards) == {"ps-0": 60, "ps-1": 40}
    assert placement.spread(7, shards) == {"ps-0": 4, "ps-1": 3}
    assert placement.spread(0, [Placed("empty", 0, "ps-0", 0, "model", (0,), "float32")]) == {"ps-0": 0}


def test_variables_that_do_not_fit_into_the_memory_are_refused_with_the_numbers():
    placed = placement.predicted(VARIABLES, num_ps=2, num_shards=None)  # 40 + 4 + 40 + 8 bytes, and metrics
    placement.check_memory(placed, 92)
    with pytest.raises(ConfigError) as raised:
        placement.check_memory(placed, 91)
    (problem,) = raised.value.problems
    assert problem.key == "model"
    assert "variables of 92 bytes" in problem.message
    assert "(ps-0 80, ps-1 12; the largest is table, 40), more than the 91 bytes" in problem.message


def test_balance_counts_tasks_that_hold_nothing():
    placed = [
        placement.Placed("v", 0, "ps-0", 30, "model", (3,), "float32"),
        placement.Placed("w", 0, "ps-1", 10, "model", (1,), "float32"),
    ]
    assert placement.balance(placed).max_over_mean == 1.5
    assert placement.balance(placed, ("ps-2", "ps-3")).max_over_mean == 3.0
    assert placement.balance([]).max_over_mean == 1.0


def test_names():
    from psrun.tf_internals.names import split_name

    assert split_name("a/table/part_2:0") == ("a/table", 2)
    assert split_name("a/part_time:0") == ("a/part_time", 0)


def _cluster(cluster_spec, run):
    from psrun.cluster import strategy

    return strategy.parameter_servers(cluster_spec[2], run.partitioner, placement.RULES[run.cluster.placement])


PIECES = [
    ("model=embedding", "partitioner=none"),
    ("model=embedding", "partitioner=fixed_shards", "partitioner.num_shards=3"),
    ("model=embedding", "partitioner=min_size", "partitioner.min_shard_bytes=100"),
    ("model=dense", "partitioner=max_size", "partitioner.max_shard_bytes=1000", "partitioner.max_shards=4"),
    ("model=dense", "partitioner=fixed_shards", "trainer=fit", "evaluation=validation"),
    ("model=dense", "cluster.placement=round_robin", "partitioner=max_size", "partitioner.max_shard_bytes=1000"),
]
OPTIMIZERS = ["adagrad", "adam", "ftrl", "rowwise_adagrad", "sparse_sgd"]


def planned() -> Iterator[Any]:
    """By default three ways to place, with other optimizers; then each way, and slots that are cut otherwise."""
    for (w, way), (o, optimizer) in itertools.product(enumerate(PIECES), enumerate(OPTIMIZERS)):
        once = o == 2 * w % len(OPTIMIZERS)
        if not once and (w not in (1, 2, 3) or optimizer not in ("ftrl", "rowwise_adagrad")):
            continue
        yield pytest.param(way, optimizer, id=f"{w}-{optimizer}", marks=() if once and w % 2 else pytest.mark.thorough)


@pytest.mark.inprocess
@pytest.mark.parametrize(("pieces", "optimizer"), planned())
def test_the_plan_is_what_tensorflow_does(cluster_spec, pieces, optimizer):
    from psrun.data import load
    from psrun.program import inventory
    from psrun.program.build import build, build_state, start_afresh
    from psrun.roles import planner

    data = "features" if "model=embedding" in pieces else "regression"
    run = run_config(f"optimizer={optimizer}", *pieces, *SMALL[data])
    source = load.load_source(run)
    planned = planner.make(run, source).placed
    start_afresh(run.seed)
    built = build(run, source, _cluster(cluster_spec, run))
    build_state(built)
    assert sorted(planned, key=repr) == sorted(inventory.observe(built), key=repr)
    assert {p.task for p in planned if p.kind == "model"} == {"ps-0", "ps-1"}


@pytest.mark.inprocess
def test_any_scope_of_the_strategy_places_variables_by_the_rule(cluster_spec):
    import numpy as np
    import tensorflow as tf

    from psrun.cluster import strategy

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
    import tensorflow as tf

    from psrun.cluster import strategy
    from psrun.tf_internals.variables import variables_of

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


@pytest.mark.inprocess
def test_a_strategy_creates_variables_where_it_is_guided():
    """What `tf_internals.cluster.VariableCreation` takes hold of has no public name."""
    from tensorflow.python.distribute.parameter_server_strategy_v2 import ParameterServerStrategyV2Extended as Extended

    names = Extended._create_variable_round_robin.__code__.co_names
    assert {"_variable_count", "_num_ps"} <= set(names)
    assert "_variable_partitioner" in Extended._create_variable.__code__.co_names


@pytest.mark.tensorflow
def test_the_plan_spreads_the_bytes_of_a_step_over_tasks():
    from psrun.data import load
    from psrun.roles import planner

    run = run_config("partitioner=fixed_shards", "cluster.num_workers=3", *SMALL["features"])
    source = load.load_source(run)
    plan = planner.make(run, source)
    # A pass over 500 examples, whose last batch of 32 is smaller, moves as much a step.
    once = run_config("data.visitation=once", "partitioner=fixed_shards", "cluster.num_workers=3", *SMALL["features"])
    assert planner.make(once, source).traffic == plan.traffic
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
    with pytest.raises(ConfigError, match="more than the 1,000 bytes of memory"):
        planner.make(run, source, memory_bytes=1000)
    alone = run_config("cluster=none", *SMALL["features"])
    assert planner.make(alone, source, memory_bytes=1000).traffic_by_task == {}
