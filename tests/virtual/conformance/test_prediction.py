"""`mode=plan` of a virtual cluster predicts what its training finds."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console
from support import run_config

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


@pytest.mark.tensorflow
def test_the_server_with_the_most_bytes_is_the_limit(tmp_path):
    result, _ = planned(tmp_path, "cluster.bytes_per_s=1e6", "partitioner=none")
    busiest = max(
        max(moved["read_bytes"], moved["pushed_bytes"]) / 12
        for task, moved in result["bytes_per_step_by_task"].items()
        if task.startswith("ps")
    )
    assert result["prediction"]["steps_per_s"]["median"] == pytest.approx(1e6 / busiest, rel=0.05)
