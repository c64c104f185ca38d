"""`psrun report` shows what virtual clusters predicted beside what was measured, and virtual time beside no other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recorded_runs import CUSTOM_LOOP, a_plan, a_real_run, a_virtual_run

from psrun.results.events import Event
from psrun.runs.report import page, predicted, runs


def predictions(folder: Path) -> predicted.Predictions:
    return predicted.of_runs(runs.find([folder]))


def pairs(folder: Path) -> list[tuple[str, str]]:
    return [(pair.run.name, pair.source.name) for pair in predictions(folder).pairs]


FEATURES = {"_target_": "psrun.data.datasets.HeroFeatures", "global_batch_size": 64, "features": None}
# What is otherwise in the real run, and the key that makes it no pair.
REAL = {
    "nothing": ({}, ""),
    "the seed": ({"seed": 7}, ""),
    "where it runs": ({"cluster": {"kind": "slurm", "isolate": True, "restart": {"budget": 3}}}, ""),
    "a tracker": ({"config": {"tracker": {"kind": "mlflow"}, "run": {"name": "a"}}}, ""),
    "how a sweep runs it": ({"config": {"sweep": {"max_parallel": 3}}}, ""),
    "one replica of each worker": ({"cluster": {"replicas_per_worker": 1}}, ""),
    "replicas of each worker": ({"cluster": {"replicas_per_worker": 2}}, "cluster.replicas_per_worker"),
    "the workers that train": ({"size": (1, 2)}, "cluster.num_workers"),
    "the parameter servers": ({"size": (2, 1)}, "cluster.num_ps"),
    "the placement": ({"cluster": {"placement": "round_robin"}}, "cluster.placement"),
    "a slow worker": ({"cluster": {"slow_workers": {0: 0.1}}}, "cluster.slow_workers.0"),
    "the partitioner": ({"partitioner": "fixed_shards"}, "partitioner.kind"),
    "the epochs": ({"config": {"trainer": {**CUSTOM_LOOP, "epochs": 3}}}, "trainer.epochs"),
    "the batch": ({"config": {"data": {**FEATURES, "global_batch_size": 32}}}, "data"),
    "an experiment": ({"overrides": ["experiment=large"]}, "experiment"),
}  # fmt: skip


@pytest.mark.parametrize("differs", REAL)
def test_a_real_run_is_beside_the_prediction_of_its_settings(tmp_path, differs):
    changes, key = REAL[differs]
    a_real_run(tmp_path / "real", **changes)
    a_plan(tmp_path / "plan")
    found = predictions(tmp_path)
    if key:
        assert found.pairs == []
        assert [run.name for run in found.alone] == ["real"]
        assert found.why.startswith(f"plan differs in {key}")
    else:
        assert [(pair.run.name, pair.source.name) for pair in found.pairs] == [("real", "plan")]
        assert (found.alone, found.why) == ([], "")


@pytest.mark.parametrize(
    ("overrides", "is_pair"), [([], True), (["trainer.epochs=auto"], True), (["trainer.epochs=2"], False)]
)
def test_a_plan_leaves_to_the_data_what_a_run_took_from_it(tmp_path, overrides, is_pair):
    a_real_run(tmp_path / "real", overrides=overrides, data={"features": {"power": {"kind": "number"}}},
               config={"data": FEATURES})  # fmt: skip
    a_plan(tmp_path / "plan", config={"data": FEATURES, "trainer": {**CUSTOM_LOOP, "epochs": "auto"}})
    assert pairs(tmp_path) == ([("real", "plan")] if is_pair else [])


NOT_MEASURED = {
    "it has not ended": {"steps_per_s": None},
    "it has no workers": {"consistency": None},
}


@pytest.mark.parametrize("why", NOT_MEASURED)
def test_what_has_no_rate_of_workers_has_no_prediction(tmp_path, why):
    a_real_run(tmp_path / "real", **NOT_MEASURED[why])
    a_plan(tmp_path / "plan")
    assert predictions(tmp_path) == predicted.Predictions([], [])


def test_each_prediction_of_a_run_is_named_and_a_virtual_run_has_its_own(tmp_path):
    for name in ("real", "again"):
        a_real_run(tmp_path / "runs" / name)
    a_plan(tmp_path / "runs" / "plan")
    a_virtual_run(tmp_path / "runs" / "virtual")
    assert pairs(tmp_path / "runs") == [
        ("again", "plan"), ("again", "virtual"), ("real", "plan"), ("real", "virtual"), ("virtual", "virtual"),
    ]  # fmt: skip


RESUMED = {
    "one process": ({}, 10.0, 0.1, 12.5, 0.05),
    "a resumed run": ({"config": {"resume": "runs/a", "trainer": CUSTOM_LOOP}}, 10.0, None, 12.5, None),
    "repeated steps": ({"steps": {"applied": 200, "repeated": 9}}, 10.0, None, 12.5, None),
}


@pytest.mark.parametrize("case", RESUMED)
def test_the_numbers_are_of_the_same_steps(tmp_path, case):
    changes, rate, waiting, virtual_rate, virtual_waiting = RESUMED[case]
    config = changes.get("config", {})
    a_real_run(tmp_path / "real", **changes)
    a_virtual_run(tmp_path / "virtual", **{**changes, "config": config})
    real, virtual = (pair.values for pair in predictions(tmp_path).pairs)
    assert real["steps_per_s"] == predicted.Value(8.0, pytest.approx(7.2), pytest.approx(8.8), rate)
    assert real["steps_per_s"].ratio == 0.8
    assert real["staleness"].measured == 0.76
    assert real["waiting"].measured == waiting
    assert (virtual["steps_per_s"].measured, virtual["waiting"].measured) == (virtual_rate, virtual_waiting)


def test_the_report_shows_predictions_below_the_runs_and_in_its_json(tmp_path, report):
    folder = tmp_path / "runs"
    a_real_run(folder / "real")
    a_real_run(folder / "other", config={"trainer": {**CUSTOM_LOOP, "epochs": 5}})
    a_plan(folder / "plan")
    a_virtual_run(folder / "virtual")
    text = report(folder)
    _, below = text.split("\n\nPredicted and measured\n")
    head, first, second, third, *notes = below.splitlines()
    assert head.split()[:4] == ["run", "predicted", "by", "like"]
    assert first.split() == ["real", "plan", "runs/one", "12", "10", "1.2", "0.5", "0.76", "0.1", "0.1"]
    assert second.split() == ["real", "virtual", "runs/one", "8", "10", "0.8", "0.5", "0.76", "0.1", "0.1"]
    assert third.split() == ["virtual", "itself", "runs/one", "8", "12.5", "0.64", "0.5", "0.76", "0.1", "0.05"]
    assert "1 virtual run: predicted steps/s are 0.64 times those in virtual time" in notes
    assert "without a prediction: run other: plan differs in trainer.epochs" in notes
    by_name = {row["run"]: row for row in json.loads(report(folder, "--json", "-"))}
    assert [each["run"] for each in by_name["real"]["predicted_by"]] == ["plan", "virtual"]
    plan = by_name["real"]["predicted_by"][0]
    assert plan["folder"].endswith("runs/plan")
    assert plan["like"] == "runs/one"
    rate = {
        "predicted": 12.0,
        "least": pytest.approx(10.8),
        "most": pytest.approx(13.2),
        "measured": 10.0,
        "ratio": 1.2,
    }
    assert (plan["virtual_time"], plan["steps_per_s"]) == (False, rate)
    assert [each["virtual_time"] for each in by_name["virtual"]["predicted_by"]] == [True]
    assert by_name["plan"]["predicted_by"] is None
    # Those who choose columns, or leave predictions out, see no other table.
    assert "Predicted" not in report(folder, "--columns", "val_auc")
    assert "Predicted" not in report(folder, "--where", "cluster=local")
    assert "predicted_by" not in report(folder, "--json", "-", "--where", "cluster=local")


def test_virtual_rates_have_columns_of_their_own(tmp_path, report):
    a_virtual_run(tmp_path / "virtual" / "a")
    a_virtual_run(tmp_path / "virtual" / "b", seed=2)
    head = report(tmp_path / "virtual").split("\n")[0].split()
    assert head[-3:] == ["virtual.steps_per_s", "virtual.examples_per_s", "virtual.time_s"]  # beside no steps_per_s
    assert "steps_per_s" not in head
    (row,) = json.loads(report(tmp_path / "virtual", "--json", "-", "--fold-seeds"))
    assert (row["virtual.steps_per_s"], row["steps_per_s"], row["examples"]) == (11.0, None, 200 * 64)
    assert "predicted_by" not in row
    a_real_run(tmp_path / "real")
    assert "virtual.steps_per_s" not in report(tmp_path / "real", "--csv", "-")


def epoch(step: int, time_s: float | None, loss: float = 0.5) -> Event:
    virtual = {} if time_s is None else {"virtual": {"time_s": time_s, "steps_per_s": 9.0, "examples_per_s": 576.0}}
    rates = {"steps_per_s": 2.0, "examples_per_s": 128.0}
    return Event("epoch", step, step / 2, {"epoch": step // 10, "metrics": {"loss": loss}, **rates, **virtual})


EVALUATION = Event("evaluation", 20, 11.0, {"metrics": {"loss": 0.4}})
CURVES = {
    "a real run": ([epoch(10, None), epoch(20, None), EVALUATION], [5.0, 10.0], [None, None], [11.0], [None]),
    "a virtual run": ([epoch(10, 3.0), epoch(20, 6.0), EVALUATION], [None, None], [3.0, 6.0], [None], [6.0]),
}


@pytest.mark.parametrize("case", CURVES)
def test_curves_are_over_wall_time_or_over_virtual_time(case):
    events, wall_s, virtual_s, evaluated_s, evaluated_virtual_s = CURVES[case]
    curves = page._curves(events)
    assert curves["loss"] == [[10, 20], wall_s, [0.5, 0.5], [640, 1280], virtual_s]
    assert curves["val_loss"] == [[20], evaluated_s, [0.4], [1280], evaluated_virtual_s]
    step_ms = [page._epoch(event)[3] for event in events[:2]]
    assert step_ms == ([500.0, 500.0] if case == "a real run" else [None, None])
