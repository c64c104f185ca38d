"""Placement: the arithmetic without TensorFlow, and the prediction against what TensorFlow does."""

from __future__ import annotations

import pytest
from support import SMALL, run_config

from psrun import placement
from psrun.placement import Planned


def test_shards_go_to_the_parameter_servers_in_turn_and_slots_beside_their_variable():
    variables = [
        Planned("table", (5, 2), "float32", 4, "model"),
        Planned("bias", (1,), "float32", 4, "model"),
        Planned("iteration", (), "int64", 8, "optimizer"),
        Planned("m/table", (5, 2), "float32", 4, "optimizer", beside="table"),
    ]
    placed = placement.predicted(variables, num_ps=2, num_shards=lambda variable: 3)
    assert [(p.variable, p.shard, p.task, p.bytes) for p in placed] == [
        ("table", 0, "ps-0", 16), ("table", 1, "ps-1", 16), ("table", 2, "ps-0", 8),
        ("bias", 0, "ps-1", 4),
        ("iteration", 0, "ps-0", 8),
        ("m/table", 0, "ps-0", 16), ("m/table", 1, "ps-1", 16), ("m/table", 2, "ps-0", 8),
    ]  # fmt: skip


def test_balance_counts_tasks_that_hold_nothing():
    placed = [
        placement.Placed("v", 0, "ps-0", 30, "model", (3,), "float32"),
        placement.Placed("w", 0, "ps-1", 10, "model", (1,), "float32"),
    ]
    assert placement.balance(placed).max_over_mean == 1.5
    assert placement.balance(placed, ("ps-2", "ps-3")).max_over_mean == 3.0
    assert placement.balance([]).max_over_mean == 1.0


def test_names():
    assert placement.split_name("a/table/part_2:0") == ("a/table", 2)
    assert placement.split_name("a/part_time:0") == ("a/part_time", 0)


@pytest.mark.inprocess
@pytest.mark.parametrize("optimizer", ["adagrad", "adam", "ftrl", "rowwise_adagrad", "sparse_sgd"])
@pytest.mark.parametrize(
    "pieces",
    [
        ("model=embedding", "partitioner=none"),
        ("model=embedding", "partitioner=fixed_shards", "partitioner.num_shards=3"),
        ("model=embedding", "partitioner=min_size", "partitioner.min_shard_bytes=100"),
        ("model=dense", "partitioner=max_size", "partitioner.max_shard_bytes=1000", "partitioner.max_shards=4"),
        ("model=dense", "partitioner=fixed_shards", "trainer=fit", "evaluation=validation"),
    ],
    ids=lambda pieces: "-".join(piece.partition("=")[2] for piece in pieces[:2]),
)
def test_the_plan_is_what_tensorflow_does(cluster_spec, pieces, optimizer):
    from psrun import program, strategy
    from psrun.roles import coordinator, planner

    data = "features" if "model=embedding" in pieces else "regression"
    run = run_config(f"optimizer={optimizer}", *pieces, *SMALL[data])
    source = program.load_source(run)
    planned = planner.make(run, source).placed
    program.start_afresh(run.seed)
    built = program.build(run, source, strategy.parameter_servers(cluster_spec[2], run.partitioner))
    program.build_state(built)
    assert sorted(planned, key=repr) == sorted(coordinator.observe(built), key=repr)
    assert {p.task for p in planned if p.kind == "model"} == {"ps-0", "ps-1"}
