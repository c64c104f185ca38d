"""The position from which a run is resumed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from psrun.checkpoint.manifest import Position
from psrun.data.order import Order
from psrun.training import resume

pytestmark = pytest.mark.tensorflow


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
def test_a_run_whose_next_epoch_begins_does_not_count_the_examples_of_the_one_that_was_cut(order, steps, kept):
    built: Any = SimpleNamespace(
        order=order,
        gradients_per_update=1,
        config=SimpleNamespace(trainer=SimpleNamespace(num_steps=steps, has_fixed_epochs=True)),
    )
    reporter: Any = SimpleNamespace(warn=lambda message: None)
    before = Position(epochs=1, steps=5, scheduled=17, batch=17, order=[96, 8, 1], audit="counts")
    position = resume.taken_up(built, before, reporter)
    assert (position.epochs, position.steps) == ((1, 5) if kept else (2, 0))
    assert position.audit == ("counts" if kept else None)
