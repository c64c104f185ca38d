"""`mode=plan` of a virtual cluster predicts what its training finds."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console
from support import MODELS, run_config

from psrun.results.events import EventReader, fold_all
from psrun.results.run_folder import RunFolder
from psrun.roles import planner

RUN = ("model=embedding", "cluster=virtual", "cluster.step_s=0.02", "cluster.num_workers=12",
       "evaluation=none", "cluster.step_deviation=0.4", "trainer=custom_loop", "trainer.epochs=1",
       "trainer.steps_per_epoch=600")  # fmt: skip


def planned(tmp_path, *overrides):
    """What is recorded of a plan, and what is printed."""
    printed = io.StringIO()
    folder = RunFolder.create(tmp_path / "plan", raw={})
    planner.run(run_config(*RUN, "mode=plan", *overrides), folder, Console(file=printed, width=150))
    return json.loads((folder.path / "run.json").read_text()), printed.getvalue()


@pytest.mark.tensorflow
@pytest.mark.parametrize("mode", ["async", pytest.param("ssp", marks=pytest.mark.thorough)])
def test_a_plan_predicts_the_rate_and_the_staleness_of_the_training(train, tmp_path, mode):
    result, printed = planned(tmp_path, f"consistency={mode}")
    trained, _ = train(*RUN, f"consistency={mode}")
    prediction = result["prediction"]
    assert prediction["steps_per_s"]["median"] == pytest.approx(trained["virtual"]["steps_per_s"], rel=0.1)
    assert prediction["staleness"]["median"] == pytest.approx(trained["staleness"]["mean"], rel=0.1)
    assert prediction["training_s"]["median"] == pytest.approx(trained["virtual"]["time_s"], rel=0.1)
    assert {task for task in result["bytes_per_step_by_task"] if task.startswith("ps")} == {"ps-0", "ps-1"}
    assert "Predicted: " in printed
    assert "Mean staleness of updates: " in printed


SHORT_EPOCHS = ("cluster.num_workers=48", "trainer.epochs=3", "trainer.steps_per_epoch=200")


@pytest.mark.tensorflow
@pytest.mark.parametrize("mode", ["async", pytest.param("ssp", marks=pytest.mark.thorough)])
def test_a_training_records_the_prediction_of_its_plan_beside_what_it_finds(train, tmp_path, mode):
    options = [*SHORT_EPOCHS, f"consistency={mode}"]  # the rate is lower where workers wait for the end of an epoch
    planned_result, _ = planned(tmp_path, *MODELS["embedding"], "trainer.steps_per_execution=3", *options)
    trained, folder = train(*RUN, *options)
    prediction = trained["prediction"]
    assert prediction == planned_result["prediction"]
    time_s = trained["virtual"]["time_s"]
    assert prediction["steps_per_s"]["median"] == pytest.approx(trained["steps"]["applied"] / time_s, rel=0.05)
    assert prediction["staleness"]["median"] == pytest.approx(trained["staleness"]["mean"], rel=0.05)
    waiting = sum(trained["consistency"]["waited_s"].values()) / (48 * time_s)
    assert prediction["waiting"]["median"] == pytest.approx(waiting, rel=0.1)
    assert fold_all(EventReader(folder.path / "metrics.jsonl").read())["prediction"] == prediction


@pytest.mark.tensorflow
def test_nothing_is_predicted_where_no_time_passes(train):
    trained, _ = train("model=embedding", "cluster=virtual", "cluster.delay=constant", "cluster.mean_delay=2",
                       "evaluation=none", "trainer=custom_loop", "trainer.epochs=1",
                       "trainer.steps_per_epoch=10")  # fmt: skip
    assert "prediction" not in trained


CLUSTERS = {
    "tables that are cut": ("cluster.num_ps=5", "partitioner=min_size", "partitioner.min_shard_bytes=64",
                            "partitioner.max_shards=3"),
    "checkpoints": ("checkpoint.every_steps=50",),
    "long executions": ("trainer.steps_per_execution=40",),
    "stacked tables": ("~model.embedding_dim", "~data.num_train_examples", "~data.num_eval_examples",
                       "data._target_=embeddings.Basket", "model._target_=embeddings.basket", "cluster.num_ps=3"),
}  # fmt: skip


@pytest.mark.tensorflow
@pytest.mark.parametrize("case", CLUSTERS)
def test_a_training_has_the_prediction_of_its_plan_and_comes_true(train, tmp_path, case):
    run = ("cluster.bytes_per_s=2e5", *CLUSTERS[case])
    same = () if case == "stacked tables" else MODELS["embedding"]  # as `train` has it
    prediction = planned(tmp_path, *same, "trainer.steps_per_execution=3", *run)[0]["prediction"]
    trained, _ = train(*RUN, *run)
    assert trained["prediction"] == prediction
    steps_per_s = 600 / trained["virtual"]["time_s"]
    assert prediction["steps_per_s"]["median"] == pytest.approx(steps_per_s, rel=0.1)


@pytest.mark.tensorflow
def test_workers_that_get_no_execution_are_named(tmp_path):
    _, printed = planned(tmp_path, "cluster.num_workers=40", "trainer.steps_per_execution=20")
    assert "An epoch of 600 steps has 30 executions of 20: 10 of 40 workers get none" in " ".join(printed.split())


@pytest.mark.tensorflow
def test_the_server_with_the_most_bytes_is_the_limit(tmp_path):
    result, _ = planned(tmp_path, "cluster.bytes_per_s=1e6", "partitioner=none")
    busiest = max(
        max(moved["read_bytes"], moved["pushed_bytes"]) / 12
        for task, moved in result["bytes_per_step_by_task"].items()
        if task.startswith("ps")
    )
    assert result["prediction"]["steps_per_s"]["median"] == pytest.approx(1e6 / busiest, rel=0.05)
