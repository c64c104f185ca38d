"""Models and data of a person's own: what Keras' users expect works, and what cannot work is reported by key."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import tensorflow as tf
import yaml
from documented import ROOT, blocks

from psrun.errors import ConfigError

SHIFTED = ("~data.num_train_examples", "~data.num_eval_examples", "~data.noise", "~data.num_features",
           "data.global_batch_size=16", "cluster=none")  # fmt: skip
SEQUENTIAL = ("model=dense", "~model.hidden_units", "model._target_=user_models.sequential")


@pytest.mark.thorough
@pytest.mark.inprocess
@pytest.mark.parametrize(
    "pieces",
    [
        ("cluster=inprocess", "partitioner=fixed_shards", "evaluation=exact"),
        ("cluster=none", "trainer=fit", "evaluation=validation", "+model.sized=true"),
    ],
)
def test_the_only_feature_is_passed_as_itself_to_a_model_of_one_input(train, pieces):
    result, _ = train(*SEQUENTIAL, *pieces, "optimizer=sgd", "export.at_end=true")
    assert result["evaluation"]["examples_seen"] == 100
    serve = tf.saved_model.load(result["export"]).signatures["serving_default"]
    assert serve(x=tf.zeros([3, 10]))["prediction"].shape == (3, 1)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ((*SEQUENTIAL, "data._target_=user_models.Two"), "model"),
        (("model=dense", "data._target_=user_models.NoDataset"), "data: NoDataset.train"),
        (("model=dense", "data._target_=user_models.NoDataset", "+data.evaluation=true"),
         "data: NoDataset.evaluation"),
        (("model=dense", "data._target_=user_models.NoRead"),
         "data: user_models.NoRead"),
        (("model=dense", "data._target_=user_models.dataset"),
         "data._target_: user_models.dataset"),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_is_reported_by_key(train, overrides, message):
    with pytest.raises(ConfigError, match=message):
        train(*overrides, *SHIFTED)


@pytest.mark.inprocess
@pytest.mark.parametrize("kind", ["half", pytest.param("keras3_tf_idf", marks=pytest.mark.part("keras3"))])
def test_layers_that_need_whole_weights_are_reported_with_the_partitioner(train, kind):
    uncut = ("model=dense", "~model.hidden_units", "model._target_=user_models.uncut", f"+model.kind={kind}")
    with pytest.raises(ConfigError, match="partitioner: is fixed_shards"):
        train(*uncut, "cluster=inprocess", "partitioner=fixed_shards")


@pytest.mark.tensorflow
def test_the_data_source_of_the_guide_trains(train, tmp_path, monkeypatch):
    page = (ROOT / "docs" / "guides" / "own-components.md").read_text(encoding="utf-8")
    code = dict(blocks(page, "python"))["waves.py"]
    (tmp_path / "waves.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    result, _ = train("model=dense", "data._target_=waves.Waves", *SHIFTED, "optimizer=adam")
    assert result["evaluation"]["examples_seen"] == 1000
    assert result["data"]["num_eval_examples"] == 1000


@pytest.mark.tensorflow
def test_the_schedule_of_the_guide_trains(train, tmp_path, monkeypatch):
    page = (ROOT / "docs" / "guides" / "own-components.md").read_text(encoding="utf-8")
    (tmp_path / "rates.py").write_text(dict(blocks(page, "python"))["rates.py"], encoding="utf-8")
    node = yaml.safe_load(dict(blocks(page, "yaml"))["myconf/optimizer/halved.yaml"])
    assert node["learning_rate"]["_target_"] == "rates.Halved"
    monkeypatch.syspath_prepend(tmp_path)
    rate = "optimizer.learning_rate={_target_: rates.Halved, rate: 0.1, steps: 5}"
    result, _ = train("model=dense", "optimizer=adam", rate, "trainer.steps_per_epoch=12", "trainer.epochs=1")
    assert result["steps"]["applied"] == 12
    values = [sys.modules["rates"].Halved(0.1, 5)(tf.constant(step, tf.int64)) for step in (0, 4, 5, 12)]
    np.testing.assert_allclose(values, [0.1, 0.1, 0.05, 0.025])


# -- logits


HEROES = ("model._target_=user_models.heroes", "~model.embedding_dim", "optimizer.learning_rate=0.5")
WEIGHTED = ("model=dense", "~model.hidden_units", "model._target_=user_models.weighted",
            "data._target_=user_models.Shifted", "checkpoint=none")  # fmt: skip


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
        train(*WEIGHTED, *SHIFTED, *overrides)
