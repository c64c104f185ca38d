"""Comparison of checkpoints value by value."""

from __future__ import annotations

import pytest
import tensorflow as tf

from psrun.checkpoint.checkpoints import compare

pytestmark = pytest.mark.tensorflow


def test_strings_are_compared_by_their_values(tmp_path):
    words = [
        tf.train.Checkpoint(words=tf.Variable(values)) for values in (["one", "two"], ["one", "two"], ["one", "six"])
    ]
    first, same, other = (each.write(str(tmp_path / f"ckpt-{index}")) for index, each in enumerate(words))
    assert [row.differs for row in compare(first, same) if not row.equal] == []
    (differs,) = [row.differs for row in compare(first, other) if not row.equal]
    assert differs.startswith("1 of 2 values")
