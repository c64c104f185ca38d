"""`psrun report`: which runs it lists, what it shows of them, and how it marks incomplete ones."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pexpect
import pytest
import yaml
from recorded_runs import a_run, a_sweep
from rich.console import Console

from psrun.errors import PsrunError
from psrun.results import run_state
from psrun.results.run_folder import RunFolder
from psrun.runs.report import rows, runs
from psrun.runs.report.commands import main
from psrun.runs.report.table import headings
from psrun.runs.watch import sweep as watching


def words_by_line(text: str) -> list[list[str]]:
    """The words of a table, by line."""
    return [line.split() for line in text.splitlines()]


def listed(report, *arguments: object) -> list[dict]:
    return json.loads(report(*arguments, "--json", "-"))


# -- which runs


def test_runs_are_found_in_sweeps_and_folders_of_them_each_once_and_in_the_order_of_numbers(tmp_path):
    a_sweep(tmp_path / "runs" / "sweep")
    a_run(tmp_path / "runs" / "single")
    (tmp_path / "runs" / "single" / "evaluations" / "cluster").mkdir(parents=True)
    (tmp_path / "runs" / "single" / "evaluations" / "cluster" / "run.json").write_text("{}")  # not a run
    (tmp_path / "runs" / "notes").mkdir()
    all_runs = runs.find([tmp_path / "runs", tmp_path / "runs" / "sweep" / "3"])
    assert [run.name for run in all_runs] == ["single", *(f"sweep/{index}" for index in range(12))]
    (alone,) = runs.find([tmp_path / "runs" / "single"])
    assert alone.name == "single"


# -- what is shown


def test_the_table_has_a_row_a_configuration_and_the_errors_below(tmp_path, report):
    text = report(a_sweep(tmp_path / "sweep"))
    head, *lines = words_by_line(text)
    assert head[:3] == ["run", "status", "val_loss"]
    assert head[3:8] == ["num_workers", "partitioner", "seeds", "val_auc", "loss"]
    assert "num_shards" not in head  # follows from the partitioner
    assert lines[0][:4] == ["0,", "1", "completed", "0.4"]
    assert "0.805 ± 0.0071" in text
    assert "12 runs; 12 that differ only in the seed are folded" in text
    assert "2: TrainingError: the loss became nan\n" in text
    assert "11: no run.json: the run has not started, or ended before writing it\n" in text
    assert "1 failed, 1 completed" in text


def test_one_row_a_run_for_programs(tmp_path, report):
    folder = a_sweep(tmp_path / "sweep")
    listed_rows = listed(report, folder)
    assert [row["run"] for row in listed_rows] == [str(index) for index in range(12)]
    assert listed_rows[5]["cluster.num_workers"] == 2
    assert (listed_rows[5]["partitioner"], listed_rows[5]["seed"], listed_rows[5]["recoveries"]) == ("none", 2, 1)
    assert listed_rows[2]["error"] == "TrainingError: the loss became nan"
    assert listed_rows[2]["val_auc"] is None
    assert (listed_rows[11]["status"], listed_rows[11]["steps"]) == ("unknown", None)
    lines = list(csv.DictReader(io.StringIO(report(folder, "--csv", "-"))))
    assert [line["val_auc"] for line in lines[:3]] == ["0.8", "0.81", ""]
    report(folder, "--csv", tmp_path / "out.csv", "--json", tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text()) == listed_rows
    assert list(csv.DictReader((tmp_path / "out.csv").open())) == lines


@pytest.mark.parametrize("chosen", [True, False])
def test_a_seed_counts_once_and_what_does_not_train_counts_where_it_was_chosen(tmp_path, report, chosen):
    for name, seed, auc, every_s in (("a", 1, 0.7, 10), ("again", 1, 0.7, 10), ("b", 2, 0.8, 10), ("c", 3, 0.9, 1)):
        overrides = [f"seed={seed}", *([f"system.every_s={every_s}"] if chosen else [])]
        config = {"system": {"every_s": every_s}}
        a_run(tmp_path / "runs" / name, seed=seed, auc=auc, overrides=overrides, config=config)
    rows = {row["run"]: row for row in listed(report, tmp_path / "runs", "--fold-seeds")}
    if chosen:
        assert list(rows) == ["a, again, b", "c"]
        assert rows["a, again, b"]["val_auc"] == pytest.approx(0.75)
        assert rows["a, again, b"]["seeds"] == 2
    else:
        (row,) = rows.values()
        assert (row["seeds"], row["val_auc"]) == (3, pytest.approx(0.8))
        assert "system.every_s" not in row


def test_folded_seeds_have_mean_deviation_and_number(tmp_path, report):
    for seed, auc in ((1, 0.7), (2, 0.8), (3, 0.9)):
        a_run(tmp_path / "runs" / f"same{seed}", seed=seed, auc=auc)
    a_run(tmp_path / "runs" / "other", partitioner="fixed_shards")
    a_run(tmp_path / "runs" / "other again", partitioner="fixed_shards")  # the same seed: two rows
    listed_rows = listed(report, tmp_path / "runs", "--fold-seeds")
    assert [row["run"] for row in listed_rows] == ["other", "other again", "same1, same2, same3"]
    assert listed_rows[2]["seeds"] == 3
    assert listed_rows[2]["val_auc"] == pytest.approx(0.8)
    assert listed_rows[2]["val_auc_sd"] == pytest.approx(0.1)
    assert listed_rows[2]["val_loss"] == 0.4
    assert listed_rows[0]["val_auc_sd"] is None
    better = listed(report, tmp_path / "runs", "--fold-seeds", "--sort", "val_auc")  # by the mean, not the best
    assert [row["run"] for row in better] == ["same1, same2, same3", "other", "other again"]
    assert "same1, same2, same3" not in report(tmp_path / "runs", "--no-fold-seeds")


def test_how_a_sweep_runs_its_jobs_makes_no_configuration(tmp_path, report):
    """A job that began after `psrun resume SWEEP sweep.max_parallel=3` has another value."""
    for seed, at_once in ((1, 2), (2, 3), (3, 3)):
        overrides = [f"seed={seed}", "sweep.metric=val_auc", f"sweep.max_parallel={at_once}"]
        config = {"sweep": {"metric": "val_auc", "max_parallel": at_once}}
        a_run(tmp_path / "runs" / str(seed), seed=seed, overrides=overrides, config=config)
    (row,) = listed(report, tmp_path / "runs", "--fold-seeds")
    assert row["seeds"] == 3
    assert "sweep.max_parallel" not in row


def test_means_are_those_of_completed_runs(tmp_path, report):
    stopped = {"status": "interrupted", "metrics": {"loss": 0.9, "val_auc": 0.5}, "wall_s": 1.0}
    for seed, auc, changes in ((1, 0.7, {}), (2, 0.8, {}), (3, 0.5, stopped)):
        a_run(tmp_path / "runs" / str(seed), seed=seed, auc=auc, **changes)
    (row,) = listed(report, tmp_path / "runs", "--fold-seeds")
    assert (row["status"], row["seeds"]) == ("2 completed, 1 interrupted", 2)
    assert (row["val_auc"], row["loss"], row["wall_s"]) == (pytest.approx(0.75), 0.5, 12.0)
    text = report(tmp_path / "runs")
    assert "2 of 3" in text
    assert "0.75 ± 0.071" in text
    # Of runs none of which is completed, all count.
    for seed in (1, 2):
        a_run(tmp_path / "others" / str(seed), seed=seed, auc=0.5 + seed / 10, status="interrupted")
    (row,) = listed(report, tmp_path / "others", "--fold-seeds")
    assert (row["val_auc"], row["seeds"]) == (pytest.approx(0.65), 2)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--where cluster.num_workers=2", "4 5 6 7"),
        ("--where num_workers=2 --where partitioner!=none", "6 7"),
        ("--where val_auc>0.88", "9 10"),
        ("--where 'val_auc >= 0.88'", "8 9 10"),
        ("--where status=failed", "2"),
        ("--where status!=completed", "2 11"),
        ("--where optimizer.learning_rate<0.0001 --where num_workers<=1", "0 1 2 3"),  # written as 1.0e-05
        ("--where seed==2 --where num_ps=2 --where topology=local", "1 3 5 7 9"),
        ("--sort -val_auc", "10 9 8 7 6 5 4 3 1 0 2 11"),  # those without one last
        ("--sort num_workers --sort -seed", "1 3 0 2 5 7 4 6 9 11 8 10"),
        ("--sort status --sort run", "0 1 3 4 5 6 7 8 9 10 2 11"),
    ],
)
def test_where_and_sort(tmp_path, report, options, expected):
    assert [row["run"] for row in listed(report, a_sweep(tmp_path / "s"), *shlex.split(options))] == expected.split()


BEST = {"step": 100, "metric": "val_auc", "mode": "max"}


def test_the_best_run_is_the_first_of_a_table(tmp_path, report):
    """By the value of its best checkpoint, if checkpoints are compared; failed runs are the last."""
    for name, last, best, status in (
        ("a", 0.7, 0.8, "completed"), ("b", 0.5, 0.9, "completed"), ("c", 0.6, 0.95, "failed"),
    ):  # fmt: skip
        a_run(tmp_path / "runs" / name, auc=last, status=status, best_checkpoint={**BEST, "value": best})
    head, *lines = words_by_line(report(tmp_path / "runs"))
    assert head[:3] == ["run", "status", "best_val_auc"]
    assert [line[0] for line in lines[:3]] == ["b", "a", "c"]
    assert lines[0][2] == "0.9"
    assert [row["run"] for row in listed(report, tmp_path / "runs")] == ["a", "b", "c"]
    assert [row["best_val_auc"] for row in listed(report, tmp_path / "runs", "--sort", "best_val_auc")] == [
        0.8, 0.9, 0.95,
    ]  # fmt: skip
    text = report(tmp_path / "runs", "--sort", "-val_auc")
    assert [line[0] for line in words_by_line(text)[1:4]] == ["a", "c", "b"]
    a_run(tmp_path / "runs" / "d")  # it compares no checkpoints: all are ranked by val_loss
    assert words_by_line(report(tmp_path / "runs"))[0][2] == "val_loss"


def of_rows(fraction: float, sha256: str = "f00", **changes: Any) -> dict[str, Any]:
    spec = {"by": "rows", "fraction": fraction, "seed": 0}
    hashes = {"train.csv": {"sha256": "0"}, "rows.csv": {"sha256": sha256}}
    return {"split": {"spec": spec}, "hashes": hashes, "num_eval_files": 1, **changes}


@pytest.mark.parametrize(
    ("first", "second", "differs"),
    [
        (of_rows(0.1), of_rows(0.1), None),
        (of_rows(0.1, num_eval_examples=1), of_rows(0.3, num_eval_examples=3), "data.split.fraction 0.1 and 0.3"),
        (of_rows(0.1), of_rows(0.1, sha256="ba5"), 'files ["f00"] and ["ba5"]'),
        (of_rows(0.1), of_rows(0.1, hashes=None), None),  # they were not recorded
        ({"num_eval_examples": 9}, {"num_eval_examples": 10}, "number of evaluation examples 9 and 10"),
        (of_rows(0.1, hashes={"a": {"sha256": "1"}, "rows.csv": {"sha256": "f00"}}), of_rows(0.1), None),
    ],
)
def test_runs_that_were_evaluated_on_different_rows_are_not_ranked(tmp_path, report, first, second, differs):
    for name, data, auc in (("a", first, 0.7), ("b", second, 0.9)):
        a_run(tmp_path / name, auc=auc, data=data, best_checkpoint={**BEST, "value": auc})
    text = report(tmp_path)
    assert [line[0] for line in words_by_line(text)[1:3]] == (["b", "a"] if differs is None else ["a", "b"])
    expected = [] if differs is None else [f"not ranked: the runs were evaluated on different rows ({differs})"]
    assert [line for line in text.splitlines() if "not ranked" in line] == expected


def test_the_learning_rate_that_was_used_is_shown_in_place_of_auto(tmp_path, report):
    optimizer = {"_target_": "tf_keras.optimizers.Adagrad"}
    for name, rate, chosen in (
        ("a", "auto", {"learning_rate": 0.003, "learning_rate_falls": True}),
        ("b", 0.3, None),
        ("c", "auto", {"learning_rate": 0.001, "learning_rate_falls": False}),
        ("d", "auto", None),  # of a version that did not record it
    ):
        a_run(tmp_path / name, config={"optimizer": {**optimizer, "learning_rate": rate}}, chosen=chosen)
    found = [row["optimizer.learning_rate"] for row in listed(report, tmp_path)]
    assert found == ["0.003 falling to 0", 0.3, 0.001, "auto"]


def test_columns_may_be_any_key(tmp_path, report):
    text = report(a_run(tmp_path / "one"), "--columns", "val_auc,embedding_dim,bottleneck,model")
    assert words_by_line(text)[:2] == [
        ["run", "val_auc", "embedding_dim", "bottleneck", "model"], ["one", "0.9", "20", "traffic", "embedding"],
    ]  # fmt: skip


def test_a_heading_is_the_last_part_of_a_key_with_its_indices_and_what_it_belongs_to():
    keys = ["seed", "cluster.slow_workers.0", "trainer.epochs", "model.dim", "data.dim"]
    assert list(headings(keys).values()) == ["seed", "slow_workers.0", "epochs", "model.dim", "data.dim"]
    keys = ["data.features.price.bins", "data.features.age.bins", "data.features.size", "data.split.fraction"]
    assert list(headings(keys).values()) == ["price.bins", "age.bins", "features.size", "split.fraction"]
    assert list(headings(["model.dims.item.0", "data.num"]).values()) == ["dims.item.0", "num"]
    assert list(headings(["staleness.mean", "staleness.p95", "a.max.b"]).values()) == [
        "staleness.mean", "staleness.p95", "max.b",
    ]  # fmt: skip


def test_programs_can_tell_the_runs_apart_whatever_the_columns(tmp_path, report):
    folder = a_sweep(tmp_path / "sweep")
    lines = list(csv.DictReader(io.StringIO(report(folder, "--csv", "-", "--columns", "val_auc,num_workers"))))
    assert list(lines[0]) == ["run", "cluster.num_workers", "partitioner", "seed", "val_auc"]
    (row,) = listed(report, folder / "0", "--columns", "staleness.mean")
    assert row == {"run": "0", "seed": 1, "staleness.mean": pytest.approx(0.76)}
    (every,) = listed(report, folder / "0")
    assert every["staleness.mean"] == pytest.approx(0.76)
    of_worker = "staleness.by_worker.worker-0.mean"
    assert of_worker not in every
    for named in (of_worker, "worker-0.mean"):
        (row,) = listed(report, folder / "0", "--columns", named)
        assert row[of_worker] == pytest.approx(0.76)
    (row,) = listed(report, folder / "0", "--columns", "p95")  # of all workers
    assert "staleness.p95" in row


def on_a_table(features: dict, **keys: Any) -> dict[str, Any]:
    return {
        "config": {"data": {"_target_": "psrun.tables.table.Table", "features": features, "task": "binary", **keys}}
    }


def guessed(**keys: Any) -> dict[str, Any]:
    """A run whose features are its own guess, which it has recorded."""
    features = {
        "price": {"column": "price", "logarithm": True},
        "age": {"column": "age"},
        "city": {"dtype": "string", "column": "city", "vocabulary": ["a", "b"]},
    }
    recorded = {"num_train_examples": 9, "features": features, "label": {"task": "binary"}}
    data = {"_target_": "psrun.tables.table.Table", "features": None, "task": None, **keys}
    return {"data": recorded, "config": {"data": data}}


def test_a_report_has_the_guessed_features_of_a_thousand_columns(tmp_path):
    """run.json has them in a file beside it."""
    folder = RunFolder.create(tmp_path, raw={"data": {"features": None}})
    features = {f"column_{number}": {"dtype": "float32", "logarithm": True} for number in range(1000)}
    folder.emit_data({"features": features})
    assert (tmp_path / "data.json").exists()
    config, _ = runs.config_of(run_state.look(tmp_path))
    assert config["data.features.column_999.logarithm"] is True
    (tmp_path / "data.json").unlink()
    config, _ = runs.config_of(run_state.look(tmp_path))
    assert config["data.features"] is None


WRITTEN = {"price": {"logarithm": True}, "age": {}, "city": {"dtype": "string", "vocabulary": ["a", "b"]}}
OTHERWISE = {"price": {"logarithm": False}, "age": {}, "size": {"bins": 8, "column": "m2"}}
SCHEDULE = {"_target_": "psrun.optimizers.schedules.WarmUp", "steps": 10, "learning_rate": 0.1}
DIFFERENCES = {
    "values that follow from others": (
        {"workers": 1}, {"workers": 2, "partitioner": "fixed_shards"}, ["cluster.num_workers", "partitioner"], [],
    ),
    "null and nothing": (
        {"workers": 1}, {"workers": 2, "config": {"sweep": {"metric": None}}}, ["cluster.num_workers"], [],
    ),
    "options of a sweep": (
        {"workers": 1},
        {"workers": 2, "overrides": ["cluster.num_workers=2", "sweep.metric=val_auc", "sweep.mode=max"],
         "config": {"sweep": {"metric": "val_auc", "mode": "max"}}},
        ["cluster.num_workers"], [],
    ),
    "a long vocabulary": (
        {"config": {"data": {"vocabulary": list(range(200))}}}, {"config": {"data": {"vocabulary": list(range(100))}}},
        ["data.vocabulary"], ["200 values", "100 values"],
    ),
    "a schedule and a number": (
        {"config": {"optimizer": {"learning_rate": SCHEDULE}}}, {"config": {"optimizer": {"learning_rate": 0.1}}},
        ["optimizer.learning_rate"], ["WarmUp"],
    ),
    "a guess and the same written out": (
        guessed(label="x"), on_a_table(WRITTEN, label="y"), ["data.label"], [],
    ),
    "features by name and option": (
        guessed(), on_a_table(OTHERWISE),
        ["data.features.price.logarithm", "data.features.city", "data.features.size"],
        ["price.logarithm", "features.city", "features.size"],
    ),
    "a feature of no options and one with some": (
        on_a_table({"price": {}, "age": {}}), on_a_table({"price": {"logarithm": True, "bins": 4}, "age": {}}),
        ["data.features.price"], [],
    ),
    "other features altogether": (
        guessed(), on_a_table({"cost": {"column": "price"}, "years": {"column": "age"}}),
        ["data.features"], ["3 keys", "2 keys"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("first", "second", "axes", "texts"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_keys_that_differ_are_columns(tmp_path, report, first, second, axes, texts):
    a_run(tmp_path / "a", **first)
    a_run(tmp_path / "b", **second)
    assert rows.axes(runs.find([tmp_path])) == axes
    shown = report(tmp_path)
    words = " ".join(shown.split())
    assert [text for text in texts if f" {text} " not in f" {words} "] == []
    assert max(map(len, shown.splitlines())) < 200


def test_features_that_differ_and_long_values_are_whole_for_programs(tmp_path, report):
    a_run(tmp_path / "a", **guessed(vocabulary=list(range(200))))
    a_run(tmp_path / "b", **on_a_table(OTHERWISE))
    (first, second) = listed(report, tmp_path)
    assert (first["data.features.price.logarithm"], second["data.features.price.logarithm"]) == (True, False)
    assert (first["data.features.size"], second["data.features.size"]) == (None, {"bins": 8, "column": "m2"})
    assert "2 keys" in report(tmp_path, "--columns", "features.size")
    assert "[0, 1, 2, " in report(tmp_path, "--csv", "-")


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ((1, 1.0), None),
        ((0.30000001, 0.30000002), {"0.30000001", "0.30000002"}),
        ((list(range(200)), list(range(1, 201))), {"(1)", "(2)"}),
    ],
)
def test_values_of_a_column_that_differs_are_not_shown_alike(tmp_path, report, values, texts):
    for name, value in zip("ab", values):
        a_run(tmp_path / name, config={"model": {"dropout": value}})
    assert rows.axes(runs.find([tmp_path])) == ([] if texts is None else ["model.dropout"])
    if texts is not None:
        assert texts <= set(report(tmp_path).split())


# -- runs that are not whole


def to_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


SPOILT = {
    "missing": Path.unlink,
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-30]),
    "empty": lambda file: file.write_text(""),
    "a list": lambda file: file.write_text("[1, 2]"),
    "bytes": lambda file: file.write_bytes(b"\xff\xfe\x00"),
    "a folder": to_folder,
}


@pytest.mark.parametrize("name", ["run.json", "config.yaml", "metrics.jsonl"])
@pytest.mark.parametrize("how", SPOILT)
def test_an_incomplete_run_is_a_row_with_its_error(tmp_path, report, name, how):
    pytest.importorskip("vl_convert")
    a_run(tmp_path / "runs" / "good")
    SPOILT[how](a_run(tmp_path / "runs" / "spoilt", seed=2) / name)
    row_by_run = {row["run"]: row for row in listed(report, tmp_path / "runs")}
    assert row_by_run["good"]["error"] == ""
    report(tmp_path / "runs", "--html", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    if name == "metrics.jsonl":  # of which the table does not need anything
        assert row_by_run["spoilt"]["error"] == ""
        assert how == "empty" or "metrics.jsonl" in text
    elif (name, how) != ("config.yaml", "cut"):  # which is YAML still
        assert name in row_by_run["spoilt"]["error"]
        assert row_by_run["spoilt"]["status"] == ("unknown" if name == "run.json" else "completed")


def test_events_replace_a_lost_result(tmp_path, report):
    folder = a_run(tmp_path / "run")
    (folder / "run.json").unlink()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"event": "evaluation", "step": 300, "wall_s": 9.0}\n{"event": "recovery"}\n')
        file.write('{"event": "evaluation", "step": 300, "wall_s": 9.0, "metrics": {"auc": 0.75}}\n')
    (row,) = listed(report, folder)
    assert (row["status"], row["recoveries"], row["val_auc"]) == ("unknown", 1, 0.75)
    assert row["error"].startswith("no run.json")


def test_runs_of_other_versions_lack_keys_or_have_other_things_in_them(tmp_path, report):
    pytest.importorskip("vl_convert")
    keys = ["metrics", "steps", "placement", "recoveries", "cluster", "overrides", "versions", "error", "step_time"]
    for index, value in enumerate((None, 3, "text", [1, "text", None], {"a": {"b": "c"}})):
        a_run(tmp_path / "runs" / str(index), seed=index, **dict.fromkeys(keys, value))
    assert len(listed(report, tmp_path / "runs")) == 5
    report(tmp_path / "runs", "--html", tmp_path / "page.html")
    assert "completed" in report(tmp_path / "runs")


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "1" * 400])
def test_numbers_that_are_none_are_no_values(tmp_path, report, monkeypatch, number):
    for seed in (1, 2):
        folder = a_run(tmp_path / "runs" / str(seed), seed=seed)
        for name in ("run.json", "metrics.jsonl"):
            text = (folder / name).read_text()
            for key in ("val_loss", "loss", "steps_per_s", "bytes", "seconds"):
                text = re.sub(rf'"{key}": [-\d.]+', f'"{key}": {number}', text)
            (folder / name).write_text(text)
    assert "0.9" in report(tmp_path / "runs", "--sort", "val_auc")
    assert {each["val_loss"] for each in listed(report, tmp_path / "runs")} == {None}
    pytest.importorskip("vl_convert", reason="pip install -e '.[test]'")
    report(tmp_path / "runs", "--html", tmp_path / "page.html")
    monkeypatch.setattr("psrun.runs.sweeps.sweep_state.BETWEEN_JOBS_S", 0.0)
    assert watching.SweepView(tmp_path / "runs", Console(file=io.StringIO()), metric=None, mode=None).follow() == 0


def test_rows_of_many_seeds_name_the_first_of_them(tmp_path, report):
    for seed in range(7):
        a_run(tmp_path / "runs" / str(seed), seed=seed)
    assert "0, 1, 2, 3 and 3 more" in report(tmp_path / "runs")
    (row,) = listed(report, tmp_path / "runs", "--fold-seeds")
    assert row["run"] == "0, 1, 2, 3, 4, 5, 6"


def test_an_abandoned_run_is_marked(tmp_path, report):
    folder = a_run(tmp_path / "run", status="running", error=None)
    assert listed(report, folder)[0]["error"] == ""
    for name in ("run.json", "metrics.jsonl"):
        os.utime(folder / name, (time.time() - 7200,) * 2)
    assert listed(report, folder)[0]["error"] == "has the status running, but wrote nothing for 2.0 h"


def test_names_of_folders_may_be_anything(tmp_path, report):
    pytest.importorskip("vl_convert")
    for name in ("[red]a[/red]", "b\nc", 'd,"e', os.fsdecode(b"f\xff")):
        a_run(tmp_path / "runs" / name, seed=len(name))
    text = report(tmp_path / "runs", "--no-fold-seeds")
    assert "[red]a[/red]" in text
    assert "f\\xff" in text
    lines = list(csv.DictReader(io.StringIO(report(tmp_path / "runs", "--csv", "-"), newline="")))
    assert {line["run"] for line in lines} == {"[red]a[/red]", "b\nc", 'd,"e', "f\\xff"}
    report(tmp_path / "runs", "--csv", tmp_path / "out.csv", "--html", tmp_path / "page.html")


# -- where it is written to


def test_what_goes_to_standard_output_is_whole(tmp_path, capfd):
    main([str(a_run(tmp_path / "run")), "--csv", str(tmp_path / "out.csv"), "--json", "-"])
    printed = capfd.readouterr()
    assert json.loads(printed.out)[0]["run"] == "run"
    assert printed.err == f"written to {tmp_path / 'out.csv'}\n"


def test_a_full_disk_is_a_named_error(tmp_path):
    folder = str(a_run(tmp_path / "run"))
    for option in ("--csv", "--json"):
        with pytest.raises(PsrunError, match="cannot be written to /dev/full: No space left on device"):
            main([folder, option, "/dev/full"])
    with pytest.raises(PsrunError, match=r"cannot be written to .*: No such file or directory"):
        main([folder, "--csv", str(tmp_path / "no" / "such.csv")])


@pytest.mark.command
@pytest.mark.parametrize("option", [[], ["--csv", "-"]])
def test_standard_output_that_cannot_be_written_is_a_named_error(tmp_path, option):
    command = [sys.executable, "-m", "psrun", "report", str(a_run(tmp_path / "run")), *option]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    message = "psrun: the report cannot be written to standard output: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, message)


def test_without_the_charts_the_page_names_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(PsrunError, match=r"pip install 'psrun\[report\]'"):
        main([str(a_run(tmp_path / "run")), "--html", str(tmp_path / "page.html")])
    assert not (tmp_path / "page.html").exists()


@pytest.mark.command
def test_a_run_as_psrun_leaves_it(psrun):
    done = psrun("cluster=none", "trainer.epochs=2", "trainer.steps_per_epoch=10", "data.num_eval_examples=64")
    assert done.code == 0, done.stderr
    shown = psrun("report", "--json", "-", str(done.folder))
    assert (shown.code, shown.stderr) == (0, "")
    (row,) = json.loads(shown.stdout)
    result = done.result
    assert (row["run"], row["status"], row["steps"]) == ("run", "completed", 20)
    assert {name: row[name] for name in result["metrics"]} == result["metrics"]
    assert row["wall_s"] == result["wall_s"]
    page = psrun("report", str(done.folder), "--html", str(done.folder / "page.html"))
    assert page.code == 0, page.stderr
    data = (done.folder / "page.html").read_text().partition('id="data">')[2].partition("</script>")[0]
    (run,) = json.loads(data)["runs"]
    assert run["curves"]["val_loss"][0] == [10, 20]
    assert len(run["epochs"]) == 2
    assert sum(run["bytes"].values()) > 0


@pytest.mark.command
def test_the_help_is_short_and_nothing_of_tensorflow_is_imported(psrun):
    assert len(psrun("report", "--help").stdout.splitlines()) <= 35
    heavy = {"tensorflow", "vl_convert", "scipy", "statsmodels"}
    code = f"import sys, psrun.runs.report.commands, psrun.runs.report.diff; assert not {heavy} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


@pytest.fixture
def calls(monkeypatch):
    """The arguments of some functions: texts of YAML, names of opened files of runs."""
    texts: list[str] = []
    opened: list[str] = []
    load, open_file = yaml.load, Path.open

    def counted_load(text, **options):
        texts.append(text)
        return load(text, **options)

    def counted_open(path, *arguments, **options):
        opened.append(path.name)
        return open_file(path, *arguments, **options)

    monkeypatch.setattr(yaml, "load", counted_load)
    monkeypatch.setattr(Path, "open", counted_open)
    return SimpleNamespace(texts=texts, opened=opened)


def test_a_table_reads_no_events_and_what_runs_have_in_common_once(tmp_path, report, calls):
    for index in range(30):
        a_run(tmp_path / "runs" / str(index), workers=1 + index % 3, seed=index // 3)
    runs._section.cache_clear()
    calls.opened.clear()
    assert "30 runs" in report(tmp_path / "runs")
    calls.opened = [name for name in calls.opened if name != "sweep.json"]  # looked for in the folders above
    assert Counter(calls.opened) == {"config.yaml": 30, "run.json": 30}
    # data, model, optimizer, partitioner, resume; three clusters, ten seeds.
    assert len(calls.texts) == 5 + 3 + 10


def test_a_page_reads_each_file_once(tmp_path, report, calls):
    for index in range(3):
        a_run(tmp_path / "runs" / str(index), seed=index)
    calls.opened.clear()
    report(tmp_path / "runs", "--html", tmp_path / "page.html")
    opened = Counter(calls.opened)
    assert {opened[name] for name in ("config.yaml", "run.json", "metrics.jsonl")} == {3}


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\nb:\n- 1\n- {c: 2}\n# d\n\ne: |+\n  x\n\n\nf: 'y\n\n  z'\n",
        "a: &same [1]\nb: *same\n",
        "a: 'x\nb: y'\nc: 2\n",
        "a: {b: 1,\nc: 2}\n",
        "a: 1\n--- {b: 2}\n",
        "a: 1\n...\n",
        "a: 1\na: 2\nyes: 3\n",
        "a:1\nb: 2\n",
        "{a: 1}\n",
        "- 1\n",
        "",
    ],
)
def test_a_configuration_in_sections_says_what_the_whole_text_says(text):
    def outcome(parse):
        try:
            return parse(text)
        except ValueError as error:
            return str(error)

    assert outcome(runs._parse_config) == outcome(runs._yaml)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (120, ["run", "status", "val_loss", "num_workers", "partitioner", "seeds", "examples_per_s", "recoveries"]),
        (100, ["run", "status", "val_loss", "num_workers", "partitioner", "seeds"]),
        (60, ["run", "status", "val_loss"]),
    ],
)
def test_a_terminal_shows_the_metric_that_ranks_then_keys_that_vary_in_whole_words(tmp_path, columns, expected):
    metrics = {"loss": 0.5, "auc": 0.77, "accuracy": 0.8, "val_loss": 0.4, "val_auc": 0.771234, "val_accuracy": 0.7712}
    a_sweep(tmp_path / "runs" / "2026-11-23_10-11-12-sweep-ab12")
    a_run(tmp_path / "runs" / "2026-11-23_10-11-12-embedding-cd34", metrics=metrics)
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    child = pexpect.spawn(sys.executable, ["-m", "psrun", "report", str(tmp_path / "runs")],
                          dimensions=(50, columns), timeout=60, encoding="utf-8", env=environment)  # fmt: skip
    child.expect(pexpect.EOF)
    child.close()
    table = re.sub(r"\x1b\[[0-9;]*m", "", child.before).partition("13 runs")[0]
    lines = table.splitlines()
    assert lines[0].split() == expected
    known = {word for name in ("embedding-cd34", *(f"sweep-ab12/{index}" for index in range(12)))
             for word in (f"2026-11-23_10-11-12-{name}", f"2026-11-23_10-11-12-{name},")}  # fmt: skip
    names = {word for line in lines[1:] for word in line.split() if word.startswith("2026")}
    assert names <= known
    assert {"0.4", "completed", "completed,"} <= {word for line in lines for word in line.split()}
