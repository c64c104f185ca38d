"""A run on workers, beside a plan and a training of a virtual cluster that predict it."""

from __future__ import annotations

import json

import pytest

pytestmark = [pytest.mark.command, pytest.mark.thorough]

RUN = ("model=embedding", "trainer.epochs=2", "trainer.steps_per_epoch=50", "evaluation=none", "cluster.num_workers=2")
VIRTUAL = ("cluster=virtual", "cluster.like=runs/one")


def test_a_report_has_what_a_plan_and_a_training_predicted_beside_what_workers_did(psrun, tmp_path):
    runs = {
        "one": [*RUN, "cluster=inprocess", "cluster.num_workers=1"],
        "two": [*RUN, "cluster=inprocess", "seed=2"],
        "virtual": [*RUN, *VIRTUAL],
        "plan": ["plan", *RUN, *VIRTUAL],
    }
    for name, arguments in runs.items():
        done = psrun(*arguments, folder=f"runs/{name}")
        assert done.code == 0, done.stderr
    report = psrun("report", "runs", "--no-fold-seeds").stdout
    assert "Predicted and measured" in report
    assert "1 virtual run: predicted steps/s are " in report
    assert "without a prediction: run one: plan differs in cluster.num_workers" in report
    rows = {row["run"]: row for row in json.loads(psrun("report", "runs", "--json", "-").stdout)}
    plan, virtual = rows["two"]["predicted_by"]
    assert (plan["run"], virtual["run"]) == ("plan", "virtual")
    assert plan["steps_per_s"] == virtual["steps_per_s"]
    rate = plan["steps_per_s"]
    assert rate["measured"] == pytest.approx(rows["two"]["steps_per_s"])
    assert rate["ratio"] == pytest.approx(rate["predicted"] / rate["measured"])
    assert 0.2 < rate["ratio"] < 20  # workers of one machine share its cores
    assert plan["staleness"]["measured"] == rows["two"]["staleness.mean"]
    assert 0 <= plan["waiting"]["measured"] < 1
    (itself,) = rows["virtual"]["predicted_by"]
    assert itself["steps_per_s"]["ratio"] == pytest.approx(1, rel=0.1)
    assert rows["virtual"]["steps_per_s"] is None
