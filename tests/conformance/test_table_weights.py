"""`data.weight`: weights from files, bad ones among them, and the metrics of Keras with the same sample weights."""

from __future__ import annotations

import functools
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from rich.console import Console
from sample_weights import NUM_EVAL, NUM_TRAIN, one_output
from support import run_config

from psrun.config.topology import Task
from psrun.data.order import Order
from psrun.data.table import Table
from psrun.errors import DataError
from psrun.process import Stop
from psrun.program.compiled_model import _SEED_STRIDE
from psrun.results.console import ConsoleSink
from psrun.results.run_folder import RunFolder
from psrun.roles import evaluation, planner, predictor, sidecar
from psrun.roles.task_context import TaskContext

pytestmark = pytest.mark.tensorflow

ROWS = {"age": [1.5, 2.5, 3.5, 4.5], "w": [2.0, 0.0, 0.25, 7.0], "label": [0, 1, 1, 0]}
EPOCHS, STEPS, BATCH, SEED = 2, 8, 16, 3


def write(path: Path, columns: dict[str, list]) -> Path:
    {".csv": _text, ".npz": _arrays, ".tfrecord": _records, ".parquet": _parquet}[path.suffix](path, columns)
    return path


def _text(path: Path, columns: dict[str, list]) -> None:
    lines = [columns.keys(), *zip(*columns.values())]
    path.write_text("".join(",".join(map(str, line)) + "\n" for line in lines))


def _arrays(path: Path, columns: dict[str, list]) -> None:
    np.savez(path, **{name: np.array(values) for name, values in columns.items()})


def _records(path: Path, columns: dict[str, list]) -> None:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in zip(*columns.values()):
            record = tf.train.Example()
            for name, value in zip(columns, row):
                record.features.feature[name].float_list.value.append(value)
            writer.write(record.SerializeToString())


def _parquet(path: Path, columns: dict[str, list]) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), path)


def table(path: Path, **options):
    return Table(**{"path": str(path), "label": "label", "task": "binary", "weight": "w", **options})


def text(path: Path, *weights: str) -> Path:
    path.write_text("age,w,label\n" + "".join(f"{age},{weight},1\n" for age, weight in enumerate(weights)))
    return path


@pytest.mark.parametrize("ending", ["csv", "npz", "tfrecord", "parquet"])
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
    [("csv", "-1"), ("npz", -1.0), ("tfrecord", math.nan), ("parquet", math.inf), ("parquet", None)],
)
def test_a_row_with_a_bad_weight_is_named_or_skipped(tmp_path, ending, bad):
    """`test_messages_training` has the messages."""
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
    for columns in (unweighted, {**ROWS, "w": [-1, "nan", "", 1]}):
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
        np.savez(tmp_path / f"{name}.npz", **columns)
    keys = (
        f"data.path={tmp_path}/train.npz",
        f"data.eval_path={tmp_path}/eval.npz",
        "data.label=label",
        "data.weight=w",
    )
    run = (
        "model=dense", "~model.hidden_units", "model._target_=sample_weights.one_output", "data=table",
        "data._target_=psrun.data.table.Table", "data.features={x: {width: 4}}", f"data.global_batch_size={BATCH}",
        "optimizer=sgd", "optimizer.learning_rate=0.1", "trainer.steps_per_execution=4", f"trainer.epochs={EPOCHS}",
        f"trainer.steps_per_epoch={STEPS}", f"seed={SEED}", *keys,
    )  # fmt: skip
    return run, functools.partial(by_keras, parts)


def by_keras(parts: dict[str, dict[str, np.ndarray]], *, l2: float, class_weight: bool = False) -> dict[str, float]:
    """Metrics of the last epoch and of an evaluation after it, by Keras with `sample_weight` in one process."""
    network = one_output(l2=l2)
    network.compile(
        tf_keras.optimizers.SGD(0.1), "binary_crossentropy",
        weighted_metrics=[tf_keras.metrics.AUC(name="auc"), tf_keras.metrics.BinaryAccuracy(name="accuracy")],
    )  # fmt: skip
    order = Order(NUM_TRAIN, BATCH, block=2, whole_passes=True)
    rows = np.concatenate([order.numbers(tf.constant(n, tf.int64), tf.constant(SEED * _SEED_STRIDE, tf.int64))
                           for n in range(EPOCHS * STEPS)])  # fmt: skip
    train = {name: values[rows] for name, values in parts["train"].items()}
    if class_weight:
        train["w"] = train["w"] * np.where(train["label"] == 1, 5, 1)
    last: dict[str, list[float]] = {}
    for epoch in np.split(np.arange(len(rows)), EPOCHS):
        x, w, label = (train[name][epoch] for name in ("x", "w", "label"))
        last = network.fit(
            {"x": x}, label, sample_weight=w, batch_size=BATCH, shuffle=False, verbose=0
        ).history  # fmt: skip
    held = parts["eval"]
    evaluated = network.evaluate(
        {"x": held["x"]}, held["label"], sample_weight=held["w"], batch_size=BATCH, return_dict=True, verbose=0
    )
    return {**{name: values[-1] for name, values in last.items()}, **{f"val_{k}": v for k, v in evaluated.items()}}


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
    wanted = expected(l2=l2, class_weight=any("class_weight" in piece for piece in pieces))
    assert result["metrics"] == pytest.approx(wanted, rel=1e-6)
    assert result["evaluation"]["examples_seen"] == NUM_EVAL
    assert result["data"]["num_train_examples"] == NUM_TRAIN


@pytest.mark.inprocess
@pytest.mark.thorough
def test_every_mode_takes_a_weighted_table(train, files, tmp_path):
    """The metrics of an evaluation are those of the run; exports have no weights; predictions need none."""
    run, _ = files
    result, folder = train(*run, "evaluation=exact", "export.at_end=true", "data.audit=true")
    expected = {name.removeprefix("val_"): value for name, value in result["metrics"].items() if "val_" in name}
    (exported,) = (folder.path / "export").iterdir()
    assert [*tf.saved_model.load(str(exported)).signatures["serving_default"].structured_input_signature[1]] == ["x"]

    context = TaskContext(folder, ConsoleSink(Console(file=io.StringIO(), width=200)), 0)
    resumed = (*run, f"resume={folder.path}", "cluster=none")
    evaluation.run(run_config(*resumed, "mode=evaluate"), context)
    (kept,) = (folder.path / "evaluations").iterdir()
    evaluated = json.loads(kept.read_text())
    assert (evaluated["metrics"], evaluated["examples_seen"]) == (pytest.approx(expected, rel=1e-6), NUM_EVAL)

    held = np.load(tmp_path / "eval.npz")
    np.savez(tmp_path / "new.npz", **{name: held[name] for name in ("x", "label")})
    predictor.run(run_config(*resumed, "mode=predict", f"data.eval_path={tmp_path}/new.npz"), context)
    (predictions,) = (folder.path / "predictions").iterdir()
    assert len(predictions.read_text().splitlines()) == NUM_EVAL + 1

    static = ("cluster=static", "cluster.addresses={worker: ['w:1'], ps: ['p:1']}", "evaluation=sidecar")
    folder.record("ended", status="completed", exit_code=0)
    sidecar.run(
        run_config(*run, *static), RunFolder.join(folder.path), context.console, Stop(), me=Task("evaluator", 0)
    )
    evaluated = json.loads((folder.path / "evaluations" / f"{EPOCHS * STEPS}-sidecar.json").read_text())
    assert evaluated["metrics"] == pytest.approx(expected, rel=1e-6)
    assert planner.make(run_config(*run, "mode=plan"), table(tmp_path / "train.npz", features={"x": {"width": 4}}))
