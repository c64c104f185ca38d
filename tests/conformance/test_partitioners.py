"""Partitioners named by `_target_`: as TensorFlow takes them, and what they must return."""

from __future__ import annotations

import sys
import textwrap

import pytest
from support import SMALL, raw_config, run_config

from psrun.config import parse
from psrun.errors import ConfigError

OF_TENSORFLOW = "tensorflow.distribute.experimental.partitioners.FixedShardsPartitioner"


@pytest.fixture(autouse=True)
def cutting(tmp_path, monkeypatch):
    """A module of a person's own."""
    (tmp_path / "cutting.py").write_text(
        textwrap.dedent("""
        import numpy as np

        def by_rows(shape, dtype, axis=0, rows: int = 3):
            return [np.int64(-(-shape[0] // rows)), *(1 for _ in shape[1:])]

        def of(value):
            return lambda shape, dtype: value

        def nothing():
            pass

        def failing(shape, dtype):
            raise KeyError(shape[0])

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


@pytest.mark.parametrize(
    ("overrides", "key", "message"),
    [
        (custom("cutting.by_row"), "partitioner._target_", "Did you mean 'by_rows'?"),
        (custom("cutting.by_rows", "row=3"), "partitioner.row", "no such key (value 3). Did you mean 'rows'?"),
        (custom("cutting.Wide"), "partitioner.least", "is missing"),
        (["partitioner=custom"], "partitioner._target_", "is required"),
        (["+partitioner._target_=cutting.by_rows"], "partitioner", "choose partitioner=custom"),
    ],
)
def test_a_wrong_name_or_option_is_a_problem_before_tensorflow_is_imported(overrides, key, message):
    with pytest.raises(ConfigError) as raised:
        parse.load(raw_config(*overrides))
    (problem,) = raised.value.problems
    assert problem.key == key
    assert message in problem.message


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
    import tensorflow as tf

    from psrun.cluster import partitioners

    partition = partitioners.make(run_config(*overrides).partitioner)
    assert partition(shape=tf.TensorShape([7, 3]), dtype=tf.float32) == counts


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (custom("cutting.of", "value=3"), "returned 3 for a variable of shape (8, 20) and dtype float32; it must"),
        (custom("cutting.of", "value=[1.5,1]"), "integers of 1 or more"),
        (custom("cutting.of", "value=[0,1]"), "integers of 1 or more"),
        (custom("cutting.of", "value=[]"), "integers of 1 or more"),
        (custom("cutting.of", "value=[true,1]"), "integers of 1 or more"),
        (custom("cutting.of", "value=[2,2]"), "along the first axis only"),
        (custom("cutting.failing"), "failed for a variable of shape (8, 20) and dtype float32: KeyError: 8"),
        (custom("cutting.nothing"), "returned None, which cannot be called with shape, dtype"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_tensorflow_cannot_use_is_an_error_that_names_it(overrides, message):
    from psrun.data import load
    from psrun.roles import planner

    run = run_config(*overrides, *SMALL["features"])
    source = load.load_source(run)
    with pytest.raises(ConfigError) as raised:
        planner.make(run, source)
    (problem,) = raised.value.problems
    assert problem.key.startswith("partitioner")
    assert message in problem.message


@pytest.mark.thorough
@pytest.mark.inprocess
def test_a_run_is_cut_as_planned_saved_and_resumed_with_another_partitioner(train):
    from dataclasses import asdict

    from psrun.data import load
    from psrun.roles import planner

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
