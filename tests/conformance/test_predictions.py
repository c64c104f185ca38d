"""Predictions of workers: each example once, in the order of the source, whatever the cluster."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from sample_weights import NUM_EVAL, own_data
from support import run_config

from psrun.errors import ConfigError, DataError


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


@pytest.mark.inprocess
def test_each_output_of_a_model_has_a_column(train, predict):
    losses = "model.loss={click: binary_crossentropy, price: mse}"
    pieces = own_data("+data.outputs=2", "+data.task=null", losses, model="two_outputs")
    _, folder = train(*pieces, "trainer.epochs=1", "evaluation=none")
    here = folder.path / "here.csv"
    predict(folder, *pieces)
    predict(folder, *pieces, "cluster=none", f"predict.path={here}")
    there, alone = rows(folder.path / "predictions" / "8.csv"), rows(here)
    assert [list(row) for row in (there[0], alone[0])] == [["label_click", "label_price", "click", "price"]] * 2
    assert len(there) == len(alone) == NUM_EVAL
    for name in there[0]:
        assert [float(row[name]) for row in there] == pytest.approx([float(row[name]) for row in alone], rel=1e-5)
    assert {row["label_click"] for row in there} == {"0", "1"}


PROBLEMS = {7: "eval.csv, row 8: price is 'x'", 31: "eval.csv, row 32: 3 fields"}


@pytest.mark.inprocess
@pytest.mark.parametrize("labeled", [True, False])
def test_every_row_of_the_input_has_one_in_the_output(train, predict, labeled):
    """Also one that is malformed; on workers in shards, and in one process."""
    pieces = counted(40, "InRows")
    _, folder = train(*pieces)
    keep = ["predict.keep=[id,name]", f"+data.labeled={labeled}"]
    here, there = folder.path / "here.csv", folder.path / "predictions" / "5.csv"
    printed = predict(folder, *pieces, *keep)
    predict(folder, *pieces, *keep, "cluster=none", f"predict.path={here}")
    expected = ["id", "name", *(["label"] if labeled else []), "prediction", "problem"]
    for path in (here, there):
        read = rows(path)
        assert list(read[0]) == expected
        assert [row["id"] for row in read] == [f"{number:03}" for number in range(40)]
        assert {number: row["problem"] for number, row in enumerate(read) if row["problem"]} == PROBLEMS
        assert [number for number, row in enumerate(read) if not row["prediction"]] == list(PROBLEMS)
        if labeled:
            assert all(row["label"] in (str(number), "") for number, row in enumerate(read))
    assert "2 of 40 rows are malformed and have no prediction; the column problem has the reasons" in printed
    assert "eval.csv, row 8: price is 'x'" in printed
    assert "40 predictions of step 5" in printed


@pytest.mark.inprocess
@pytest.mark.parametrize(
    ("data", "keep", "message"),
    [
        ("InRows", "[nam]", r"predict.keep: names 'nam', which is no column of the files. Did you mean 'name'\?"),
        ("InRows", "[prediction]", r"predict.keep: names 'prediction', but a column of the output has that name"),
        ("Numbered", "[id]", r"predict.keep: requires data in files with columns, such as data=table; set it to \[\]"),
    ],
)
def test_columns_that_cannot_be_kept_are_reported(train, predict, data, keep, message):
    pieces = counted(40, data)
    _, folder = train(*pieces)
    for cluster in ("none", "inprocess"):
        with pytest.raises(ConfigError, match=message):
            predict(folder, *pieces, f"predict.keep={keep}", f"cluster={cluster}")
    assert not (folder.path / "predictions").exists() or not list((folder.path / "predictions").iterdir())


@pytest.mark.inprocess
def test_files_that_lost_rows_meanwhile_are_reported(train, predict):
    pieces = counted(40, "InRows")
    _, folder = train(*pieces)
    with pytest.raises(DataError, match=r"have fewer rows than were predicted: did they change meanwhile\?"):
        predict(folder, *pieces, "predict.keep=[id]", "+data.kept_rows=39", "cluster=none")
    assert list((folder.path / "predictions").iterdir()) == []


@pytest.mark.parametrize(
    ("keys", "file_format"),
    [
        ([], "csv"), (["predict.path=a/p.parquet"], "parquet"), (["predict.path=p.TFRecords"], "tfrecord"),
        (["predict.path=p.csv", "predict.format=parquet"], "parquet"), (["predict.format=parquet"], "parquet"),
    ],
)  # fmt: skip
def test_the_format_follows_from_the_extension(keys, file_format):
    assert run_config(*keys).predict.file_format == file_format


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            "predict.path=p.tsv",
            "predict.format: is required: predict.path=p.tsv has none of the extensions .csv, .parqu",
        ),
        ("predict.path=p.csv.gz", "predict.format: is required"),
        ("predict.format=xml", "predict.format: is 'xml', must be one of csv, parquet, tfrecord"),
        ("predict.keep=id", "predict.keep: is 'id', must be a list of texts"),
        ("predict.keep=[a,b,a]", "predict.keep: names 'a' more than once"),
    ],
)
def test_keys_of_predictions_that_cannot_be_are_refused(keys, message):
    with pytest.raises(ConfigError) as raised:
        run_config(keys)
    assert message in str(raised.value)


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
