"""Models and data of a person's own: what Keras' users expect works, and what cannot work is reported by key."""

from __future__ import annotations

import pytest
import tensorflow as tf

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
@pytest.mark.parametrize("kind", ["half", "keras3_tf_idf"])
def test_layers_that_need_whole_weights_are_reported_with_the_partitioner(train, kind):
    uncut = ("model=dense", "~model.hidden_units", "model._target_=user_models.uncut", f"+model.kind={kind}")
    with pytest.raises(ConfigError, match="partitioner: is fixed_shards"):
        train(*uncut, "cluster=inprocess", "partitioner=fixed_shards")
