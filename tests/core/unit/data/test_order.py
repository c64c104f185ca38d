"""The order of examples, and the ranges of shards, for any sizes."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from psrun.data.source import Order, shard_of

pytestmark = pytest.mark.tensorflow
any_case = settings(deadline=None, derandomize=True, max_examples=20)


@st.composite
def orders(draw, whole_passes):
    num_examples = draw(st.integers(1, 60))
    batch_size = draw(st.integers(1, num_examples))
    block = draw(st.integers(1, num_examples))
    return Order(num_examples, batch_size, block, whole_passes)


def numbers(order: Order, first: int, count: int, seed: int = 3) -> list[int]:
    """The examples of `count` batches from the one with the number `first` on."""
    found = [order.numbers(tf.constant(first + n, tf.int64), tf.constant(seed, tf.int64)).numpy() for n in range(count)]
    return np.concatenate(found).tolist()


@any_case
@given(orders(True), st.integers(0, 2**40), st.integers(0, 2**60))
def test_a_pass_is_a_permutation_in_which_blocks_stay_together(order, number, seed):
    batches = order.batches_per_pass
    one_pass = numbers(order, number * batches, batches, seed)
    assert sorted(one_pass) == list(range(order.num_examples))
    whole_blocks = order.num_examples // order.block * order.block
    for first in range(0, whole_blocks, order.block):
        assert one_pass[first] % order.block == 0
        assert one_pass[first : first + order.block] == list(range(one_pass[first], one_pass[first] + order.block))


@any_case
@given(orders(False), st.integers(0, 10))
def test_without_whole_passes_batches_are_full_and_the_same_passes_follow_one_another(order, first):
    batches = numbers(order, first, order.batches_per_pass + 1)
    assert len(batches) == (order.batches_per_pass + 1) * order.batch_size
    whole = Order(order.num_examples, order.batch_size, order.block, whole_passes=True)
    start = first * order.batch_size
    passes = -(-(start + len(batches)) // order.num_examples)
    assert batches == numbers(whole, 0, passes * whole.batches_per_pass)[start : start + len(batches)]


def test_passes_and_seeds_have_orders_of_their_own():
    """Adjacent seeds, too, as those of workers are."""
    order = Order(60, 20, 2, whole_passes=True)
    passes = {tuple(numbers(order, 3 * number, 3, seed)) for number in range(2) for seed in range(10)}
    assert len(passes) == 2 * 10
    assert numbers(order, 3, 3) == numbers(order, 3, 3)


@any_case
@given(orders(True), orders(True), st.integers(0, 500))
def test_a_position_holds_in_the_same_order_and_else_the_next_pass_begins(before, order, batch):
    assert order.taken_up(batch, order.geometry) == (batch, 0)
    assert order.taken_up(batch, None) == (batch, 0)
    if before.geometry == order.geometry:
        return
    passes, batches = divmod(batch, before.batches_per_pass)
    resumed, num_skipped = order.taken_up(batch, before.geometry)
    assert resumed == (passes + (batches > 0)) * order.batches_per_pass
    assert num_skipped == (max(0, before.num_examples - batches * before.batch_size) if batches else 0)


@any_case
@given(st.integers(0, 40), st.integers(1, 8))
def test_shards_are_disjoint_and_complete(num_batches, count):
    shards = [shard_of(num_batches, (index, count)) for index in range(count)]
    assert [batch for first, last in shards for batch in range(first, last)] == list(range(num_batches))
    sizes = [last - first for first, last in shards]
    assert max(sizes) - min(sizes) <= 1
