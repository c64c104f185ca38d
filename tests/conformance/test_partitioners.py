"""Partitioners named by `_target_`: as TensorFlow takes them."""

from __future__ import annotations

import sys
import textwrap
from dataclasses import asdict

import pytest
import tensorflow as tf
from support import SMALL, run_config

from psrun.cluster import partitioners
from psrun.data import load
from psrun.roles import planner

OF_TENSORFLOW = "tensorflow.distribute.experimental.partitioners.FixedShardsPartitioner"


@pytest.fixture(autouse=True)
def cutting(tmp_path, monkeypatch):
    """A module of a person's own."""
    (tmp_path / "cutting.py").write_text(
        textwrap.dedent("""
        import numpy as np

        def by_rows(shape, dtype, axis=0, rows: int = 3):
            return [np.int64(-(-shape[0] // rows)), *(1 for _ in shape[1:])]

        class Wide:
            def __init__(self, least: int): self.least = least
            def __call__(self, shape, dtype, axis=0): return (2,) if shape[0] >= self.least else (1,)
        """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("cutting", None)


def custom(name: str, *options: str) -> list[str]:
    return ["partitioner=custom", f"partitioner._target_={name}", *(f"+partitioner.{option}" for option in options)]


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("overrides", "counts"),
    [
        (custom(OF_TENSORFLOW, "num_shards=4"), [4, 1]),
        (custom("cutting.by_rows"), [3, 1]),
        (custom("cutting.by_rows", "rows=2"), [4, 1]),
        (custom("cutting.Wide", "least=7"), [2]),
    ],
)
def test_it_is_called_as_tensorflow_calls_it(overrides, counts):
    partition = partitioners.make(run_config(*overrides).partitioner)
    assert partition(shape=tf.TensorShape([7, 3]), dtype=tf.float32) == counts


@pytest.mark.thorough
@pytest.mark.inprocess
def test_a_run_is_cut_as_planned_saved_and_resumed_with_another_partitioner(train):
    by_rows = custom("cutting.by_rows")
    few = ("trainer.steps_per_epoch=3", "trainer.steps_per_execution=1")
    done, folder = train(*by_rows, *few, "trainer.epochs=1")
    assert [row["shard"] for row in done["placement"] if row["variable"] == "embedding/embeddings"] == [0, 1, 2]
    run = run_config(*by_rows, *SMALL["features"])
    planned = [asdict(shard) for shard in planner.make(run, load.load_source(run)).placed]
    assert sorted(map(str, planned)) == sorted(
        str({**row, "variable_shape": tuple(row["variable_shape"])}) for row in done["placement"]
    )
    resumed, _ = train(*custom(OF_TENSORFLOW, "num_shards=4"), *few, f"resume='{folder.path}'", into=folder)
    assert resumed["steps"]["applied"] == 2 * done["steps"]["applied"]
    assert [row["shard"] for row in resumed["placement"] if row["variable"] == "embedding/embeddings"] == [0, 1, 2, 3]
