"""Weights of examples, through training and every way to evaluate, beside Keras in one process."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import math

import pytest
from rich.console import Console
from sample_weights import NUM_EVAL, Weighted, by_keras, one_output, own_data, two_outputs
from support import raw_config, run_config

from psrun.config import keras_names, parse
from psrun.config.topology import Task
from psrun.errors import ConfigError
from psrun.results.console import ConsoleSink
from psrun.results.run_folder import RunFolder

EPOCHS, STEPS = 2, 8


def usual_metrics():
    import tf_keras

    return [tf_keras.metrics.AUC(name="auc"), tf_keras.metrics.BinaryAccuracy(name="accuracy")]


@pytest.fixture(scope="module")
def oracle():
    """Metrics of the weighted model by Keras alone, given its regularisation."""
    return functools.cache(
        lambda l2: by_keras(
            one_output(l2=l2), Weighted(), batch_size=16, epochs=EPOCHS, steps=STEPS, loss="binary_crossentropy",
            weighted_metrics=usual_metrics(),
        )
    )  # fmt: skip


@pytest.mark.inprocess
@pytest.mark.parametrize(
    ("trainer", "evaluation"),
    [
        ("custom_loop", "exact"),
        pytest.param("fit", "validation", marks=pytest.mark.thorough),
    ],
)
def test_weighted_examples_train_and_evaluate_as_by_keras(train, oracle, trainer, evaluation):
    l2 = 0.0 if evaluation == "validation" else 0.01
    result, _ = train(*own_data(f"trainer={trainer}", f"evaluation={evaluation}", f"+model.l2={l2}"), num_workers=1)
    assert result["metrics"] == pytest.approx(oracle(l2), rel=1e-5)
    assert result["evaluation"]["examples_seen"] == NUM_EVAL


def huber(**options):
    import tf_keras

    return tf_keras.losses.Huber(**options)


BY_OUTPUT = (
    "+data.outputs=2", "+data.task=ranking",
    "model.loss={click: binary_crossentropy, price: {_target_: tf_keras.losses.Huber, delta: 0.5}}",
    "model.metrics={click: [AUC, accuracy], price: {_target_: sample_weights.off_by_more, power: 2}}",
)  # fmt: skip


@pytest.mark.thorough
@pytest.mark.inprocess
def test_losses_and_metrics_by_output_are_those_of_keras(train):
    from sample_weights import off_by_more

    pieces = own_data("trainer=fit", "evaluation=exact", *BY_OUTPUT, model="two_outputs")
    result, folder = train(*pieces, "checkpoint.best_metric=val_click_auc", "checkpoint.best_mode=max", num_workers=1)
    expected = by_keras(
        two_outputs(), Weighted(outputs=2), batch_size=16, epochs=EPOCHS, steps=STEPS,
        loss={"click": "binary_crossentropy", "price": huber(delta=0.5)},
        weighted_metrics={"click": ["AUC", "accuracy"], "price": [lambda y, p: off_by_more(y, p, 2.0)]},
    )  # fmt: skip
    renamed = {name.replace("<lambda>", "off_by_more").replace("lambda", "off_by_more") for name in expected}
    assert set(result["metrics"]) == renamed
    assert sorted(result["metrics"].values()) == pytest.approx(sorted(expected.values()), rel=1e-5)
    assert (folder.path / "checkpoints").exists()


@pytest.mark.inprocess
@pytest.mark.parametrize(
    ("weights", "trainer", "metrics"),
    [("both", "custom_loop", "weighted_metrics"), pytest.param("none", "fit", "metrics", marks=pytest.mark.thorough)],
)
def test_weights_of_classes_multiply_those_of_examples_in_training(train, weights, trainer, metrics):
    pieces = own_data(f"trainer={trainer}", "evaluation=direct", f"+data.weights={weights}")
    by = "{0: 1, 1: 5}" if weights == "both" else "{shown: 1, clicked: 5}"
    named = () if weights == "both" else ("+data.label_vocabulary=[shown, clicked]", "+data.names=[shown, clicked]")
    result, _ = train(*pieces, *named, f"model.class_weight={by}", "model.loss=mse", "model.metrics=[Recall, mae]",
                      num_workers=1)  # fmt: skip
    expected = by_keras(
        one_output(), Weighted(weights=weights), batch_size=16, epochs=EPOCHS, steps=STEPS, loss="mse",
        class_weight={0: 1.0, 1: 5.0}, **{metrics: ["Recall", "mae"]},
    )  # fmt: skip
    assert result["metrics"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.tensorflow
def test_a_loss_and_metrics_by_name_take_logits_where_the_model_returns_them(train):
    pieces = own_data("cluster=none", "model.loss=binary_crossentropy", "model.metrics=[AUC, accuracy]")
    probabilities, _ = train(*pieces)
    logits, _ = train(*pieces, "+model.activation=null", "model.from_logits=true")
    assert logits["metrics"] == pytest.approx(probabilities["metrics"], rel=1e-3)
    with pytest.raises(ConfigError, match=r"model\.from_logits: is not true, but \d+ predictions"):
        train(*pieces, "+model.activation=null")
    with pytest.raises(ConfigError, match=r"model\.from_logits: is False, .* its loss from_logits=True"):
        train(*pieces[:-2], "model.loss={_target_: tf_keras.losses.BinaryCrossentropy, from_logits: true}",
              "model.from_logits=false", "+model.activation=null")  # fmt: skip


@pytest.mark.thorough
@pytest.mark.inprocess
def test_every_mode_takes_weighted_examples(train):
    """Dealt and counted batches, steps that are measured, weights of the evaluation data alone, and what follows."""
    from psrun.process import Stop
    from psrun.roles import evaluation, planner, predictor, sidecar
    from psrun.roles.task_context import TaskContext

    console = Console(file=io.StringIO(), width=200)
    steps = (
        "trainer.steps_per_execution=auto",
        "trainer.steps_per_epoch=30",
        "data.visitation=once",
        "data.audit=true",
    )
    pieces = own_data(*steps, "evaluation=exact", "export.at_end=true", "checkpoint.max_to_keep=9")
    result, folder = train(*pieces)
    assert result["visitation"]
    assert math.isfinite(result["metrics"]["val_loss"])
    resumed = own_data(f"resume={folder.path}")
    context = TaskContext(folder, ConsoleSink(console), 0)
    predictor.run(run_config(*resumed, "mode=predict", "cluster=none"), context)
    assert len((folder.path / "predictions" / "60.csv").read_text().splitlines()) == NUM_EVAL + 1
    evaluation.run(run_config(*resumed, "mode=evaluate", "cluster=none"), context)
    evaluated = json.loads((folder.path / "evaluations" / "60-direct.json").read_text())
    expected = {name.removeprefix("val_"): value for name, value in result["metrics"].items() if "val_" in name}
    assert evaluated["metrics"] == pytest.approx(expected, rel=1e-5)
    static = ("cluster=static", "cluster.addresses={worker: ['w:1'], ps: ['p:1']}", "evaluation=sidecar")
    folder.record("ended", status="completed", exit_code=0)
    sidecar.run(run_config(*own_data(*static, "checkpoint.max_to_keep=9")), RunFolder.join(folder.path),
                ConsoleSink(console), Stop(), me=Task("evaluator", 0))  # fmt: skip
    evaluated = json.loads((folder.path / "evaluations" / "60-sidecar.json").read_text())
    assert evaluated["metrics"] == pytest.approx(expected, rel=1e-5)
    plan = planner.make(run_config(*own_data("mode=plan")), Weighted())
    assert plan.traffic.read_bytes


@pytest.mark.tensorflow
@pytest.mark.parametrize("weights", ["train", pytest.param("evaluation", marks=pytest.mark.thorough)])
def test_weights_may_come_with_the_one_part_of_the_data_alone(train, weights):
    result, _ = train(*own_data("cluster=none", f"+data.weights={weights}"))
    expected = by_keras(one_output(), Weighted(weights=weights), batch_size=16, epochs=EPOCHS, steps=STEPS,
                        loss="binary_crossentropy", weighted_metrics=usual_metrics())  # fmt: skip
    assert result["metrics"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("loss", "mse_", r"model\.loss: is 'mse_', .* Did you mean 'mse'"),
        ("loss", "own.loss", r"model\.loss: .*_target_"),
        ("loss", {"click": "mze"}, r"model\.loss\.click: is 'mze'"),
        ("loss", 3, r"model\.loss: is 3, must be a name"),
        ("loss", {"_target_": "sample_weights.off_by_more", "power_": 2}, r"model\.loss\.power_: .* mean 'power'"),
        ("metrics", ["auc"], r"model\.metrics\[0\]: is 'auc', .* Did you mean 'AUC'"),
        ("metrics", {"click": ["mae", "recal"]}, r"model\.metrics\.click\[1\]: .* Did you mean 'Recall'"),
        ("class_weight", [1, 2], r"model\.class_weight: is \[1, 2\]"),
        ("class_weight", {0: 1, 1: "much"}, r"model\.class_weight\.1: is 'much'"),
    ],
)
def test_losses_metrics_and_weights_that_cannot_be_are_refused_by_key(key, value, message):
    raw = raw_config("model=dense")
    raw["model"][key] = value
    with pytest.raises(ConfigError, match=message):
        parse.load(raw)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        (
            ("model.class_weight={0: 1}",),
            r"model\.class_weight: has weights for 0, must .* of the classes 0 to 1",
        ),
        (("model.class_weight={0: 1, 2: 3}",), r"model\.class_weight: has weights for 0, 2"),
        (("+data.task=ranking",), r"model\.loss: is required: the task of the data is 'ranking'"),
        (("model.metrics=[MeanIoU]",), r"model\.metrics\[0\]: cannot be created by name"),
        (("model.loss={clik: mse}",), r"model\.loss: .*clik.*click"),
        (("model.metrics=[mae, mae]", "+data.weights=none"), r"model\.metrics: .*same name: mae"),
        (("model.metrics=[AUC, F1Score]", "+data.weights=none"), r"model\.metrics: f1_score has several values"),
        (
            ("model.metrics=[{_target_: tf_keras.metrics.F1Score, average: micro}]",),
            r"f1_score .* is wrong in tf-keras",
        ),
        (
            ("model.metrics=[{_target_: tf_keras.metrics.Recall, thresholds: [0.2, 0.5]}]",),
            r"recall has several values",
        ),
    ],
)
def test_what_only_keras_detects_in_losses_and_metrics_is_reported_by_key_too(train, pieces, message):
    with pytest.raises(ConfigError, match=message):
        train(*own_data("cluster=none", *pieces))


@pytest.mark.tensorflow
def test_every_name_of_a_loss_or_metric_is_one_that_keras_takes():
    """Names are read from tf-keras' source; metrics that need arguments are known, too."""
    import tf_keras

    assert {"mse", "binary_crossentropy", "Huber"} < keras_names.losses()
    assert {"AUC", "mae", "Recall", "accuracy"} < keras_names.metrics()
    assert all(tf_keras.losses.get(name) for name in keras_names.losses())
    for name in keras_names.metrics() - keras_names.BY_SHAPE:
        with contextlib.suppress(TypeError):
            assert tf_keras.metrics.get(name)
