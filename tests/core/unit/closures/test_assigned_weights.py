"""Layers that assign to trainable weights in a step of several workers deserve a warning."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from psrun.closures.replicas import AssignedWeights


@pytest.mark.tensorflow
@pytest.mark.parametrize(("assigns", "num_warnings"), [(True, 1), (False, 0)])
def test_a_weight_that_the_forward_pass_assigns_is_named_once(assigns: bool, num_warnings: int) -> None:
    """Also within the loop over steps; not one that only the optimizer assigns."""
    weight = tf.Variable([1.0, 2.0], name="layer/kernel")
    other = tf.Variable(0.0, name="other")
    warnings: list[str] = []
    program: Any = SimpleNamespace(network=SimpleNamespace(trainable_variables=[weight, other]))
    stage = AssignedWeights(program, warnings.append)

    def update(value: Any) -> None:
        weight.assign_sub(value)
        other.assign(tf.reduce_sum(value))

    apply = stage.gradients(update)

    def forward(batch: Any) -> None:
        if assigns:
            weight.assign(weight / tf.norm(weight))
        apply(0.1 * weight * batch)

    step = stage.around(forward)

    @tf.function
    def steps() -> None:
        tf.while_loop(lambda number: number < 2.0, lambda number: (step(number), number + 1.0)[1:], [0.0])
        step(tf.constant(1.0))

    steps.get_concrete_function()
    assert len(warnings) == num_warnings
    assert all("layer/kernel" in warning for warning in warnings)
