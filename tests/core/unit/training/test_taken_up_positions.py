"""The position from which a run is resumed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psrun.checkpoint.storage import Position
from psrun.data.source import Order
from psrun.training import checkpointing

pytestmark = pytest.mark.tensorflow


def program(order: Order | None, steps: int) -> Any:
    trainer = SimpleNamespace(num_steps=steps, has_fixed_epochs=True)
    data = SimpleNamespace(order=order)
    return SimpleNamespace(data=data, gradients_per_update=1, config=SimpleNamespace(trainer=trainer))


@pytest.mark.parametrize(
    ("order", "steps", "kept"),
    [
        (Order(96, 8, whole_passes=True), 12, True),
        (Order(96, 16, whole_passes=True), 6, False),  # the next pass begins
        (Order(48, 8, whole_passes=True), 6, False),
        (None, 12, True),
        (None, 4, False),  # the next epoch begins
    ],
)
def test_an_epoch_that_was_cut_goes_on_unless_the_batches_or_its_length_changed(order, steps, kept):
    built = program(order, steps)
    reporter: Any = SimpleNamespace(warn=lambda message: None)
    before = Position(epochs=1, steps=5, scheduled=17, batch=17, order=[96, 8, 1])
    position = checkpointing.adapted_position(built, before, reporter)
    assert (position.epochs, position.steps) == ((1, 5) if kept else (2, 0))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    num_batches=st.integers(1, 9),
    is_ordered=st.booleans(),
    steps=st.integers(1, 9),
    scheduled=st.integers(0, 40),
    dealt=st.integers(0, 3),
)
def test_a_position_holds_where_nothing_changed_and_otherwise_no_step_is_too_many(
    num_batches, is_ordered, steps, scheduled, dealt
):  # fmt: skip
    """Batches that were dealt and not applied are still to be read."""
    order = Order(num_batches * 8, 8, whole_passes=True) if is_ordered else None
    warned: list[str] = []
    reporter: Any = SimpleNamespace(warn=warned.append)
    epochs, within = divmod(scheduled, steps)
    if order is None:
        position = Position(epochs, within, scheduled)
    else:
        again = [*range(max(0, scheduled - dealt), scheduled)] if steps != num_batches else []
        position = Position(epochs, within, scheduled, batch=scheduled, again=again, order=order.geometry)
    same = checkpointing.adapted_position(program(order, steps), position, reporter)
    assert (same.epochs, same.steps, same.batch, [*same.again]) == (epochs, within, position.batch, [*position.again])
    assert warned == []
    for shorter in range(1, steps + 1):
        taken = checkpointing.adapted_position(program(None, shorter), position, reporter)
        assert 0 <= taken.steps < shorter
        assert taken.epochs == epochs + (within >= shorter)
