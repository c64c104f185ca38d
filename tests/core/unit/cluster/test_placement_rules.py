"""The arithmetic of placement, without TensorFlow, and how the partitioners of psrun's keys cut variables."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psrun.cluster import placement
from psrun.cluster.placement import Placed, Planned
from psrun.config import choices
from psrun.tf_internals.names import split_name

properties = settings(deadline=None, derandomize=True, max_examples=100)
NUM_PS = st.integers(1, 6)
SHAPES = st.lists(st.lists(st.integers(1, 30), max_size=2).map(tuple), min_size=1, max_size=12)
RULES = st.sampled_from(sorted(placement.RULES))

VARIABLES = [
    Planned("table", (5, 2), "float32", 4, "model"),
    Planned("bias", (1,), "float32", 4, "model"),
    Planned("m/table", (5, 2), "float32", 4, "optimizer", beside="table"),
    Planned("iteration", (), "int64", 8, "optimizer"),
    Planned("total", (6,), "float32", 4, "metric"),
]


def planned(shapes: list[tuple[int, ...]]) -> list[Planned]:
    """Variables of these shapes, each with a slot."""
    variables = [Planned(f"v{index}", shape, "float32", 4, "model") for index, shape in enumerate(shapes)]
    slots = [Planned(f"m/{each.name}", each.shape, "float32", 4, "optimizer", beside=each.name) for each in variables]
    return [*variables, *slots]


@properties
@given(SHAPES, NUM_PS, st.integers(1, 8), RULES)
def test_every_shard_is_placed_and_a_slot_lies_beside_its_variable(shapes, num_ps, num_shards, rule):
    variables = planned(shapes)
    arguments = {"num_ps": num_ps, "num_shards": lambda _: num_shards, "rule": placement.RULES[rule]}
    placed = placement.predicted(variables, **arguments)
    assert placed == placement.predicted(variables, **arguments)
    for variable in variables:
        shards = [shard for shard in placed if shard.variable == variable.name]
        rows = variable.shape[0] if variable.shape else 1
        assert [shard.shard for shard in shards] == list(range(min(num_shards, rows) if variable.shape else 1))
        assert sum(shard.bytes for shard in shards) == 4 * math.prod(variable.shape)
        tasks = [int(shard.task.removeprefix("ps-")) for shard in shards]
        assert tasks == [(tasks[0] + number) % num_ps for number in range(len(tasks))]
        if variable.beside:
            of_variable = [shard.task for shard in placed if shard.variable == variable.beside]
            assert [shard.task for shard in shards] == of_variable


@properties
@given(SHAPES, NUM_PS, st.integers(1, 8))
def test_greedy_servers_differ_by_no_more_than_the_largest_variable(shapes, num_ps, num_shards):
    servers = placement.Servers(num_ps, placement.greedy)
    for shape in shapes:
        servers.take(placement.shard_bytes(shape, 4, num_shards))
    largest = max(4 * math.prod(shape) for shape in shapes)
    assert sum(servers.held_bytes) == sum(4 * math.prod(shape) for shape in shapes)
    assert max(servers.held_bytes) - min(servers.held_bytes) <= 2 * largest


@properties
@given(st.integers(1, 1000), st.integers(1, 50))
def test_shards_have_almost_equally_many_rows(rows, num_shards):
    sizes = placement.shard_rows(rows, num_shards)
    assert sum(sizes) == rows
    assert len(sizes) == min(rows, num_shards)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


@properties
@given(st.integers(0, 10_000), st.lists(st.integers(0, 50), min_size=1, max_size=6), NUM_PS)
def test_what_is_moved_for_a_variable_is_spread_over_its_shards_and_nothing_is_lost(moved, sizes, num_ps):
    shards = [Placed("v", i, f"ps-{i % num_ps}", size, "model", (5, 2), "float32") for i, size in enumerate(sizes)]
    spread = placement.spread(moved, shards)
    assert sum(spread.values()) == (moved if sum(sizes) else 0)
    for task, share in spread.items():
        own = sum(shard.bytes for shard in shards if shard.task == task)
        assert abs(share - (moved * own / sum(sizes) if sum(sizes) else 0)) <= len(sizes)


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
        ([8, 8], [0, 60, 50, 0], 3),  # the last server and, after it, the first
        ([8, 8], [16, 16, 0], 1),  # the fullest will hold 24 in any case
        ([9, 1], [3, 0], 1),
        ([4, 4, 2], [3, 0], 1),  # more shards than servers
    ],
)
def test_greedy_takes_the_servers_of_which_the_fullest_then_holds_least(sizes, held, first):
    assert placement.greedy(sizes, held, 0) == first


def test_balance_counts_tasks_that_hold_nothing():
    placed = [
        Placed("v", 0, "ps-0", 30, "model", (3,), "float32"),
        Placed("w", 0, "ps-1", 10, "model", (1,), "float32"),
    ]
    assert placement.balance(placed).max_over_mean == 1.5
    assert placement.balance(placed, ("ps-2", "ps-3")).max_over_mean == 3.0
    assert placement.balance([]).max_over_mean == 1.0


def test_tables_in_stacks_need_no_rows_for_a_partitioner():
    placed = [Placed(f"{name}/embeddings", 0, "ps-0", 10, "model", (3, 1), "float32") for name in "ab"]
    placement.check_rows(placed, 4, stacked={"a/embeddings"})
    assert placement.with_fewer_rows(placed, 4, stacked={"a/embeddings"}) == ["b/embeddings"]


def test_names():
    assert split_name("a/table/part_2:0") == ("a/table", 2)
    assert split_name("a/part_time:0") == ("a/part_time", 0)


@pytest.mark.tensorflow
@properties
@given(st.integers(1, 3000), st.integers(1, 20), st.integers(1, 9), st.integers(4, 20_000))
def test_shards_are_as_many_as_their_sizes_allow(rows, columns, most, shard_bytes):
    import tensorflow as tf

    from psrun.cluster import strategy

    def num_shards(partitioner):
        counts = strategy.make_partitioner(partitioner)(shape=tf.TensorShape([rows, columns]), dtype=tf.float32)
        assert counts[1] == 1
        return counts[0]

    size = 4 * rows * columns
    assert num_shards(choices.FixedShards("fixed_shards", most)) == min(most, rows)
    of_least = num_shards(choices.MinSize("min_size", min_shard_bytes=shard_bytes, max_shards=most))
    assert 1 <= of_least <= min(most, rows)
    assert (of_least - 1) * shard_bytes < size  # TensorFlow rounds up: shards may be smaller than the minimum
    of_most = num_shards(choices.MaxSize("max_size", max_shard_bytes=shard_bytes, max_shards=most))
    assert 1 <= of_most <= min(most, rows)
    assert of_most in (most, rows) or -(-rows // of_most) * 4 * columns <= max(shard_bytes, 4 * columns)
