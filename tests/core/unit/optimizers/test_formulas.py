"""The formulas that exports state are what the optimizers do. tf-keras rounds constants to float32."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from psrun.checkpoint import checkpoints
from psrun.checkpoint.checkpoints import _constants
from psrun.optimizers import formulas, sparse
from psrun.optimizers.formulas import FORMULAS
from psrun.tf_internals import keras
from psrun.tf_internals.keras import parts_of
from psrun.tf_internals.names import split_name

pytestmark = pytest.mark.tensorflow

NUM_ROWS, STEPS = 6, 4
LARGE = {"epsilon": 0.05}  # so that its place shows
OPTIONS = {
    **dict.fromkeys(("Adagrad", "SparseAdagrad", "RowwiseAdagrad", "Adam", "LazyAdam"), LARGE),
    "SGD": {"momentum": 0.9},
    "SparseFtrl": {
        "l1_regularization_strength": 0.02, "l2_regularization_strength": 0.1, "beta": 0.3,
        "l2_shrinkage_regularization_strength": 0.05, "learning_rate_power": -0.4,
    },
}  # fmt: skip
BY_BATCH = (
    "LazyAdam",
    "SparseFtrl",
)  # the other formulas leave rows without a gradient as they are, or change them as well


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("dim", [3, 1])
def test_the_formula_is_what_the_optimizer_does_to_a_table(name, dim):
    random = np.random.default_rng(3)
    kind = getattr(sparse, name, None) or getattr(tf_keras.optimizers, name)
    optimizer = kind(learning_rate=0.3, **OPTIONS.get(name, {}))
    table = tf.Variable(random.normal(size=(NUM_ROWS, dim)), name="table/embeddings", dtype=tf.float64)
    optimizer.build([table])
    constants = _constants(optimizer)
    expected = state(optimizer, table)
    code = compile(formulas.formula(name, kind.__module__, constants), name, "exec")
    for t in range(1, STEPS + 1):
        ids = random.choice(NUM_ROWS, 3, replace=False)
        gradient = random.normal(size=(3, dim))
        twice = tf.IndexedSlices(np.repeat(gradient / 2, 2, 0), np.repeat(ids, 2), (NUM_ROWS, dim))
        optimizer.apply_gradients([(twice, table)])
        which = ids if name in BY_BATCH else np.arange(NUM_ROWS)
        g = np.zeros((NUM_ROWS, dim))
        g[ids] = gradient
        names = {**constants, **{each: value[which] for each, value in expected.items()}, "g": g[which], "t": t}
        exec(code, {"sqrt": np.sqrt, "mean": np.mean, "clip": np.clip}, names)
        for each, value in expected.items():
            value[which] = names[each]
        for each, value in state(optimizer, table).items():
            np.testing.assert_allclose(value, expected[each], rtol=1e-4, atol=1e-5, err_msg=f"{each} in step {t}")


def state(optimizer, table):
    """The rows and the slots, one number a row as a vector, by their names in exports."""
    found = {"rows": table.numpy()}
    for slot in optimizer.variables():
        slot_name = split_name(slot.name)[0].removesuffix("/table/embeddings")
        if slot.shape.rank == 2:
            is_vector = isinstance(optimizer, sparse.RowwiseAdagrad)
            found[slot_name] = slot.numpy()[:, 0] if is_vector else slot.numpy()
    return found


def test_another_formula_than_the_known_one_is_none():
    of_keras = tf_keras.optimizers.Adam.__module__
    assert formulas.formula("Lion", of_keras, {}) is None
    assert formulas.formula("Adam", of_keras, {"amsgrad": True}) is None
    assert formulas.formula("Adam", of_keras, {"amsgrad": False, "weight_decay": 0.0}) == FORMULAS["Adam"]


@pytest.mark.parametrize(
    "module",
    ["own", "psrun_of_others", tf_keras.optimizers.legacy.Adagrad.__module__, ""],
    ids=lambda module: module or "unknown",
)
def test_a_class_of_the_same_name_elsewhere_has_no_known_formula(module):
    """Keras' legacy Adagrad adds the epsilon outside of the root."""
    assert formulas.formula("Adagrad", module, {}) is None


class WithClip(tf_keras.optimizers.Adam):
    """A class of the user."""


class WithoutConfiguration(tf_keras.optimizers.SGD):
    def get_config(self):
        raise NotImplementedError


def test_constants_are_numbers_and_the_configuration_of_a_schedule():
    schedule = tf_keras.optimizers.schedules.ExponentialDecay(0.5, 10, 0.9)
    rate = _constants(tf_keras.optimizers.Adam(schedule))["learning_rate"]
    assert rate["class_name"] == "ExponentialDecay"
    assert rate["config"]["initial_learning_rate"] == 0.5
    loss_scaled = tf_keras.mixed_precision.LossScaleOptimizer(tf_keras.optimizers.SGD(0.5, momentum=0.25))
    scaled = _constants(parts_of(loss_scaled)[0])
    assert (scaled["learning_rate"], scaled["momentum"], scaled["nesterov"]) == (0.5, 0.25, False)
    assert _constants(WithoutConfiguration()) == {}


@pytest.mark.parametrize("clip", keras.CLIPS)
def test_of_two_optimizers_that_of_tables_has_the_clips_of_all_gradients(monkeypatch, clip):
    parts = [WithClip(0.1, **{clip: 2.0}), sparse.RowwiseAdagrad(0.3)]
    monkeypatch.setattr(checkpoints, "parts_of", lambda optimizer: parts)
    described = checkpoints._described(None)
    assert {name: each[clip] for name, each in described["constants"].items()} == dict.fromkeys(
        described["modules"], 2.0
    )
    assert described["constants"]["table_optimizer"]["learning_rate"] == pytest.approx(0.3)
    assert described["modules"] == {"optimizer": __name__, "table_optimizer": "psrun.optimizers.sparse"}
