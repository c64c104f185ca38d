"""Where rows of tables lie: each row has one place, whatever the tables, and any two layouts restore each other."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from psrun.layers.lookup import RowOrder, StackLayout

properties = settings(deadline=None, derandomize=True, max_examples=100)
TABLES = st.lists(st.integers(1, 60), min_size=1, max_size=6).map(tuple)
SHARDS = st.integers(1, 20)


def stored(layout: StackLayout, tables: list[np.ndarray]) -> np.ndarray:
    """The rows of tables as the shards of a stack have them; -1 where no table has a row."""
    shards = np.full((layout.num_shards, layout.shard_rows), -1)
    for index, rows in enumerate(tables):
        for block in layout.blocks(index):
            place = shards[block.shard, block.offset : block.offset + block.num_rows]
            assert (place == -1).all()
            place[:] = rows[block.first : block.first + block.num_rows]
    return shards


def restored(layout: StackLayout, shards: np.ndarray, table: int) -> np.ndarray:
    blocks = list(layout.blocks(table))
    return np.concatenate([shards[each.shard, each.offset : each.offset + each.num_rows] for each in blocks])


def numbered(table_rows: tuple[int, ...]) -> list[np.ndarray]:
    """Tables whose rows are different numbers."""
    ends = np.cumsum(table_rows)
    return [np.arange(end - rows, end) for end, rows in zip(ends, table_rows)]


@properties
@given(TABLES, SHARDS, SHARDS)
def test_any_layout_restores_the_rows_of_any_other(table_rows, num_before, num_after):
    before, after = StackLayout(table_rows, num_before), StackLayout(table_rows, num_after)
    tables = numbered(table_rows)
    written = stored(before, tables)
    read = [restored(before, written, index) for index in range(len(tables))]
    again = stored(after, read)
    for index, rows in enumerate(tables):
        np.testing.assert_array_equal(restored(after, again, index), rows)
    assert sorted(again[again >= 0]) == list(range(sum(table_rows)))
    assert again.size == after.num_rows


@properties
@given(TABLES, SHARDS)
def test_each_table_is_spread_evenly_and_tables_begin_in_different_shards(table_rows, num_shards):
    layout = StackLayout(table_rows, num_shards)
    held = (stored(layout, numbered(table_rows)) >= 0).sum(axis=1)
    assert held.max() <= sum(table_rows) / num_shards + len(table_rows)
    for index in range(len(table_rows)):
        sizes = [block.num_rows for block in layout.blocks(index)]
        assert max(sizes) == layout.block_rows(index)
        assert layout.shard(index, 0) == index % num_shards


@properties
@given(TABLES, SHARDS, st.integers(1, 60))
def test_a_table_that_is_added_moves_no_row_of_those_before_it(table_rows, num_shards, added):
    layout = StackLayout(table_rows, num_shards)
    more = StackLayout((*table_rows, added), num_shards)
    for index in range(len(table_rows)):
        assert list(more.blocks(index)) == list(layout.blocks(index))


@properties
@given(TABLES, SHARDS)
def test_base_and_steps_lead_to_the_place_of_each_row(table_rows, num_shards):
    """As the look-ups compute it: the base of the table, and a step for each block before the row."""
    layout = StackLayout(table_rows, num_shards)
    flat = stored(layout, numbered(table_rows)).reshape(-1)
    for index, rows in enumerate(numbered(table_rows)):
        for row, number in enumerate(rows):
            block = row // layout.block_rows(index)
            place = row + layout.base(index) + sum(layout.step(index, each) for each in range(1, block + 1))
            assert flat[place] == number


def order_of_all(num_ids: int, *, spread: bool = True) -> tuple[RowOrder, np.ndarray]:
    """The order of a table, and the row of each of its ids."""
    order = RowOrder.of(num_ids, spread=spread)
    ids = np.arange(num_ids)
    columns = 1 << order.column_bits
    return order, ids % columns * order.column_rows + ids // columns


@properties
@given(st.integers(1, 5000))
def test_each_id_has_a_row_of_its_own(num_ids):
    order, rows = order_of_all(num_ids)
    assert len(set(rows)) == num_ids
    assert rows.max() < order.num_rows < num_ids + 1024
    _, plain = order_of_all(num_ids, spread=False)
    np.testing.assert_array_equal(plain, np.arange(num_ids))


@properties
@given(st.integers(1000, 100_000), st.integers(2, 4))
def test_ids_that_are_neighbours_are_spread_over_contiguous_shards(num_ids, num_shards):
    order, rows = order_of_all(num_ids)
    first = rows[: num_ids // 20] * num_shards // order.num_rows
    counts = np.bincount(first, minlength=num_shards)
    assert counts.max() < 1.25 * counts.mean() + 32
