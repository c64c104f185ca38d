"""Numbered batches are dealt to closures: whatever is lost, and wherever a run is cut, each is applied once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psrun.closures.input_streams import DealtInput, NextBatches

pytestmark = pytest.mark.tensorflow
any_case = settings(deadline=None, derandomize=True, max_examples=60)
# Of each closure: its number of steps, and how many of them are applied before it is lost.
schedules = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), max_size=8)


def run(stream: DealtInput, schedule: list[tuple[int, int]]) -> list[int]:
    """The numbers of the batches that closures apply; the other ones are dealt again, one by one, later on."""
    applied: list[int] = []
    for num_steps, num_applied in schedule:
        dealt = stream.deal(num_steps)
        for step in range(num_steps):
            each = stream.later(dealt, step)
            if step < num_applied:
                applied.append(int(stream._number(each["place"])))
            else:
                stream.deal_again([each])
    return applied


@any_case
@given(st.lists(schedules, max_size=4), st.integers(0, 9), st.lists(st.integers(0, 8), max_size=3, unique=True))
def test_each_batch_is_applied_once_over_all_cuts_of_a_run(parts, first, again):
    again = sorted(number for number in again if number < first)
    applied: list[int] = []
    position = NextBatches(first, tuple(again))
    for schedule in parts:
        stream = DealtInput(None, position)
        applied += run(stream, schedule)
        position = stream.position()
        assert len(set(applied)) == len(applied)
        assert sorted([*applied, *position.again]) == [*again, *range(first, position.first)]


def test_what_is_left_is_dealt_first_and_in_order():
    stream = DealtInput(None, NextBatches(10, (3, 7)))
    assert run(stream, [(4, 1), (1, 1), (1, 1)]) == [3, 7, 10]
    assert stream.position() == (12, (11,), ())
