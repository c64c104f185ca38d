"""Trackers of a run: TensorBoard and MLflow."""

from __future__ import annotations

import sys

import pytest
import tensorflow as tf
from outcomes import events
from support import STEPS

from psrun.errors import ConfigError

pytestmark = pytest.mark.inprocess


def scalars(folder) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    held = EventAccumulator(str(folder), size_guidance={"tensors": 0}).Reload()
    return {
        tag: [(event.step, float(tf.make_ndarray(event.tensor_proto))) for event in held.Tensors(tag)]
        for tag in held.Tags()["tensors"]
    }


def test_tensorboard_has_metrics_text_and_hyperparameters(train):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    result, folder = train()
    loss = scalars(folder.tensorboard / "train")["loss"]
    assert [step for step, _ in loss] == [STEPS, 2 * STEPS]
    assert loss[-1][1] == pytest.approx(result["metrics"]["loss"], rel=1e-5)
    stale = scalars(folder.tensorboard / "train")["staleness/max"]
    assert max(value for _, value in stale) == result["staleness"]["max"]
    assert scalars(folder.tensorboard / "evaluation")["auc"][-1][1] == pytest.approx(result["metrics"]["val_auc"])
    held = EventAccumulator(str(folder.tensorboard)).Reload()
    assert b"trainer.epochs | 2" in held.Tensors("configuration")[0].tensor_proto.string_val[0]
    content = held.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    values = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert values["trainer.epochs"].number_value == 2
    assert values["cluster.kind"].string_value == "inprocess"


def test_nothing_is_reported(train):
    _, folder = train("tracker=none", "cluster=none", "trainer.epochs=1")
    assert not list(folder.tensorboard.iterdir())


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    """A store of MLflow's in a folder, and what looks into it."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    store = str(tmp_path / "mlruns")

    def look(run_id: str):
        from mlflow.tracking import MlflowClient

        return MlflowClient(tracking_uri=store), MlflowClient(tracking_uri=store).get_run(run_id)

    return f"tracker.tracking_uri={store}", look


@pytest.mark.thorough
def test_mlflow_has_the_run_its_parameters_and_metrics(train, mlflow):
    uri, look = mlflow
    result, folder = train("tracker=mlflow", uri, "tracker.experiment=tests", "data.global_batch_size=auto")
    run_id = result["tracker"]["run_id"]
    client, run = look(run_id)
    assert run.info.status == "FINISHED"
    assert client.get_experiment(run.info.experiment_id).name == "tests"
    assert run.data.tags["run_folder"] == str(folder.path)
    assert run.data.params["trainer.epochs"] == "2"
    assert run.data.params["data.global_batch_size"] == "64"
    assert run.data.metrics["val_auc"] == pytest.approx(result["metrics"]["val_auc"])
    assert [each.step for each in client.get_metric_history(run_id, "loss")] == [STEPS, 2 * STEPS]
    assert run.data.metrics["staleness_mean"] >= 0
    again, _ = train("tracker=mlflow", uri, "tracker.experiment=tests", "trainer.epochs=3", into=folder)
    client, run = look(run_id)
    assert again["tracker"]["run_id"] == run_id
    assert [each.step for each in client.get_metric_history(run_id, "loss")] == [STEPS, 2 * STEPS, 3 * STEPS]
    assert run.data.params["trainer.epochs"] == "2"  # what was filed once stays


@pytest.mark.thorough
def test_a_run_that_fails_is_filed_as_failed(train, mlflow):
    uri, _ = mlflow
    with pytest.raises(Exception, match="loss became"):
        train("tracker=mlflow", uri, "optimizer=sgd", "optimizer.learning_rate=1e30", "model=dense", "checkpoint=none")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri.partition("=")[2])
    (filed,) = client.search_runs([client.get_experiment_by_name("psrun").experiment_id])
    assert filed.info.status == "FAILED"


@pytest.mark.thorough
def test_a_store_that_cannot_be_written_costs_a_warning_and_no_training(train, tmp_path):
    (tmp_path / "file").write_text("")
    result, folder = train("tracker=mlflow", f"tracker.tracking_uri={tmp_path}/file/store")
    assert result["steps"]["applied"] == 2 * STEPS
    messages = [event["message"] for event in events(folder, "warning")]
    assert len([text for text in messages if "the run continues without tracking" in text]) == 1


def test_without_mlflow_the_error_shows_how_to_install_it(train, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ConfigError, match=r"pip install 'psrun\[mlflow\]'"):
        train("tracker=mlflow")
