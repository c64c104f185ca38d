"""Predictions of workers: each example once, in the order of the source, whatever the cluster."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from psrun.errors import DataError


def counted(num_examples: int, data: str = "Numbered") -> list[str]:
    return [
        "model=dense", "~model.hidden_units", "model._target_=example_ids.model", f"data._target_=example_ids.{data}",
        "~data.num_train_examples", "~data.noise", "~data.num_features", f"data.num_eval_examples={num_examples}",
        "data.global_batch_size=3", "trainer.epochs=1", "trainer.steps_per_epoch=5", "trainer.steps_per_execution=5",
        "optimizer.learning_rate=0.0001", "evaluation=none",
    ]  # fmt: skip


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.inprocess
@pytest.mark.parametrize(
    ("num_examples", "data"),
    [
        (100, "Numbered"),
        pytest.param(100, "AsOthersHaveIt", marks=pytest.mark.thorough),
        pytest.param(1, "Numbered", marks=pytest.mark.thorough),
    ],
)
def test_workers_predict_each_example_once_and_in_order(train, predict, num_examples, data):
    pieces = counted(num_examples, data)
    _, folder = train(*pieces)
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    here, there = folder.path / "here.csv", folder.path / "predictions" / "5.csv"
    assert f"{num_examples} predictions of step 5 in {there}" in predict(folder, *pieces)
    predict(folder, *pieces, "cluster=none", f"predict.path={here}")
    assert [row["label"] for row in rows(there)] == [str(number) for number in range(num_examples)]
    assert [float(row["prediction"]) for row in rows(there)] == pytest.approx(
        [float(row["prediction"]) for row in rows(here)], rel=1e-5
    )
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.inprocess
def test_a_source_that_miscounts_its_examples_is_reported_and_nothing_is_written(train, predict):
    pieces = counted(24, "AsOthersHaveIt")
    _, folder = train(*pieces)
    with pytest.raises(DataError, match=r"predicted 27 examples, but the data source reports 24"):
        predict(folder, *pieces, "+data.endless=true")
    assert list((folder.path / "predictions").iterdir()) == []


@pytest.mark.thorough
def test_a_run_is_predicted_on_the_cluster_that_is_chosen_now(psrun):
    """Also one whose evaluator task has no part in this, on the run's own cluster and on another one."""
    quick = ["trainer.steps_per_epoch=20", "data.num_train_examples=500", "data.num_eval_examples=100"]
    first = psrun("cluster=local", "evaluation=sidecar", "partitioner=fixed_shards", "trainer.epochs=1", *quick)
    assert first.code == 0, first.stderr
    before = (first.folder / "run.json").read_bytes()
    written = {}
    for chosen in ([], ["cluster=mirrored"]):  # `none` predicts above
        done = psrun("resume=run", "mode=predict", *chosen)
        assert done.code == 0, done.stderr
        assert "100 predictions of step 20 in" in done.stdout
        written[str(chosen)] = [float(row["prediction"]) for row in rows(first.folder / "predictions" / "20.csv")]
    assert len({len(each) for each in written.values()}) == 1
    for values in written.values():
        assert values == pytest.approx(written["[]"], rel=1e-5)
    assert (first.folder / "run.json").read_bytes() == before
    own = json.loads((first.folder / "predictions" / "cluster" / "run.json").read_text())
    assert (own["status"], own["predictions"]["count"]) == ("completed", 100)
