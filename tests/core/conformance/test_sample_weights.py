"""Weights of examples, through training and every way to evaluate, beside Keras in one process."""

from __future__ import annotations

import contextlib

import pytest
import tf_keras
from sample_weights import Weighted, by_keras, off_by_more, one_output, own_data, two_outputs

from psrun import metrics
from psrun.config import rules
from psrun.errors import ConfigError

EPOCHS, STEPS = 2, 8


BY_OUTPUT = (
    "+data.outputs=2", "+data.task=ranking",
    "model.loss={click: binary_crossentropy, price: {_target_: tf_keras.losses.Huber, delta: 0.5}}",
    "model.metrics={click: [AUC, accuracy], price: {_target_: sample_weights.off_by_more, power: 2}}",
)  # fmt: skip


@pytest.mark.thorough
@pytest.mark.inprocess
def test_losses_and_metrics_by_output_are_those_of_keras(train):
    pieces = own_data("trainer=fit", "evaluation=exact", *BY_OUTPUT, model="two_outputs")
    result, folder = train(*pieces, "checkpoint.best_metric=val_click_auc", "checkpoint.best_mode=max", num_workers=1)
    expected = by_keras(
        two_outputs(), Weighted(outputs=2), batch_size=16, epochs=EPOCHS, steps=STEPS,
        loss={"click": "binary_crossentropy", "price": tf_keras.losses.Huber(delta=0.5)},
        weighted_metrics={"click": [metrics.AUC(bits=8), "accuracy"], "price": [lambda y, p: off_by_more(y, p, 2.0)]},
    )  # fmt: skip
    renamed = {name.replace("<lambda>", "off_by_more").replace("lambda", "off_by_more") for name in expected}
    assert set(result["metrics"]) == renamed
    assert sorted(result["metrics"].values()) == pytest.approx(sorted(expected.values()), rel=1e-5)
    assert (folder.path / "checkpoints").exists()


@pytest.mark.inprocess
@pytest.mark.parametrize(
    ("weights", "trainer", "metrics", "cluster"),
    [
        ("both", "custom_loop", "weighted_metrics", "none"),
        pytest.param("train", "custom_loop", "weighted_metrics", "inprocess", marks=pytest.mark.thorough),
        pytest.param("none", "fit", "metrics", "inprocess", marks=pytest.mark.thorough),
    ],
)
def test_weights_of_classes_multiply_those_of_examples_in_training(train, weights, trainer, metrics, cluster):
    pieces = own_data(f"cluster={cluster}", f"trainer={trainer}", "evaluation=direct", f"+data.weights={weights}")
    by = "{0: 1, 1: 5}" if weights != "none" else "{shown: 1, clicked: 5}"
    named = () if weights != "none" else ("+data.label_vocabulary=[shown, clicked]", "+data.names=[shown, clicked]")
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
    with pytest.raises(ConfigError, match=r"model\.from_logits"):
        train(*pieces, "+model.activation=null")


@pytest.mark.tensorflow
def test_every_name_of_a_loss_or_metric_is_one_that_keras_takes():
    """Names are read from tf-keras' source; metrics that need arguments are known, too."""
    assert {"mse", "binary_crossentropy", "Huber"} < rules.loss_names()
    assert {"AUC", "mae", "Recall", "accuracy"} < rules.metric_names()
    assert all(tf_keras.losses.get(name) for name in rules.loss_names())
    for name in rules.metric_names() - rules.NAMES_BY_SHAPE:
        with contextlib.suppress(TypeError):
            assert tf_keras.metrics.get(name)
