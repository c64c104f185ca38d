"""Exports and predictions: what leaves psrun, read by what knows nothing of it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from bounds import BOUND_S
from outcomes import rows, served
from support import MODELS, REPOSITORY, SMALL, STEPS, run_config

from psrun.checkpoint.storage import Store
from psrun.data import loading
from psrun.errors import ExportError
from psrun.program import objective
from psrun.program.build import make_model
from psrun.training import fit

QUICK = ["trainer.epochs=2", "trainer.steps_per_epoch=20", "data.num_train_examples=500", "data.num_eval_examples=100"]


@pytest.mark.inprocess
@pytest.mark.parametrize(
    "model",
    ["embedding", pytest.param("wide_deep", marks=[pytest.mark.thorough, pytest.mark.part("recsys")])],
)
def test_an_export_gives_the_predictions_of_the_run(train, images, model):
    pieces = (f"model={model}", "partitioner=fixed_shards", "export.at_end=true", "trainer.epochs=1")
    result, folder = train(*pieces)
    assert result["export"] == str(folder.path / "export" / str(STEPS))
    serve = tf.saved_model.load(result["export"]).signatures["serving_default"]
    run = run_config(*pieces, *MODELS[model], *([f"data.path={images}"] if model == "cnn" else []))
    source = loading.load_source(run)
    ((features, label),) = source.evaluation(batch_size=source.num_eval_examples)
    loss = objective.loss_of(make_model(run, source), source.task)(label, serve(**features)["prediction"])
    assert float(loss) == pytest.approx(result["metrics"]["val_loss"], rel=1e-5)


@pytest.mark.thorough
@pytest.mark.inprocess
def test_single_files_of_sharded_models_are_refused(train, tmp_path, monkeypatch):
    class Saves(tf_keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.save(tmp_path / "model.keras")

    monkeypatch.setattr(fit, "configured_callbacks", lambda run: [Saves()])
    with pytest.raises(ExportError):
        train("trainer=fit", "partitioner=fixed_shards", "trainer.epochs=1", "evaluation=none")
    train("trainer=fit", "cluster=none", "trainer.epochs=1", "evaluation=none")
    assert tf_keras.models.load_model(tmp_path / "model.keras").count_params() == 8 * 20 + 20 + 1


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with sharded variables and an export at its end."""
    root = tmp_path_factory.mktemp("trained")
    done = command(
        root, "cluster=inprocess", "partitioner=fixed_shards", *QUICK, "optimizer.learning_rate=0.5",
        "export.at_end=true", "checkpoint.best_metric=val_loss", "checkpoint.best_mode=min", "hydra.run.dir=run",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return root / "run"


def command(where: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "psrun", *arguments],
        cwd=where,
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )


def evaluation_strings() -> list[list[str]]:
    source = loading.load_source(run_config(*SMALL["features"]))
    ((features, _),) = source.evaluation(batch_size=source.num_eval_examples)
    return [[name.decode() for name in row] for row in features["features"].numpy()]


@pytest.mark.thorough
def test_an_export_loads_where_there_is_no_psrun(trained, tmp_path):
    strings = evaluation_strings()
    exported = served(trained / "export" / "40", {"features": np.array(strings)}, tmp_path)
    done = command(trained.parent, "mode=predict", "resume=run")
    assert done.returncode == 0, done.stderr
    assert "100 predictions of step 40" in done.stdout
    written = rows(trained / "predictions" / "40.csv")
    assert [float(row["label"]) for row in written] == [float("avenger" in names) for names in strings]
    predicted = np.array([float(row["prediction"]) for row in written])
    np.testing.assert_allclose(exported, predicted, rtol=1e-5)
    assert np.mean((predicted > 0.5) == [float(row["label"]) for row in written]) > 0.8


@pytest.mark.thorough
def test_tensorflows_own_tool_runs_an_export(trained, tmp_path):
    tool = [str(Path(sys.executable).with_name("saved_model_cli")), "run", "--dir", str(trained / "export" / "40"),
            "--tag_set", "serve", "--signature_def", "serving_default"]  # fmt: skip
    given = "features=[[b'avenger', b'hulk', b'batman'], [b'hulk', b'nobody', b'batman']]"
    done = subprocess.run([*tool, "--input_exprs", given, "--outdir", str(tmp_path)], capture_output=True, text=True,
                          timeout=BOUND_S, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    avenger, none = np.load(tmp_path / "prediction.npy")[:, 0]
    assert avenger > none


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["export", "predict"])
def test_the_best_checkpoint_is_named_where_the_newest_one_is_another(trained, tmp_path, mode):
    shutil.copytree(trained, tmp_path / "run")
    assert Store(tmp_path / "run" / "checkpoints").compare(20, "val_loss", -1.0, mode="min")
    newest = command(tmp_path, f"mode={mode}", "resume=run")
    assert newest.returncode == 0, newest.stderr
    assert newest.stdout.splitlines()[-1] == "the best by val_loss is step 20: restore=best"
    best = command(tmp_path, f"mode={mode}", "resume=run", "restore=best")
    assert best.returncode == 0, best.stderr
    assert "the best by" not in best.stdout


@pytest.mark.thorough
def test_a_run_can_be_exported_and_used_later_and_stays_as_it_was(trained):
    before = {name: (trained / name).read_bytes() for name in ("run.json", "config.yaml", ".hydra/overrides.yaml")}
    exported = command(trained.parent, "mode=export", "resume=run", "restore=20", "cluster=local")
    assert exported.returncode == 0, exported.stderr
    assert "exported step 20" in exported.stdout
    about = json.loads((trained / "export" / "20" / "assets.extra" / "psrun.json").read_text())
    assert about["step"] == 20
    as_records = command(
        trained.parent, "mode=predict", "resume=run", "predict.format=tfrecord", "predict.path=p/q.rec"
    )
    assert as_records.returncode == 0, as_records.stderr
    assert command(trained.parent, "mode=predict", "resume=run").returncode == 0

    records = [
        tf.train.Example.FromString(each.numpy()) for each in tf.data.TFRecordDataset(str(trained.parent / "p/q.rec"))
    ]
    predictions = [record.features.feature["prediction"].float_list.value[0] for record in records]
    assert predictions == [np.float32(row["prediction"]) for row in rows(trained / "predictions" / "40.csv")]
    assert {name: (trained / name).read_bytes() for name in before} == before
    refused = command(trained.parent, "mode=export", "resume=run", "restore=7")
    assert refused.returncode == 2
    lost = command(trained.parent, "mode=predict", "resume=run", "predict.path=/proc/none/p.csv")
    assert (lost.returncode, "/proc/none" in lost.stderr) == (1, True)


@pytest.mark.thorough
def test_runs_resume_from_every_layout_in_every_other():
    """As docs/guides/checkpoints.md says, for an optimizer whose slots have shapes of their own."""
    script = REPOSITORY / "tests" / "harness" / "layouts.py"
    command = [sys.executable, script, "--optimizers", "rowwise_adagrad", "--trainers", "fit"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("equal (1)") == 7 * 7
