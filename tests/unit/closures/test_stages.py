"""Stages wrap a step in one order; a consistency mode of the user's adds one from outside the package."""

from __future__ import annotations

import contextlib
import re
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from support import REPOSITORY, variables

from psrun.closures.stage import Stage
from psrun.closures.stages import ORDER, Stages

SHORT = ("model=dense", "optimizer=sgd", "trainer.epochs=1", "trainer.steps_per_epoch=3", "evaluation=none")


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
@pytest.mark.parametrize("legacy", [False, True])
def test_gradients_leave_a_step_from_the_inside(legacy):
    seen: list[str] = []
    kinds = tf_keras.optimizers.legacy if legacy else tf_keras.optimizers
    optimizer, variable = kinds.SGD(1.0), tf.Variable(5.0)
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


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The mode of the guide, in a user's project."""
    page = (REPOSITORY / "docs/guides/consistency.md").read_text(encoding="utf-8")
    files = dict(re.findall(r"^```\w+\n# (\S+)\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE))
    assert len(files) == 3
    for name, text in files.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path / "project")
    yield f"hydra.searchpath=[file://{tmp_path}/project/myconf]", "consistency=damped"
    for name in [name for name in sys.modules if name.startswith("damped")]:
        del sys.modules[name]


@pytest.mark.inprocess
def test_a_consistency_mode_from_outside_the_package_trains(train, project):
    """Half of each gradient is half of the learning rate, for SGD."""
    rate = "optimizer.learning_rate"
    result, folder = train(*SHORT, *project, f"{rate}=0.2", num_workers=1)
    assert (result["consistency"]["mode"], result["consistency"]["factor"]) == ("damped", 0.5)
    _, expected = train(*SHORT, f"{rate}=0.1", num_workers=1)
    held = variables(folder)
    for name, value in variables(expected).items():
        if np.size(value) > 1:
            np.testing.assert_allclose(held[name], value, rtol=1e-5, atol=1e-7, err_msg=name)
