"""Models of Keras 3: trained as their twins in tf-keras, from equal weights, with equal initial values everywhere."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from bounds import BOUND_S
from documented import ROOT, blocks, commands
from outcomes import check_same, events, rows, served
from support import HARNESS, run_config, variables

from psrun import parts
from psrun.checkpoint import trained_model
from psrun.checkpoint.storage import Store
from psrun.data import loading
from psrun.errors import ConfigError, ExportError
from psrun.program.build import make_model
from psrun.roles import planner

pytestmark = pytest.mark.inprocess
thorough = pytest.mark.thorough

NUMBERS = ["model=dense", "~model.hidden_units", "model._target_=keras3_models.twin"]
SEQUENCES = [
    "model=dense", "~model.hidden_units", "~data.num_features", "~data.num_train_examples", "~data.num_eval_examples",
    "~data.noise", "data._target_=keras3_models.Sequences", "data.global_batch_size=16",
]  # fmt: skip
SHARDS = ("cluster=inprocess", "partitioner=fixed_shards", "partitioner.num_shards=2")


def model(name: str, **options: Any) -> list[str]:
    return [f"model._target_=keras3_models.{name}", *(f"+model.{key}={value}" for key, value in options.items())]


FIT = ("+model.kind=sequential", "trainer=fit", "evaluation=validation")
CASES = [
    (*SHARDS, "+model.kind=functional", "evaluation=exact"),
    *(
        pytest.param(pieces, marks=thorough)
        for pieces in [
            ("cluster=none", *FIT),
            ("cluster=inprocess", "partitioner=fixed_shards", *FIT, "+model.regularizer=null"),
            ("cluster=inprocess", "partitioner=min_size", "partitioner.min_shard_bytes=32", "+model.kind=functional",
             "trainer=custom_loop", "evaluation=distributed", "trainer.dense_sync_every=1"),
        ]
    ),
]  # fmt: skip


@pytest.mark.parametrize("pieces", CASES)
def test_a_model_trains_as_its_twin(train, pieces):
    result, folder = train(*NUMBERS, *pieces, "+model.library=keras", num_workers=1)
    own = [each for each in pieces if "+model" in each]
    alone = ("cluster=none", "evaluation=direct", "+model.library=tf_keras")
    twin, _ = train(*NUMBERS, *own, *alone, num_workers=1)
    assert result["metrics"] == pytest.approx(twin["metrics"], rel=1e-5)
    assert result["network"]["library"] == f"keras {result['versions']['keras']}"
    assert twin["network"]["library"] == f"tf-keras {twin['versions']['tf-keras']}"
    if "partitioner.num_shards=2" in pieces:
        assert {each["shard"] for each in result["placement"] if each["variable"] == "first/kernel"} == {0, 1}
        assert "model/first.Skernel/.ATTRIBUTES/VARIABLE_VALUE" in variables(folder)


@thorough
def test_attention_and_a_recurrent_layer_train_as_their_twins(train):
    result, _ = train(*SEQUENCES, *model("reading"), *SHARDS, num_workers=1)
    twin, _ = train(*SEQUENCES, *model("reading", library="tf_keras"), "cluster=none", num_workers=1)
    assert result["metrics"] == pytest.approx(twin["metrics"], rel=1e-5)
    compiled, _ = train(*SEQUENCES, *model("compiled"), *SHARDS, num_workers=1)
    same = {"loss": "loss", "accuracy": "accuracy"}
    area = {"area": "auc", "val_area": "val_auc"}  # Keras' has 200 thresholds
    assert {one: compiled["metrics"][one] for one in (same | area)} == {
        **{one: pytest.approx(result["metrics"][other], rel=1e-5) for one, other in same.items()},
        **{one: pytest.approx(result["metrics"][other], abs=5e-3) for one, other in area.items()},
    }


@thorough
def test_a_loss_and_a_metric_of_operations_of_keras3_train(train):
    result, _ = train(*SEQUENCES, *model("with_own_loss"), *SHARDS, num_workers=1)
    metrics = result["metrics"]
    assert metrics["loss"] == pytest.approx(metrics["mse"], rel=1e-5)
    assert metrics["val_loss"] == pytest.approx(metrics["val_mse"], rel=1e-5)
    assert 0 < abs(metrics["val_bias"]) < 1
    named, _ = train(*SEQUENCES, *model("reading"), *SHARDS, "model.metrics=[{_target_: keras3_models.bias}]",
                     num_workers=1)  # fmt: skip
    assert "val_bias" in named["metrics"]


@thorough
@pytest.mark.parametrize("name", ["subclassed", pytest.param("transformer", marks=pytest.mark.release)])
def test_equal_seeds_are_equal_values_on_every_layout(train, name):
    """Also those of Dropout's masks, with one worker."""
    pieces = [*SEQUENCES, *model(name), "evaluation=none"]
    alone, whole = train(*pieces, "cluster=none", num_workers=1)
    result, cut = train(*pieces, *SHARDS, num_workers=1)
    assert result["metrics"] == pytest.approx(alone["metrics"], rel=1e-5)
    assert check_same(cut, whole).keys() == variables(whole).keys()
    losses = [event["metrics"]["loss"] for event in events(cut, "epoch")]
    assert losses[-1] < losses[0]

    run = run_config(*pieces, *SHARDS, "cluster.num_workers=1")
    plan = planner.make(run, loading.load_source(run))
    assert sorted((each.variable, each.shard, each.bytes) for each in plan.placed) == sorted(
        (each["variable"], each["shard"], each["bytes"]) for each in result["placement"]
    )


@thorough
def test_a_run_resumes_on_another_layout_with_its_slots(train):
    pieces = [*SEQUENCES, *model("tables"), "optimizer=adam", "data.visitation=once", "evaluation=none"]
    _, straight = train(*pieces, "cluster=none", num_workers=1)
    _, folder = train(*pieces, *SHARDS, "trainer.epochs=1", num_workers=1)
    train(*pieces, "cluster=none", num_workers=1, into=folder)
    assert check_same(folder, straight).keys() == variables(straight).keys()


@thorough
@pytest.mark.parametrize("name", ["reading", "sharded"])
def test_tables_have_an_optimizer_of_their_own_as_in_the_twin(train, name):
    """Tables of Keras' layer and of psrun's."""
    both = ("optimizer=adam", "table_optimizer=rowwise_adagrad", "table_optimizer.learning_rate=0.5")
    result, folder = train(*SEQUENCES, *model(name), *SHARDS, *both, num_workers=1)
    twin, _ = train(*SEQUENCES, *model(name, library="tf_keras"), "cluster=none", *both, num_workers=1)
    tolerance = 1e-5 if name == "reading" else 0.2  # the initial values of the other differ
    assert result["metrics"]["loss"] == pytest.approx(twin["metrics"]["loss"], rel=tolerance)
    assert [event["text"] for event in events(folder, "note")] == [
        "RowwiseAdagrad updates word/embeddings; Adam updates all other variables"
    ]
    slots = {each["variable"]: each["variable_shape"] for each in result["placement"] if each["kind"] == "optimizer"}
    assert slots["accumulator/word/embeddings"][1] == 1
    assert "m/word/embeddings" not in slots


@thorough
def test_adapters_of_low_rank_train_alone_under_a_global_policy(train):
    import keras

    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        pieces = ["model=dense", "~model.hidden_units", *model("adapted"), "evaluation=exact", "optimizer=adagrad"]
        alone, _ = train(*pieces, "cluster=none", "evaluation=direct", num_workers=1)
        result, folder = train(*pieces, *SHARDS, num_workers=1)
    finally:
        keras.config.set_dtype_policy(before)
    assert result["metrics"] == pytest.approx(alone["metrics"], rel=1e-2)
    held = {key.removeprefix("model/").partition("/.ATTR")[0]: value for key, value in variables(folder).items()}
    assert (held["adapted.Skernel"] == np.float32(0.1)).all()
    assert held["adapted.Slora_kernel_b"].any()  # zeros at first


LISTS = [
    "model=dense", "~model.hidden_units", "~data.num_features", "~data.num_train_examples", "~data.num_eval_examples",
    "~data.noise", "data._target_=list_features.Histories", "data.global_batch_size=16",
    "model._target_=keras3_models.lists", "optimizer=sparse_adagrad",
]  # fmt: skip
# tf-keras cannot cut the weights of an LSTM.
LIST_LAYOUTS = {"keras": SHARDS, "tf_keras": ("cluster=inprocess", "partitioner=none")}


@thorough
def test_lists_train_and_predict_as_the_twin(train, predict, tmp_path):
    """On a cluster, with rows fetched ahead; the twin predicts in one process."""
    results, predictions = {}, {}
    for library in LIST_LAYOUTS:
        pieces = [*LISTS, *LIST_LAYOUTS[library], f"+model.library={library}", "trainer.steps_per_execution=2",
                  "trainer.prefetch_rows=true", "evaluation=none"]  # fmt: skip
        results[library], folder = train(*pieces, num_workers=1)
        path, where = tmp_path / f"{library}.csv", "inprocess" if library == "keras" else "none"
        predict(folder, *pieces, f"cluster={where}", f"predict.path={path}")
        predictions[library] = [float(row["prediction"]) for row in rows(path)]
        if library == "keras":
            run = run_config(*pieces)
            network = trained_model.load(run, loading.load_source(run), Store(folder.checkpoints), print).model.network
    assert results["keras"]["metrics"] == pytest.approx(results["tf_keras"]["metrics"], rel=1e-5)
    assert np.std(predictions["keras"]) > 0.01
    np.testing.assert_allclose(predictions["keras"], predictions["tf_keras"], rtol=1e-5, atol=1e-5)
    assert type(network.keras3).__module__.startswith("keras.")
    for name in ("saved.h5", "saved.keras", "saved"):
        with pytest.raises(ExportError, match=name):
            network.save(str(tmp_path / name))
    with pytest.raises(ExportError, match=r"weights\.h5"):
        network.save_weights(str(tmp_path / "weights.h5"))


@thorough
def test_an_export_loads_without_psrun_and_keras(train, tmp_path):
    pieces = [*SEQUENCES, *model("tables"), *SHARDS, "evaluation=none"]
    result, folder = train(*pieces, "export.at_end=true")
    run = run_config(*pieces)
    trained = trained_model.load(run, loading.load_source(run), Store(folder.checkpoints), print)
    features = {"words": np.arange(12).reshape(2, 6), "number": np.ones((2, 1), np.float32)}
    here = trained_model.predict(trained.model, trained.source, {k: tf.constant(v) for k, v in features.items()})
    np.testing.assert_allclose(served(result["export"], features, tmp_path), here[:, 0], rtol=1e-5)


@thorough
@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_a_model_of_ones_own_takes_the_weights_of_an_export(train, tmp_path, library):
    """By the lines of the guide, in another process, which predicts what the export does."""
    result, _ = train(*SEQUENCES, *model("sharded", library=library), *SHARDS, "export.at_end=true", "evaluation=none")
    (code,) = [code for name, code in blocks((ROOT / "docs" / "guides" / "exports.md").read_text(), "python") if name]
    if library == "tf_keras":
        code = code.replace("weight.path", 'weight.name.split(":")[0]')
    (tmp_path / "weights.py").write_text(code)
    (tmp_path / "taken.py").write_text(TAKES)
    done = subprocess.run(
        [sys.executable, "taken.py", library, result["export"]], cwd=tmp_path, capture_output=True, text=True,
        timeout=BOUND_S, check=False, env={**os.environ, "PYTHONPATH": str(HARNESS)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    own, exported, rows, by_position = json.loads(done.stdout)
    np.testing.assert_allclose(own, exported, rtol=1e-5)
    assert np.std(own) > 1e-4
    np.testing.assert_array_equal(rows, by_position)


TAKES = """
import json, sys
import keras3_models
import numpy as np
import tensorflow as tf
from weights import take_weights

library, export = sys.argv[1:]
source = keras3_models.Sequences()
model = keras3_models.sharded(source, library=library)
take_weights(model, export)
(features, _), *_ = source.evaluation(batch_size=8)
loaded = tf.saved_model.load(export)
served = loaded.signatures["serving_default"](**features)["prediction"]
layer = model.get_layer("word")
ids = np.arange(40)
position = getattr(layer, "table", layer).position(ids)
table = layer.get_weights()[0]
print(json.dumps([model.predict(features, verbose=0).tolist(), served.numpy().tolist(),
                  layer(ids).numpy().tolist(), table[position].tolist()]))
"""


@thorough
@pytest.mark.command
def test_the_guide_can_be_followed(shell, tmp_path):
    """Its files and its first command, at a small size; the other one needs a table of one's own."""
    text = (ROOT / "docs" / "guides" / "keras3.md").read_text()
    for language in ("python", "yaml"):
        for name, code in blocks(text, language):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(code)
    arguments, *_ = commands(text)
    small = ["trainer.epochs=2", "trainer.steps_per_epoch=5", "trainer.steps_per_execution=5", "hydra.run.dir=run"]
    shell(shlex.join(["psrun", *arguments, *small]), tmp_path)
    result = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (result["steps"]["applied"], result["network"]["library"][:6]) == (10, "keras ")


@thorough
def test_the_layers_work_in_a_model_of_keras3_alone():
    import keras
    import keras3_models

    from psrun.keras3 import initial_values

    source = keras3_models.Sequences()
    model = keras3_models.tables(source).network
    (features, label), *_ = source.train(batch_size=16, seed=tf.constant(0, tf.int64)).take(1)
    model.compile("adam", "binary_crossentropy")
    before = [variable.numpy() for variable in model.trainable_variables]
    model.fit(features, label, epochs=1, verbose=0)
    assert all((one != other.numpy()).any() for one, other in zip(before, model.trainable_variables))
    copy = keras.Model.from_config(model.get_config())
    copy.set_weights(model.get_weights())
    np.testing.assert_array_equal(copy(features), model(features))

    initializer = initial_values.Blocks(keras.initializers.RandomNormal(seed=3))
    rows = initial_values.BLOCK_ROWS
    whole = initializer((3 * rows + 5, 2))
    part = initializer(whole.shape, partition_shape=(rows, 2), partition_offset=(rows - 7, 0))
    np.testing.assert_array_equal(part, whole[rows - 7 : 2 * rows - 7])
    assert len(np.unique(whole)) > 5 * rows


# -- mistakes


def test_an_evaluation_without_losses_of_layers_is_refused(train):
    with pytest.raises(ConfigError, match="validation"):
        train(*NUMBERS, "cluster=inprocess", "trainer=fit", "evaluation=validation", num_workers=1)


def test_another_backend_is_refused(monkeypatch, tmp_path):
    import keras

    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    run = run_config(*NUMBERS)
    refused = pytest.raises(ConfigError, match="jax")
    with refused:
        make_model(run, loading.load_source(run))
    # JAX is not installed: then the import of Keras 3 fails.
    (tmp_path / "needs_jax.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'jax'\", name='jax')\ndef model(source): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    run = run_config("model=dense", "~model.hidden_units", "model._target_=needs_jax.model")
    with refused:
        make_model(run, loading.load_source(run))


def test_without_the_folder_only_models_of_keras3_are_missing(monkeypatch, tmp_path):
    every = parts.own()
    dense, of_keras3 = run_config("model=dense"), run_config(*NUMBERS)
    monkeypatch.setattr(parts, "own", lambda: tuple(part for part in every if not part.models))
    monkeypatch.setattr(parts, "_FOLDER", tmp_path)
    assert make_model(dense, loading.load_source(dense)).network.count_params() > 0
    with pytest.raises(ConfigError, match=r"keras\..*Functional.* psrun/keras3 \(models of Keras 3\)"):
        make_model(of_keras3, loading.load_source(of_keras3))
