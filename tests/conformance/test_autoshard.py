"""How workers that do every step together share the training data; see tests/system/test_synchronous.py."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import tensorflow as tf
from example_ids import InFiles, Numbered
from support import run_config

from psrun.config.run_config import RunConfig
from psrun.data import autoshard

if TYPE_CHECKING:
    from psrun.data.source import DataSource

pytestmark = pytest.mark.tensorflow

TOGETHER = ("cluster=multi_worker_mirrored", "trainer=fit", "model=dense")


def policy(source: DataSource, asked: str | None, run: RunConfig | None = None) -> str | None:
    run = run or run_config(*TOGETHER)
    run = replace(run, data=replace(run.data, sharding=asked))
    return autoshard.policy(run, lambda: source.train(batch_size=20, seed=tf.constant(1, tf.int64)))


def test_what_is_not_chosen_is_as_tensorflow_does_it(tmp_path):
    files, numbers = InFiles(folder=str(tmp_path)), Numbered()
    assert [policy(files, asked) for asked in (None, "auto", "file", "data", "off")] == [
        "file", "file", "file", "data", "off"
    ]  # fmt: skip
    assert [policy(numbers, asked) for asked in (None, "auto", "data", "off")] == ["data", "data", "data", "off"]
    chosen = InFiles(folder=str(tmp_path), policy="DATA")
    assert [policy(chosen, asked) for asked in (None, "auto", "off")] == ["data", "file", "off"]
    assert policy(files, None, run_config("cluster=local", "model=dense")) is None


def test_tensorflows_message_about_too_few_files_is_understood(tmp_path):
    """The message is the only sign of it."""
    from tensorflow.python.data.experimental.ops import distribute

    dataset = autoshard.applied(
        InFiles(folder=str(tmp_path), num_files=2).train(batch_size=20, seed=tf.constant(1, tf.int64)), "file"
    )
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        next(iter(distribute._AutoShardDataset(dataset, 3, 0)))
    problem = autoshard.too_few_files(str(raised.value))
    assert problem is not None
    assert "fewer files than the 3 workers" in problem.message
    assert autoshard.too_few_files("something else") is None
