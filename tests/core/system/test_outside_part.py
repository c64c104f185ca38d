"""A package beside psrun offers one of each kind, such as a model and a metric of lists: each of them works."""

from __future__ import annotations

import pytest
from fault_injection import MOSTLY_WAITING
from support import HARNESS, many_epochs

OUTSIDE = str(HARNESS / "outside")


@pytest.mark.command
def test_a_run_has_the_model_the_metric_the_evaluation_and_the_tracker_of_another_package(psrun):
    done = psrun("model=recipe", "model.width=3", "data=regression", "data.num_features=2", "cluster=none",
                 "evaluation=quick", "tracker=[lines,tensorboard]", "model.metrics=[mae,median_error]",
                 "trainer.epochs=2", "trainer.steps_per_epoch=5", PYTHONPATH=OUTSIDE)  # fmt: skip
    assert done.code == 0, done.stderr
    assert 0 < done.result["metrics"]["val_median_error"] < done.result["evaluation"]["metrics"]["mae"] * 2
    assert "median_error" not in done.result["metrics"]  # a training has no metrics of lists
    assert done.result["evaluation"]["mode"] == "quick"
    assert "hidden/kernel" in {row["variable"] for row in done.result["placement"]}
    assert (done.folder / "evaluations.txt").read_text().splitlines() == ["5", "10"]


@pytest.mark.command
def test_the_command_of_another_package(psrun):
    done = psrun("greet", "Ada", "--loudly", PYTHONPATH=OUTSIDE, folder=".")
    assert (done.code, done.stdout) == (0, "Hello Ada!\n")


@pytest.mark.cluster
def test_the_engine_of_another_package_restarts_lost_tasks_until_its_budget_is_spent(start):
    run = start("cluster=marked", "cluster.mark=blue", many_epochs(20), "cluster.num_ps=1",
                "trainer.steps_per_epoch=20", "evaluation=none", "cluster.restart.budget=1",
                MOSTLY_WAITING, PYTHONPATH=OUTSIDE)  # fmt: skip
    run.wait_for("checkpoint")
    run.kill("ps-0")
    assert run.wait_for("recovery")["task"] == "ps-0"
    log = (run.folder / "logs" / "ps-0.log").read_text()
    assert log.count("started by the blue engine") == 2
    run.kill("ps-0")
    assert run.end() == 1
    assert run.result["error"]["type"] == "BudgetSpentError"
    assert run.result["cluster"] == {"topology": "marked", "num_workers": 2, "num_ps": 1}
