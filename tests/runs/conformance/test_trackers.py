"""Trackers of a run: TensorBoard, MLflow, Weights & Biases, one of another project, and several of them."""

from __future__ import annotations

import json
import multiprocessing
import socketserver
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
import tensorflow as tf
from mlflow_job import job, store
from outcomes import events
from support import HARNESS, STEPS

from psrun.config import composition, parse
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

    result, folder = train("system.every_s=3600")
    loss = scalars(folder.tensorboard / "train")["loss"]
    assert [step for step, _ in loss] == [STEPS, 2 * STEPS]
    assert loss[-1][1] == pytest.approx(result["metrics"]["loss"], rel=1e-5)
    rates = scalars(folder.tensorboard / "train")["learning_rate"]
    assert rates[-1][1] == pytest.approx(events(folder, "epoch")[-1]["learning_rate"])
    stale = scalars(folder.tensorboard / "train")["staleness/max"]
    assert max(value for _, value in stale) == result["staleness"]["max"]
    waited = scalars(folder.tensorboard / "train")["consistency/waited_s"]
    assert waited[-1] == (2 * STEPS, pytest.approx(sum(result["consistency"]["waited_s"].values()), rel=1e-5))
    assert scalars(folder.tensorboard / "evaluation")["auc"][-1][1] == pytest.approx(result["metrics"]["val_auc"])
    (sample,) = events(folder, "system")  # the last one: the run ends before the first interval does
    drawn = scalars(folder.tensorboard / "system")
    assert drawn["memory_bytes/chief-0"] == [(2 * STEPS, pytest.approx(sample["memory_bytes"], rel=1e-6))]
    held = EventAccumulator(str(folder.tensorboard)).Reload()
    assert b"trainer.epochs | 2" in held.Tensors("configuration")[0].tensor_proto.string_val[0]
    content = held.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    values = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert values["trainer.epochs"].number_value == 2
    assert values["cluster.kind"].string_value == "inprocess"


def test_nothing_is_reported(train):
    _, folder = train("tracker=none", "cluster=none", "trainer.epochs=1", "system.every_s=null")
    assert not events(folder, "system")
    assert not list(folder.tensorboard.iterdir())


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    """A store of MLflow's in a folder, and what looks into it."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    store = str(tmp_path / "mlruns")

    def look(run_id: str):
        from mlflow.tracking import MlflowClient

        return MlflowClient(tracking_uri=store), MlflowClient(tracking_uri=store).get_run(run_id)

    return f"tracker.mlflow.tracking_uri={store}", look


@pytest.mark.thorough
def test_mlflow_has_the_run_its_parameters_metrics_and_artifacts(train, mlflow):
    """Beside another tracker."""
    uri, look = mlflow
    artifacts = "tracker.mlflow.artifacts=[config,result,best_checkpoint]"
    best = ("checkpoint.best_metric=val_auc", "checkpoint.best_mode=max", artifacts, "tracker=[tensorboard,mlflow]")
    result, folder = train(*best, uri, "tracker.mlflow.experiment=tests", "data.global_batch_size=auto")
    run_id = result["tracker"]["run_id"]
    assert result["trackers"] == {"mlflow": result["tracker"]}
    client, run = look(run_id)
    (sample,) = events(folder, "system")
    assert run.data.metrics["system/chief-0/memory_bytes"] == sample["memory_bytes"]
    assert {"config.yaml", "run.json", "best_checkpoint"} <= {each.path for each in client.list_artifacts(run_id)}
    filed = json.loads(Path(client.download_artifacts(run_id, "run.json")).read_text())
    assert (filed["status"], filed["metrics"]) == ("completed", result["metrics"])
    step = result["best_checkpoint"]["step"]
    names = {Path(each.path).name for each in client.list_artifacts(run_id, "best_checkpoint")}
    assert f"ckpt-{step}.index" in names
    assert "loss" in scalars(folder.tensorboard / "train")
    assert run.info.status == "FINISHED"
    assert client.get_experiment(run.info.experiment_id).name == "tests"
    assert run.data.tags["run_folder"] == str(folder.path)
    assert run.data.params["trainer.epochs"] == "2"
    assert run.data.params["data.global_batch_size"] == "64"
    assert run.data.metrics["val_auc"] == pytest.approx(result["metrics"]["val_auc"])
    assert [each.step for each in client.get_metric_history(run_id, "loss")] == [STEPS, 2 * STEPS]
    assert run.data.metrics["staleness_mean"] >= 0
    again, _ = train(*best, uri, "tracker.mlflow.experiment=tests", "trainer.epochs=3", into=folder)
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
    result, folder = train("tracker=mlflow", f"tracker.mlflow.tracking_uri={tmp_path}/file/store")
    assert result["steps"]["applied"] == 2 * STEPS
    messages = [event["message"] for event in events(folder, "warning")]
    assert len([text for text in messages if "the run continues without tracking" in text]) == 1


def test_without_mlflow_the_error_shows_how_to_install_it(train, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ConfigError, match=r"pip install 'psrun\[mlflow\]'"):
        train("tracker=mlflow")


def test_a_tracker_of_another_project_beside_one_of_psruns(train, monkeypatch):
    outside = HARNESS / "outside"
    monkeypatch.syspath_prepend(str(outside))
    composed = composition.compose(["--config-dir", str(outside / "toy" / "conf"), "tracker=[lines,tensorboard]"])
    read = parse.load(composition.plain(composition.without_hydra(composed))).trackers
    assert {name: tracker.kind for name, tracker in read.items()} == {"lines": "lines", "tensorboard": "tensorboard"}
    _, folder = train("+tracker.lines._target_=lines_tracker.Lines", "+tracker.lines.file=steps.txt")
    assert (folder.path / "steps.txt").read_text().split() == [str(STEPS), str(2 * STEPS)]
    assert "loss" in scalars(folder.tensorboard / "train")


# -- Weights & Biases


def records(file: Path) -> dict[str, list[dict[str, Any]]]:
    """The records of a file of W&B by type, by its own reader."""
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    read = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    found: dict[str, list[dict[str, Any]]] = {}
    for record in map(json.loads, read.stdout.splitlines()):
        found.setdefault(record["type"], []).append(record[record["type"]])
    return found


def histories(file: Path) -> list[dict[str, float]]:
    return [record["item"] for record in records(file)["history"]]


@pytest.fixture
def requests(monkeypatch):
    """The connections that anything makes to the network: through a proxy that only counts them."""
    seen: list[str] = []

    class Proxy(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            seen.append(str(self.request.recv(200)))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Proxy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{server.server_address[1]}")
        yield seen
        server.shutdown()


def helpers_left() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "wandb" in child.name() and child.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.thorough
def test_wandb_has_the_run_offline(train, requests, tmp_path):
    pytest.importorskip("wandb")
    (tmp_path / "sweep.json").write_text("{}")  # the run is a job of it
    chosen = ("tracker=wandb", "tracker.wandb.project=tests", "data.global_batch_size=auto")
    result, folder = train(*chosen)
    run_id = result["trackers"]["wandb"]["run_id"]
    (file,) = folder.path.glob("wandb/offline-run-*/*.wandb")
    found = records(file)
    run = found["run"][0]
    assert (run["run_id"], run["project"], run["run_group"]) == (run_id, "tests", tmp_path.name)
    config = {**run["config"]["update"]}
    for record in found["config"]:
        config |= record["update"]
    assert (config["trainer.epochs"], config["data.global_batch_size"]) == (2, 64)
    rows = histories(file)
    assert [row["trained_steps"] for row in rows if "loss" in row] == [STEPS, 2 * STEPS]
    assert [row["val_auc"] for row in rows if "val_auc" in row][-1] == pytest.approx(result["metrics"]["val_auc"])
    assert any("system/chief-0/cpu_percent" in row for row in rows)
    summary = {name: value for record in found["summary"] for name, value in record["update"].items()}
    assert summary["val_auc"] == pytest.approx(result["metrics"]["val_auc"])
    (artifact,) = found["artifact"]
    contents = {entry["path"]: Path(entry["local_path"]) for entry in artifact["manifest"]["contents"]}
    assert contents.keys() == {"config.yaml", "run.json"}
    assert all(path.is_relative_to(folder.path) for path in contents.values())
    assert json.loads(contents["run.json"].read_text())["status"] == "completed"
    assert [record.get("exit_code", 0) for record in found["exit"]] == [0]
    assert (requests, helpers_left()) == ([], [])

    again, _ = train(*chosen, "trainer.epochs=3", into=folder)
    assert again["trackers"]["wandb"]["run_id"] == run_id
    files = sorted(folder.path.glob("wandb/offline-run-*/*.wandb"))
    assert [file.name for file in files] == [f"run-{run_id}.wandb"] * 2  # `wandb sync` puts them together
    assert [row["trained_steps"] for row in histories(files[-1]) if "loss" in row] == [3 * STEPS]


@pytest.mark.thorough
def test_a_wandb_that_fails_or_hangs_costs_a_warning_and_no_training(train, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setattr("psrun.runs.trackers.wandb._BEGIN_WITHIN_S", 0.2)
    ended = threading.Event()

    def fails(**options):
        raise RuntimeError("no service")

    for init, reason in ((fails, "no service"), (lambda **options: ended.wait(60), "no answer for 0 s")):
        monkeypatch.setattr(wandb, "init", init)
        result, folder = train("tracker=wandb", "cluster=none", "trainer.epochs=1")
        assert result["steps"]["applied"] == STEPS
        (message,) = [event["message"] for event in events(folder, "warning")]
        assert message == f"Weights & Biases failed; the run continues without tracking: {reason}"
    ended.set()


def test_without_wandb_the_error_shows_how_to_install_it(train, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"pip install 'psrun\[wandb\]'"):
        train("tracker=wandb")


# -- a sweep in MLflow


@pytest.mark.thorough
def test_jobs_of_a_sweep_that_start_at_once_are_children_of_one_run(tmp_path):
    pytest.importorskip("alembic")
    from mlflow.tracking import MlflowClient

    sweep = tmp_path / "sweep"
    sweep.mkdir()
    (sweep / "sweep.json").write_text("{}")
    context = multiprocessing.get_context("spawn")

    def run(*jobs: tuple[int, float, float | None]) -> list:
        barrier = context.Barrier(len(jobs))
        processes = [context.Process(target=job, args=(sweep, *each, barrier)) for each in jobs]
        for process in processes:
            process.start()
        for process in processes:
            process.join(120)
        assert [process.exitcode for process in processes] == [0] * len(jobs)
        client = MlflowClient(tracking_uri=store(sweep))
        return client.search_runs([client.get_experiment_by_name("tests").experiment_id])

    filed = run((0, 0.5, None), (1, 0.4, 0.3))
    (parent,) = [each for each in filed if "mlflow.parentRunId" not in each.data.tags]
    filed = run((2, 0.4, None))  # of the resumed sweep
    children = [each for each in filed if each.info.run_id != parent.info.run_id]
    assert len(children) == 3
    assert {each.data.tags["mlflow.parentRunId"] for each in children} == {parent.info.run_id}
    (parent,) = [each for each in filed if each.info.run_id == parent.info.run_id]
    assert (parent.info.run_name, parent.info.status) == ("sweep", "FINISHED")
    assert (parent.data.metrics, parent.data.tags["best_job"]) == ({"best_val_loss": 0.3}, "1")
