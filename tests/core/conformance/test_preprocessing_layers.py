"""Models with variables, tables and resources that are not ordinary weights."""

from __future__ import annotations

import numpy as np
import pytest
import tf_keras
from outcomes import rows, served
from preprocessing_layers import WORDS, Examples, examples
from support import run_config

from psrun.checkpoint.checkpoints import adapted
from psrun.checkpoint.storage import Contents
from psrun.errors import ConfigError
from psrun.roles import planner
from psrun.tf_internals.keras import layers_within

OWN = (
    "model=dense", "~model.hidden_units", "model._target_=preprocessing_layers.network",
    "~data.num_train_examples", "~data.num_eval_examples", "~data.noise", "~data.num_features",
    "data._target_=preprocessing_layers.Examples", "data.global_batch_size=32",
    "optimizer.learning_rate=0.1", "trainer.steps_per_epoch=8",
)  # fmt: skip


@pytest.mark.thorough
@pytest.mark.inprocess
def test_such_a_model_trains_resumes_predicts_and_is_exported(train, predict, tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("\n".join(WORDS))
    own = (*OWN, f"+model.words={words}")
    servers = ("cluster=inprocess", "partitioner=fixed_shards", "evaluation=exact")
    features, labels = examples(101, seed=2)

    result, folder = train(*own, *servers, "trainer.epochs=1")
    planned = planner.make(run_config(*own, *servers), Examples())
    assert shards(planned.placed) == shards(result["placement"])
    predict(folder, *own, *servers, f"predict.path={tmp_path / 'predictions.csv'}")
    predictions = np.array([float(row["prediction"]) for row in rows(tmp_path / "predictions.csv")])
    assert len(predictions) == result["evaluation"]["examples_seen"] == 101
    assert result["metrics"]["val_accuracy"] == pytest.approx(np.mean((predictions > 0.5) == labels[:, 0]))

    result, _ = train(*own, "cluster=none", "trainer.epochs=2", "export.at_end=true", into=folder)
    assert result["steps"]["applied"] == 16
    exported = np.array(served(result["export"], features, tmp_path))
    assert result["metrics"]["val_accuracy"] == pytest.approx(np.mean((exported > 0.5) == labels[:, 0]))
    assert result["metrics"]["val_accuracy"] > 0.8


@pytest.mark.tensorflow
def test_layers_that_are_adapted_to_other_data_do_not_fit_a_checkpoint():
    """A word would have another id, and a number another bin."""
    layers = tf_keras.layers
    words, numbers = np.array(["a", "b"]), np.arange(8.0)[:, np.newaxis]

    def contents(words: np.ndarray, numbers: np.ndarray) -> Contents:
        made = [layers.StringLookup(name="lookup"), layers.TextVectorization(name="text"),
                layers.Discretization(num_bins=2, name="bins"), layers.Normalization(name="normal")]  # fmt: skip
        for layer, data in zip(made, (words, words, numbers, numbers)):
            layer.adapt(data)
        inputs = [layers.Input((1,), dtype=kind) for kind in ("string", "string", "float32", "float32")]
        outputs = [layer(each) for layer, each in zip(made, inputs)]
        given = layers.StringLookup(vocabulary=words, name="given")(inputs[0])
        network = tf_keras.Model(inputs, [*outputs, given])
        assert len(layers_within(network)) > 5
        return Contents.of("", [], {}, adapted=adapted(network))

    there = contents(words, numbers)
    assert {*there.adapted} == {"lookup", "text", "bins"}
    there.check_model("ckpt-1", contents(words, numbers))
    with pytest.raises(ConfigError, match=r"^model: has layers with other words .* lookup, text; adapt"):
        there.check_model("ckpt-1", contents(np.array(["b", "c"]), numbers))
    with pytest.raises(ConfigError, match=r": bins; adapt them to the same data, or give a vocabulary"):
        there.check_model("ckpt-1", contents(words, 2 * numbers))


def shards(placed) -> set[tuple[str, int, int]]:
    """Names, numbers and bytes of the shards of a model, as planned or as recorded."""
    plain = [each if isinstance(each, dict) else vars(each) for each in placed]
    return {(each["variable"], each["shard"], each["bytes"]) for each in plain if each["kind"] == "model"}
