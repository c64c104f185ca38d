"""Features that are lists, in training, evaluation, exports and predictions, and models that cannot take them."""

from __future__ import annotations

import counting
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from list_features import NUM_EVAL, NUM_TRAIN, Histories, own_data, started, write_csv
from support import last_choices, run_config

from psrun.data.source import Order
from psrun.program.batches import _SEED_STRIDE
from psrun.roles import planner
from psrun.tables.table import Table

pytestmark = pytest.mark.inprocess

thorough = pytest.mark.thorough
PASSES = ("data.visitation=once", "trainer.epochs=2", "trainer.steps_per_epoch=null", "trainer.steps_per_execution=3")
MODES = [
    ("trainer=custom_loop", "evaluation=exact"),
    ("trainer=fit", "evaluation=validation"),
    ("trainer=fit", "evaluation=direct", "trainer.steps_per_execution=auto"),
    ("cluster=mirrored", "trainer=fit", "evaluation=validation"),
    ("cluster.replicas_per_worker=3", "evaluation=exact"),
    ("model._target_=list_features.called", "evaluation=exact"),
]


@pytest.fixture(scope="module")
def by_keras() -> tuple[float, float]:
    """Losses of the last epoch and of an evaluation after it, by Keras in one process."""
    source = Histories()
    network = started(source)
    network.compile(tf_keras.optimizers.SGD(0.01), "mse")
    order, seed = Order(NUM_TRAIN, 16, whole_passes=True), tf.constant(run_config(*own_data()).seed * _SEED_STRIDE)
    losses = []
    for epoch in range(2):
        numbers = tf.data.Dataset.range(epoch * 13, (epoch + 1) * 13)
        batches = source.batches(numbers, order, tf.cast(seed, tf.int64)).map(lambda number, examples, batch: batch)
        losses.append(network.fit(batches, verbose=0).history["loss"][-1])
    return losses[-1], network.evaluate(source.evaluation(batch_size=16), verbose=0)


@thorough
@pytest.mark.parametrize("visitation", ["once", "every_worker"])
def test_sparse_tensors_of_a_source_train_as_ragged_ones(train, visitation):
    pieces = ("cluster=none", "evaluation=direct", "model._target_=list_features.started", "trainer.epochs=1",
              f"data.visitation={visitation}", "trainer.steps_per_epoch=12")  # fmt: skip
    ragged, _ = train(*own_data(*pieces))
    sparse, _ = train(*own_data(*pieces, "data._target_=list_features.SparseHistories"))
    assert sparse["metrics"] == pytest.approx(ragged["metrics"], rel=1e-6)


@thorough
@pytest.mark.parametrize("pieces", MODES)
def test_training_and_evaluation_are_those_of_keras(train, by_keras, pieces):
    model = () if any("_target_" in piece for piece in pieces) else ("model._target_=list_features.started",)
    result, _ = train(*own_data(*PASSES, *model), *pieces, num_workers=1)
    assert result["evaluation"]["examples_seen"] == NUM_EVAL
    assert result["steps"]["applied"] == 2 * 13
    if model:
        assert (result["metrics"]["loss"], result["metrics"]["val_loss"]) == pytest.approx(by_keras, rel=1e-5)


@pytest.mark.parametrize(
    "pieces",
    [
        ("trainer=custom_loop", "data.visitation=once"),
        pytest.param(("+data.sample_weights=true", "evaluation=exact"), marks=thorough),
    ],
)
def test_batches_of_lists_reach_two_workers_and_are_counted(train, pieces):
    run = own_data(*PASSES, *counting.COUNTS, "evaluation=none", "+data.numbered=true", model="counted")
    _, folder = train(*last_choices([*run, *pieces]))
    assert counting.wrong(folder.checkpoints, epochs=2) == []


@pytest.mark.thorough
def test_lists_of_strings_are_looked_up_in_the_input_and_served(train, predict, tmp_path):
    """From files: predictions by workers, in one process, and of the export for padded lists are equal."""
    words, labels = write_csv(tmp_path / "train.csv", 200, seed=1)
    words, labels = write_csv(tmp_path / "eval.csv", 53, seed=2)
    pieces = (
        "model=embedding", "~model.embedding_dim", "model._target_=list_features.embedded", "data=table",
        "data._target_=psrun.tables.table.Table", f"data.path={tmp_path}/train.csv", "data.label=label",
        f"data.eval_path={tmp_path}/eval.csv",
        "data.features={words: {dtype: string, max_values: 3, vocabulary: [a, b, c, d]}}",
        "data.global_batch_size=16",
    )  # fmt: skip
    result, folder = train(*pieces, *PASSES[1:], "evaluation=exact", "export.at_end=true")
    assert result["evaluation"]["examples_seen"] == 53
    assert result["data"]["num_truncated_rows"]["words"] > 0
    assert result["steps"]["applied"] == 2 * 13

    (exported,) = (folder.path / "export").iterdir()
    served = tf.saved_model.load(str(exported)).signatures["serving_default"]
    assert set(served.structured_input_signature[1]) == {"words", "words_length"}
    longest = max(map(len, words))
    assert longest > 3  # the export truncates, too
    padded = np.array([[*each, *["padding"] * (longest - len(each))] for each in words if len(each) >= 2], object)
    lengths = [len(each) for each in words if len(each) >= 2]
    outputs = served(words=tf.constant(padded), words_length=tf.constant(lengths, tf.int64))["prediction"]

    predict(folder, *pieces, "cluster=none")
    (predictions,) = (folder.path / "predictions").iterdir()
    rows = [line.split(",") for line in predictions.read_text().splitlines()[1:]]
    assert [float(row[0]) for row in rows] == labels
    expected = [float(row[-1]) for row, each in zip(rows, words) if len(each) >= 2]
    assert outputs[:, 0].numpy().tolist() == pytest.approx(expected, abs=1e-6)


def test_a_plan_knows_the_model_and_the_number_of_values(tmp_path):
    write_csv(tmp_path / "train.csv", 200, seed=1)
    source = Table(
        path=f"{tmp_path}/train.csv", label="label",
        features={"words": {"dtype": "string", "max_values": 3, "num_buckets": 10}},
    )  # fmt: skip
    plan = planner.make(
        run_config("model=embedding", "~model.embedding_dim", "model._target_=list_features.embedded", "mode=plan",
                   "data.global_batch_size=16"), source,
    )  # fmt: skip
    (rows,) = [traffic for name, traffic in plan.traffic_by_variable.items() if "embeddings" in name]
    assert rows.read_bytes == 16 * 2 * (4 * 4 + 8)  # two values a list in the mean, of 4 floats and an index
