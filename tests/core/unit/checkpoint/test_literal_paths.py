"""Checkpoints in folders whose names TensorFlow takes for patterns."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from psrun.checkpoint.checkpoints import compare, literal
from psrun.checkpoint.trained_model import KerasCheckpoints
from psrun.errors import ConfigError
from psrun.models.model import Model

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize("name", ["a[1]", "a*", "a?", "a\\b", "a{1}", "[a]/b"])
def test_a_checkpoint_is_read_from_any_folder(tmp_path, name):
    folder = tmp_path / name / "checkpoints"
    variable = tf.Variable([1.0, 2.0])
    tf.train.Checkpoint(v=variable).write(str(folder / "ckpt-5"))
    tf.train.Checkpoint(v=tf.Variable([3.0, 2.0])).write(str(folder / "ckpt-55"))
    there = sorted(tmp_path.rglob("*"))
    variable.assign([0.0, 0.0])
    with literal(str(folder / "ckpt-5")) as path:
        tf.train.Checkpoint(v=variable).read(path).assert_consumed()
    assert list(variable.numpy()) == [1.0, 2.0]
    (row,) = [row for row in compare(str(folder / "ckpt-5"), str(folder / "ckpt-55")) if not row.equal]
    assert row.differs == "1 of 2 values, by up to 2"
    assert sorted(tmp_path.rglob("*")) == there


def test_the_weights_of_keras_are_read_from_any_folder_under_any_name(tmp_path):
    def network(value):
        layer = tf_keras.layers.Dense(1, kernel_initializer=tf_keras.initializers.Constant(value))
        return tf_keras.Sequential([tf_keras.Input((2,)), layer])

    folder = tmp_path / "a[1]"
    network(3.0).save_weights(folder / "weights[1]-4")
    restored, source = network(0.0), KerasCheckpoints(folder)
    assert source.names() == ["weights[1]-4"]
    assert source.restore(Model(restored), "weights[1]-4", 10).step == 40
    np.testing.assert_array_equal(restored.get_weights()[0], [[3.0], [3.0]])


def test_a_folder_beside_which_no_link_can_be_created_is_named(tmp_path, monkeypatch):
    def denied(**options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkdtemp", denied)
    message = r"hydra.run.dir: TensorFlow takes .*a\[1\]/ckpt-5 for a pattern.*rename the folder .*Permission denied"
    with pytest.raises(ConfigError, match=message), literal(str(tmp_path / "a[1]" / "ckpt-5")):
        pass
