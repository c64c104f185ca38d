"""Stages wrap a step in one order."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import tensorflow as tf
import tf_keras

from psrun.closures.stage import Stage
from psrun.closures.stages import ORDER, Stages


class Named(Stage):
    """Notes what it is asked, and counts steps in a carried tensor."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self._name = name
        self._seen = seen

    def inputs(self) -> dict[str, tf.TensorSpec]:
        return {self._name: tf.TensorSpec([], tf.int32)}

    def begin(self, inputs: Any) -> None:
        self.carried = inputs[self._name]

    @contextlib.contextmanager
    def unrolled(self, num_steps: int) -> Any:
        self._seen.append(f"{self._name} enters")
        yield
        self._seen.append(f"{self._name} leaves")

    def _noting(self, what: str, function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            self._seen.append(f"{self._name} {what}")
            return function(*arguments, **options)

        return call

    def batches(self, take: Any, num_steps: int) -> Any:
        return self._noting("batch", take)

    def around(self, step: Any) -> Any:
        def counted(batch: Any) -> Any:
            self.carried += 1
            return self._noting("step", step)(batch)

        return counted

    def gradients(self, apply: Any) -> Any:
        return self._noting("gradients", apply)

    def update(self, apply: Any) -> Any:
        return self._noting("update", apply)


@pytest.mark.tensorflow
def test_gradients_leave_a_step_from_the_inside():
    seen: list[str] = []
    optimizer = tf_keras.optimizers.SGD(1.0)
    variable = tf.Variable(5.0)
    stages = Stages(optimizer, [Named("outer", seen), Named("inner", seen)])
    assert list(stages.inputs()) == ["outer", "inner"]
    stages.begin({"outer": tf.constant(0), "inner": tf.constant(10)})

    def step(batch: float) -> None:
        optimizer.apply_gradients([(tf.constant(batch), variable)])

    with stages.unrolled(step, lambda: 2.0, 1) as next_step:
        next_step()
    assert seen == [
        "outer enters", "inner enters", "outer batch", "inner batch", "outer step", "inner step", "inner gradients",
        "outer gradients", "inner update", "outer update", "inner leaves", "outer leaves",
    ]  # fmt: skip
    assert [int(each) for each in stages.carried] == [1, 11]
    assert variable.numpy() == 3.0
    optimizer.apply_gradients([(tf.constant(1.0), variable)])
    assert len(seen) == 12  # the optimizer is as before


@pytest.mark.tensorflow
def test_the_order_of_stages_is_that_of_the_list_not_of_the_caller():
    kinds = [kind for kind in ORDER if kind is not Stage]
    made = [object.__new__(kind) for kind in reversed(kinds)]
    assert [type(each) for each in Stages(None, made)._stages] == kinds
