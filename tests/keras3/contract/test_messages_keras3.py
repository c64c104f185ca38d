"""What is said about models, layers, metrics and callbacks of Keras 3 that psrun cannot train: see __snapshots__."""

from __future__ import annotations

import re
from typing import Any

import keras3_mistakes
import pytest
import tf_keras
from messages import refused
from support import HARNESS, run_config, stated

from psrun.data import loading
from psrun.keras3 import compile_settings
from psrun.keras3.layers import EmbeddingCollection
from psrun.program import objective
from psrun.program.build import make_model
from psrun.program.make_optimizer import make_optimizer
from psrun.training import fit

pytestmark = pytest.mark.tensorflow

SAID = {
    "own_step": (),
    "large_table": (),
    "constrained": (),
    "of_tf_keras_within": (),
    "in_a_sequential": (),
    "own_metric": (),
    "compiled": ("optimizer: adam",),
}
# A model, its settings, and the key.
REFUSED = [
    ("half", (), "model"),
    ("metric_in_layer", (), "model"),
    ("of_keras3_within", (), "model"),
    ("on_an_input", (), "model"),
    ("compiled", ("run_eagerly: true",), "model"),
    ("compiled", ("loss_weights: [2.0]",), "model"),
]


def made(name: str, *settings: str) -> Any:
    """The metrics of a model, which is checked as it is made."""
    own = [f"+model.settings={{{','.join(settings)}}}"] if settings else []
    run = run_config("model=dense", "~model.hidden_units", f"model._target_=keras3_mistakes.{name}", *own)
    return objective.metrics_of(make_model(run, loading.load_source(run)), "regression")


@pytest.mark.parametrize("name", SAID)
def test_a_model(name, tmp_path, snapshot):
    with pytest.raises(Exception) as raised:  # noqa: PT011
        made(name, *SAID[name])
    assert essential(stated(raised.value, tmp=tmp_path, harness=HARNESS)) == snapshot


@pytest.mark.parametrize(("name", "settings", "key"), REFUSED)
def test_a_model_that_is_refused(name, settings, key):
    refused(key, made, name, *settings)


def test_a_callback(says):
    says(fit.made_callbacks, [{"_target_": "keras3_mistakes.Callback"}], "trainer.callbacks")


def test_names_of_keras3(says):
    says(run_config, "trainer=fit", "+trainer.callbacks=[{_target_: keras.callbacks.CSVLogger, filename: a}]")


def test_optimizers():
    refused("optimizer._target_", run_config, "optimizer._target_=keras.optimizers.Adam")
    network = tf_keras.Sequential()
    refused("optimizer._target_", make_optimizer, run_config("optimizer._target_=keras3_mistakes.optimizer"), network)


def test_schedules(says):
    named = "optimizer.learning_rate={_target_: keras.optimizers.schedules.CosineDecay}"
    refused("optimizer.learning_rate._target_", run_config, "optimizer=adam", named)
    own = "optimizer.learning_rate={_target_: keras3_mistakes.Halving}"
    says(make_optimizer, run_config("optimizer=adam", own), tf_keras.Sequential())


def test_a_metric_of_a_function(says):
    says(compile_settings.converted_metrics, [keras3_mistakes.OwnMetric()])


def test_an_attribute_of_a_table():
    table = {"name": "a", "features": ("x",), "num_ids": 5, "dim": 2, "rows": 3}
    refused("rows", EmbeddingCollection, [table], error=ValueError)


def essential(text: str) -> str:
    """Without what Keras puts around the error of a layer, addresses, folders of libraries, and numbers of lines."""
    kind = text.partition(":")[0]
    if within := re.search(
        r"^\w+: Exception encountered when calling layer .*?\n\n(.*?)\n\nCall arguments", text, re.DOTALL
    ):
        text = f"{kind}: {within[1]}"
    text = re.sub(r"\{\{function_node .*?\}\} ", "", text)
    text = re.sub(r" object at 0x\w+", "", text)
    text = re.sub(r"\S+/site-packages/(\S+\.py)", r"\1", text)
    return re.sub(r"\.py, line \d+", ".py", text)
