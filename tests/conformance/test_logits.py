"""Models that return logits: as probabilities where psrun knows of it, and an error where it does not."""

from __future__ import annotations

import pytest
import tensorflow as tf

from psrun.errors import ConfigError

HEROES = ("model._target_=user_models.heroes", "~model.embedding_dim", "optimizer.learning_rate=0.5")
SHIFTED = (
    "model=dense", "~model.hidden_units", "model._target_=user_models.weighted", "data._target_=user_models.Shifted",
    "~data.num_train_examples", "~data.num_eval_examples", "~data.noise", "~data.num_features",
    "data.global_batch_size=16", "cluster=none", "checkpoint=none",
)  # fmt: skip


@pytest.mark.inprocess
def test_logits_and_probabilities_give_the_same_numbers(train):
    """Metrics of training and evaluation, and what an export returns."""
    names = tf.constant([["avenger", "hulk", "batman"], ["hulk", "hulk", "batman"]])

    def numbers(*overrides: str):
        result, _ = train(*HEROES, "cluster=none", "trainer=fit", *overrides, "export.at_end=true")
        serve = tf.saved_model.load(result["export"]).signatures["serving_default"]
        return result["metrics"], serve(features=names)["prediction"].numpy().ravel()

    (metrics, predictions), (logit_metrics, served) = numbers("+model.last=sigmoid"), numbers("+model.loss_logits=true")
    assert 0.6 < metrics["val_auc"] <= 1
    assert logit_metrics == pytest.approx(metrics, rel=2e-3)
    assert served == pytest.approx(predictions, rel=1e-3)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("overrides", "where"),
    [
        (("+model.weight=-1",), "first batch"),
        pytest.param(("+model.weight=0.5", "+model.bias=0.4", "optimizer=sgd", "optimizer.learning_rate=9"),
                     "first batch", marks=pytest.mark.thorough),  # after an epoch
        (("+data.shift=10", "optimizer.learning_rate=1e-9"), "evaluation data"),
    ],
)  # fmt: skip
def test_what_would_be_wrong_numbers_without_a_word_is_an_error(train, overrides, where):
    with pytest.raises(ConfigError, match=rf"model\.from_logits: .*{where}"):
        train(*SHIFTED, *overrides)
