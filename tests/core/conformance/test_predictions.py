"""Predictions: each row of the input once and in order, on workers and in one process."""

from __future__ import annotations

import json

import pytest
from outcomes import rows
from sample_weights import NUM_EVAL, own_data
from support import run_config

from psrun.errors import ConfigError, DataError
from psrun.results.run_folder import RunFolder

NUM_ROWS = 40
PROBLEMS = {7: "eval.csv, row 8: price is 'x'", 31: "eval.csv, row 32: 3 fields"}


def counted(data: str, num_examples: int = NUM_ROWS) -> list[str]:
    return [
        "model=dense", "~model.hidden_units", "model._target_=example_ids.model", f"data._target_=example_ids.{data}",
        "~data.num_train_examples", "~data.noise", "~data.num_features", f"data.num_eval_examples={num_examples}",
        "data.global_batch_size=3", "trainer.epochs=1", "trainer.steps_per_epoch=5", "trainer.steps_per_execution=5",
        "optimizer.learning_rate=0.0001", "evaluation=none",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def trained(trainings, tmp_path_factory) -> RunFolder:
    """A run on examples that have their number as label; its predictions may be of any such source."""
    _, folder = trainings(tmp_path_factory.mktemp("trained"))(*counted("Numbered"), "cluster=none")
    return folder


@pytest.mark.inprocess
def test_every_row_of_the_input_has_one_in_the_output(trained, predict):
    """Also one that is malformed, with the columns to keep; on workers in shards, and in one process."""
    before = {path: path.read_bytes() for path in trained.path.rglob("*") if path.is_file()}
    here, there = trained.path / "here.csv", trained.path / "predictions" / "5.csv"
    given = [*counted("InRows"), "predict.keep=[id,name]"]
    printed = predict(trained, *given)
    predict(trained, *given, "cluster=none", f"predict.path={here}")
    assert {path: path.read_bytes() for path in before} == before
    for path in (here, there):
        read = rows(path)
        assert list(read[0]) == ["id", "name", "label", "prediction", "problem"]
        assert [row["id"] for row in read] == [f"{number:03}" for number in range(NUM_ROWS)]
        assert [row["label"] for row in read] == ["" if n in PROBLEMS else str(n) for n in range(NUM_ROWS)]
        assert {number: row["problem"] for number, row in enumerate(read) if row["problem"]} == PROBLEMS
        assert [number for number, row in enumerate(read) if not row["prediction"]] == list(PROBLEMS)
    alone, on_workers = ([float(row["prediction"] or 0) for row in rows(path)] for path in (here, there))
    assert on_workers == pytest.approx(alone, rel=1e-5)
    assert PROBLEMS[7] in printed
    assert f"{NUM_ROWS - len(PROBLEMS)} predictions of step 5 in {there}" in printed


@pytest.mark.tensorflow
def test_a_file_of_malformed_rows_alone_is_an_error(trained, predict, tmp_path):
    """The file with the reasons is written nevertheless."""
    path = tmp_path / "p.csv"
    with pytest.raises(DataError, match=r"p\.csv: 40 of 40 rows are malformed .* the first one: no number"):
        predict(trained, *counted("InRows"), "+data.all_malformed=true", "cluster=none", f"predict.path={path}")
    assert {row["problem"] for row in rows(path)} == {"no number"}


@pytest.mark.tensorflow
def test_rows_without_labels_are_predicted(trained, predict):
    path = trained.path / "unlabeled.csv"
    predict(trained, *counted("InRows"), "+data.labeled=false", "cluster=none", f"predict.path={path}")
    assert list(rows(path)[0]) == ["prediction", "problem"]
    assert len(rows(path)) == NUM_ROWS


@pytest.mark.thorough
@pytest.mark.parametrize(("num_examples", "data"), [(100, "AsOthersHaveIt"), (1, "Numbered")])
def test_workers_predict_each_example_of_any_source_once_and_in_order(trained, predict, num_examples, data, tmp_path):
    predict(trained, *counted(data, num_examples), f"predict.path={tmp_path}/p.csv")
    assert [row["label"] for row in rows(tmp_path / "p.csv")] == [str(number) for number in range(num_examples)]


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("pieces", "error", "key"),
    [
        ([*counted("InRows"), "predict.keep=[nam]"], ConfigError, "predict.keep"),
        ([*counted("InRows"), "predict.keep=[prediction]"], ConfigError, "predict.keep"),
        ([*counted("Numbered"), "predict.keep=[id]"], ConfigError, "predict.keep"),
        ([*counted("InRows"), "predict.keep=[id]", "+data.kept_rows=39"], DataError, "fewer rows"),
        ([*counted("AsOthersHaveIt", 24), "+data.endless=true"], DataError, "num_eval_examples"),
    ],
    ids=["no-such-column", "name-of-the-prediction", "no-columns", "rows-lost-meanwhile", "miscounted"],
)
def test_what_cannot_be_predicted_is_reported_and_nothing_is_written(
    trained, predict, tmp_path, pieces, error, key
):  # fmt: skip
    with pytest.raises(error, match=key):
        predict(trained, *pieces, "cluster=none", f"predict.path={tmp_path}/p.csv")
    assert not (tmp_path / "p.csv").exists()


@pytest.mark.thorough
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


@pytest.mark.parametrize(
    ("keys", "file_format"),
    [
        ([], "csv"), (["predict.path=a/p.parquet"], "parquet"), (["predict.path=p.TFRecords"], "tfrecord"),
        (["predict.path=p.csv", "predict.format=parquet"], "parquet"), (["predict.format=parquet"], "parquet"),
    ],
)  # fmt: skip
def test_the_format_follows_from_the_extension(keys, file_format):
    assert run_config(*keys).predict.file_format == file_format


@pytest.mark.thorough
def test_a_run_is_predicted_on_the_cluster_that_is_chosen_now(psrun):
    """Also one whose evaluator task has no part in this, on the run's own cluster and on another one."""
    quick = ["trainer.steps_per_epoch=20", "data.num_train_examples=500", "data.num_eval_examples=100"]
    first = psrun("cluster=local", "evaluation=sidecar", "partitioner=fixed_shards", "trainer.epochs=1", *quick)
    assert first.code == 0, first.stderr
    before = (first.folder / "run.json").read_bytes()
    written = {}
    for chosen in ([], ["cluster=mirrored"]):  # `none` predicts above
        done = psrun("predict", "run", *chosen)
        assert done.code == 0, done.stderr
        assert "100 predictions of step 20 in" in done.stdout
        written[str(chosen)] = [float(row["prediction"]) for row in rows(first.folder / "predictions" / "20.csv")]
    assert len({len(each) for each in written.values()}) == 1
    for values in written.values():
        assert values == pytest.approx(written["[]"], rel=1e-5)
    assert (first.folder / "run.json").read_bytes() == before
    own = json.loads((first.folder / "predictions" / "cluster" / "run.json").read_text())
    assert (own["status"], own["predictions"]["count"]) == ("completed", 100)
