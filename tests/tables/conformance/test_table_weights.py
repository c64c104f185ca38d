"""`data.weight`: weights from files, bad ones among them, and the metrics of Keras with the same sample weights."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sample_weights
import table_files
import tensorflow as tf
import tf_keras
from pyarrow import parquet
from sample_weights import NUM_EVAL, NUM_TRAIN, one_output
from support import run_config
from table_files import write

from psrun import metrics
from psrun.data.source import Order
from psrun.errors import DataError
from psrun.program.batches import _SEED_STRIDE
from psrun.roles import planner

pytestmark = pytest.mark.tensorflow

ROWS = {"age": [1.5, 2.5, 3.5, 4.5], "w": [2.0, 0.0, 0.25, 7.0], "label": [0, 1, 1, 0]}
EPOCHS, STEPS, BATCH, SEED = 2, 8, 16, 3


def table(path: Path, **options):
    return table_files.table(path, **{"task": "binary", "weight": "w", **options})


@pytest.mark.parametrize("ending", ["csv", "tfrecord", "parquet"])
def test_weights_are_read_with_the_examples_and_are_no_feature(tmp_path, ending):
    path = write(tmp_path / f"rows.{ending}", ROWS)
    evaluated = write(tmp_path / f"eval.{ending}", ROWS)
    options = {"features": {"age": {}}} if ending == "tfrecord" else {}
    source = table(path, eval_path=str(evaluated), **options)
    assert set(source.features) == {"age"}
    assert source.facts["mean_weight"] == pytest.approx(np.mean(ROWS["w"]))
    assert source.features["age"].mean == 3.0  # not weighted
    (features, _, weights), *_ = source.evaluation(batch_size=4).as_numpy_iterator()
    assert (weights.tolist(), weights.dtype) == (ROWS["w"], np.float32)
    assert features["age"].tolist() == [[age] for age in ROWS["age"]]
    features, _, weights = next(source.train(batch_size=4, seed=np.int64(1)).as_numpy_iterator())
    assert dict(zip(features["age"][:, 0].tolist(), weights.tolist())) == dict(zip(ROWS["age"], ROWS["w"]))


@pytest.mark.parametrize(
    ("ending", "bad"),
    [("csv", -1.0), ("tfrecord", math.nan), ("parquet", math.inf), ("parquet", None)],
)
def test_a_row_with_a_bad_weight_is_named_or_skipped(tmp_path, ending, bad):
    """More mistakes: test_refused_tables.py."""
    path = write(tmp_path / f"rows.{ending}", {**ROWS, "w": [1.0, bad, 0.0, 3.0]})
    with pytest.raises(DataError, match=rf"rows\.{ending}, row {3 if ending == 'csv' else 2}: column w"):
        table(path, features={"age": {}})
    source = table(path, features={"age": {}}, max_bad_rows=1)
    assert (source.num_train_examples, source.facts["num_bad_rows"]) == (3, 1)
    assert source.facts["mean_weight"] == pytest.approx(4 / 3)


def test_examples_that_are_only_predicted_need_no_weights(tmp_path):
    """The training examples do, and are not prepared again."""
    path, cache = write(tmp_path / "rows.csv", ROWS), tmp_path / "cache"
    unweighted = {name: values for name, values in ROWS.items() if name != "w"}
    options = {"cache": str(cache), "eval_path": str(write(tmp_path / "new.csv", unweighted))}
    with pytest.raises(DataError, match=r"new\.csv"):
        table(path, **options)
    for columns in (unweighted, {**ROWS, "w": ["-1", "nan", "", "1"]}):
        write(tmp_path / "new.csv", columns)
        source = table(path, predicting=True, **options)
        ((features, label),) = source.evaluation(batch_size=9).as_numpy_iterator()
        assert (features.keys(), len(label)) == ({"age"}, 4)
    assert len([*cache.glob("*/prepared.json")]) == 3  # training examples, and two files of new ones
    with pytest.raises(DataError, match=r"new\.csv, row 2: column w"):
        table(path, **options)


@pytest.fixture
def files(tmp_path):
    """Tables of a feature `x` of four values, and what Keras makes of them: metrics by name."""
    rng = np.random.default_rng(5)

    def part(count: int) -> dict[str, np.ndarray]:
        x = rng.normal(size=(count, 4)).astype(np.float32)
        label = (x[:, 0] + rng.normal(size=count) > 0).astype(np.int64)
        return {"x": x, "w": rng.choice([0.0, 0.5, 3.0], size=count), "label": label}

    parts = {"train": part(NUM_TRAIN), "eval": part(NUM_EVAL)}
    for name, columns in parts.items():
        write(tmp_path / f"{name}.parquet", {**columns, "x": columns["x"].tolist()})
    keys = (
        f"data.path={tmp_path}/train.parquet",
        f"data.eval_path={tmp_path}/eval.parquet",
        "data.label=label",
        "data.weight=w",
    )
    run = (
        "model=dense", "~model.hidden_units", "model._target_=sample_weights.one_output", "data=table",
        "data._target_=psrun.tables.table.Table", "data.features={x: {width: 4}}", f"data.global_batch_size={BATCH}",
        "optimizer=sgd", "optimizer.learning_rate=0.1", "trainer.steps_per_execution=4", f"trainer.epochs={EPOCHS}",
        f"trainer.steps_per_epoch={STEPS}", f"seed={SEED}", *keys,
    )  # fmt: skip
    return run, functools.partial(by_keras, parts)


def by_keras(parts: dict[str, dict[str, np.ndarray]], *, l2: float, class_weight: Any = None) -> dict[str, float]:
    """Metrics of the last epoch and of an evaluation after it, by Keras with `sample_weight` in one process."""
    order = Order(NUM_TRAIN, BATCH, block=2, whole_passes=True)
    rows = np.concatenate([order.numbers(tf.constant(n, tf.int64), tf.constant(SEED * _SEED_STRIDE, tf.int64))
                           for n in range(EPOCHS * STEPS)])  # fmt: skip

    def examples(part: dict[str, np.ndarray]) -> tf.data.Dataset:
        given = {"x": part["x"]}, part["label"][:, np.newaxis], part["w"].astype(np.float32)
        return tf.data.Dataset.from_tensor_slices(given)

    train = examples({name: values[rows] for name, values in parts["train"].items()}).batch(BATCH, drop_remainder=True)
    source = SimpleNamespace(train=lambda **_: train, evaluation=lambda **_: examples(parts["eval"]).batch(BATCH))
    return sample_weights.by_keras(
        one_output(l2=l2), source, batch_size=BATCH, epochs=EPOCHS, steps=STEPS, class_weight=class_weight,
        loss="binary_crossentropy",
        weighted_metrics=[metrics.AUC(bits=8), tf_keras.metrics.BinaryAccuracy(name="accuracy")],
    )  # fmt: skip


thorough = pytest.mark.thorough


@pytest.mark.inprocess
@pytest.mark.parametrize(
    "pieces",
    [
        ("cluster=none", "evaluation=direct"),
        pytest.param(("model.class_weight={0: 1, 1: 5}", "evaluation=exact"), marks=thorough),
        pytest.param(("trainer=fit", "evaluation=validation"), marks=thorough),
        pytest.param(("data.visitation=every_worker", "evaluation=distributed"), marks=thorough),
    ],
)
def test_loss_and_metrics_are_those_of_keras_with_sample_weights(train, files, pieces):
    run, expected = files
    l2 = 0.0 if "evaluation=validation" in pieces else 0.01
    result, _ = train(*run, f"+model.l2={l2}", *pieces, num_workers=1)
    wanted = expected(l2=l2, class_weight={0: 1.0, 1: 5.0} if "model.class_weight={0: 1, 1: 5}" in pieces else None)
    assert result["metrics"] == pytest.approx(wanted, rel=1e-6)
    assert result["evaluation"]["examples_seen"] == NUM_EVAL
    assert result["data"]["num_train_examples"] == NUM_TRAIN


@pytest.mark.inprocess
@pytest.mark.thorough
def test_every_mode_takes_a_weighted_table(train, predict, evaluate, sidecar, files, tmp_path):
    """The metrics of an evaluation are those of the run; exports have no weights; predictions need none."""
    run, _ = files
    result, folder = train(*run, "evaluation=exact", "export.at_end=true")
    expected = {name.removeprefix("val_"): value for name, value in result["metrics"].items() if "val_" in name}
    (exported,) = (folder.path / "export").iterdir()
    assert [*tf.saved_model.load(str(exported)).signatures["serving_default"].structured_input_signature[1]] == ["x"]

    evaluate(folder, *run)
    (kept,) = (folder.path / "evaluations").iterdir()
    evaluated = json.loads(kept.read_text())
    assert (evaluated["metrics"], evaluated["examples_seen"]) == (pytest.approx(expected, rel=1e-6), NUM_EVAL)

    held = parquet.read_table(tmp_path / "eval.parquet")
    parquet.write_table(held.select(["x", "label"]), tmp_path / "new.parquet")
    predict(folder, *run, "cluster=none", f"data.eval_path={tmp_path}/new.parquet")
    (predictions,) = (folder.path / "predictions").iterdir()
    assert len(predictions.read_text().splitlines()) == NUM_EVAL + 1

    folder.emit("ended", status="completed", exit_code=0)
    sidecar(folder, *run)
    evaluated = json.loads((folder.path / "evaluations" / f"{EPOCHS * STEPS}-sidecar.json").read_text())
    assert evaluated["metrics"] == pytest.approx(expected, rel=1e-6)
    assert planner.make(run_config(*run, "mode=plan"), table(tmp_path / "train.parquet", features={"x": {"width": 4}}))
