"""Mistakes in commands over runs, in sweeps and in trackers are refused, by the key, the option or the run.

What is said: tests/runs/contract/test_messages_runs.py.
"""

from __future__ import annotations

import sys

import pytest
from messages import refused
from plain_config import plain_config, put
from recorded_runs import a_recorded_sweep, a_run, a_sweep

from psrun.cli import command_line
from psrun.config import composition, parse
from psrun.results import run_folder
from psrun.runs import logs, remove, reproduce
from psrun.runs.listing import commands as listing
from psrun.runs.report import commands as report
from psrun.runs.report import diff
from psrun.runs.sweeps import proposals
from psrun.runs.sweeps.hydra_search import Space
from psrun.runs.watch import commands as watch

GRID = "-m sweep.search=grid sweep.metric=loss sweep.mode=min"
COMMAND_LINES = {
    "-sc install=tcsh": "install=SHELL",
    "-m trainer.epochs": "trainer.epochs",
    "-m sweep.search=grid optimizer.learning_rate=0.1,0.2": "sweep.metric",
    f"{GRID} sweep.halving.factor=3 trainer.epochs=9 cluster.num_ps=1,2": "sweep.halving.factor",
    f"{GRID} sweep.halving.factor=2 trainer.epochs=1 cluster.num_ps=1,2": "sweep.halving.factor",
    "-m sweep.search=tpe,random sweep.num_trials=2,3 sweep.metric=loss sweep.mode=min seed=1,2": (
        "sweep.search, sweep.num_trials"
    ),
    "-m sweep.search=random sweep.num_trials=2 sweep.metric=loss sweep.mode=min optimizer.learning_rate=interval(1,inf)"
    " trainer.epochs=range(5,1) seed=1,2 cluster.num_ps=1,2 cluster.num_ps=3,4": (
        "optimizer.learning_rate, trainer.epochs, cluster.num_ps"
    ),
}
COMBINATIONS = {
    "sweep.search=tpe mode=plan": "sweep.metric, sweep.num_trials, mode",
    "sweep.search=grid sweep.num_trials=3 sweep.metric=val_loss sweep.mode=min sweep.halving.factor=3 checkpoint=none"
    " evaluation=none trainer.epochs=auto": "sweep.num_trials, checkpoint, trainer.epochs, evaluation",
    "sweep.search=cmaes sweep.num_trials=9 sweep.metric=loss sweep.mode=min sweep.halving.factor=3 trainer.epochs=9": (
        "sweep.search"
    ),
    "sweep.mode=max": "sweep.metric",
    "sweep.num_trials=0": "sweep.num_trials",
    "sweep.num_trials=3": "sweep.num_trials",
    "sweep.halving.factor=1": "sweep.halving.factor",
    "sweep.halving.factor=3": "sweep.halving.factor",
    "sweep.halving=3": "sweep.halving",
}
SPACES = {
    "cmaes over words": ("cmaes", ["model=dense,cnn", "optimizer.learning_rate=interval(0.1,1)"], "model"),
    "a logarithmic range from zero": (
        "random",
        ["optimizer.learning_rate=tag(log,interval(0,1))"],
        "optimizer.learning_rate",
    ),
    "cmaes over one key": ("cmaes", ["optimizer.learning_rate=interval(0.1,1)"], "sweep.search"),
    "a range that ends where it begins": (
        "tpe",
        ["optimizer.learning_rate=interval(1,1)", "data.global_batch_size=32"],
        "optimizer.learning_rate",
    ),
    "seeds alone": ("tpe", ["seed=1,2,3"], "sweep.search"),
}
# Values of the group, and the key that is refused.
TRACKERS = [
    ("tracker", "mlflow", "tracker"),
    ("tracker", {}, "tracker"),
    ("tracker", {"kind": "mlflow", "tracking_uri": "x", "experiment": "y"}, "tracker"),
    ("tracker", {"mlflow": {"kind": "mlflo"}}, "tracker.mlflow"),
    (
        "tracker.wandb",
        {"kind": "wandb", "project": "p", "entity": None, "artifacts": [], "mode": "onlin"},
        "tracker.wandb.mode",
    ),
    ("tracker.wandb", {"_target_": "psrun.results.events.Sink"}, "tracker.wandb._target_"),
]
REPORTS = {
    ("--where", "val_auc>high"): "requires one",
    ("--sort", "-val_acu"): "Did you mean 'val_auc'",
    ("--columns", "nonsense"): "no run has 'nonsense'",
}
# The folders: sweep has one run without a metric; new and base differ in the partitioner.
COMPARISONS = {
    ("new", "--unpaired"): "--unpaired: only with --against",
    ("new", "--against", "base", "--metric", "val_acu"): "Did you mean 'val_auc'",
    ("bare/1", "--against", "bare/2"): "--metric",
    ("new", "--against", "sweep/0", "sweep/10"): "--against has several configurations",
    ("new", "--against", "sweep/2"): "not completed",
    ("new", "--against", "new"): "all runs are in --against",
}
DIFFS = {
    ("new/1", "base"): "base holds 2 runs",
    ("new/1", "new/../new/1"): "are the same run",
    ("new/1", "nowhere"): "there is no folder nowhere",
}
RECORD = {"code": {"commit": None, "dirty": False, "diff": None, "modules": {}}, "environment": {}}
NOT_REPRODUCED = {
    "mode=plan": {"mode": "plan"},
    "metrics: 0": {"metrics": {}},
    "status: pruned": {"status": "interrupted", "search": {"state": "pruned"}},
    "own/net.py is missing": {"code": {**RECORD["code"], "modules": {"own.net": "code/modules/own/net.py"}}},
}
REPRODUCTIONS = {
    ("one", "two"): "not also two",
    ("new", "trainer.epoch=3"): "trainer.epoch",
    ("--seeds", "full"): "--seeds",
}
OVER_RUNS = {
    "no run below runs/": (logs.main, ["baselin"]),
    "there is no folder nowhere": (listing.main, ["nowhere"]),
    "none of 4 runs matches": (listing.main, ["--where", "status=failed"]),
    "Did you mean 'val_auc'": (listing.main, ["--where", "val_acu>0.7"]),
    "--older-than": (remove.main, ["runs", "--yes"]),
    "--follow waits": (logs.main, ["base"]),
    "is a job of the sweep": (remove.main, ["sweep/0", "--yes"]),
    "--keep-best is for sweeps": (remove.main, ["base", "--keep-best"]),
    "none has a metric": (remove.main, ["bare", "--keep-best"]),
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # as the command does


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_a_command_line(monkeypatch, line):
    monkeypatch.setattr("sys.argv", ["psrun", *line.split()])
    refused(COMMAND_LINES[line], command_line._dispatch, 0.0)


@pytest.mark.parametrize("arguments", COMBINATIONS)
def test_keys_of_a_search(arguments):
    refused(COMBINATIONS[arguments], lambda: parse.load(plain_config(*arguments.split())))


@pytest.mark.parametrize("space", SPACES)
def test_what_a_search_cannot_vary(space):
    method, arguments, key = SPACES[space]
    problems = proposals.problems(method, Space.of(arguments, method, None).parameters)
    assert [problem.key for problem in problems] == [key]


@pytest.mark.parametrize("argument", ["~tracker", "tracker=[]", "tracker=[[mlflow]]"])
def test_lists_of_trackers(argument):
    (problem,) = composition.problems_of_arguments([argument], sweeps=False).values()
    assert problem.key == "tracker"


@pytest.mark.parametrize(("group", "value", "key"), TRACKERS)
def test_keys_of_trackers(group, value, key):
    raw = plain_config()
    put(raw, group, value)
    refused(key, parse.load, raw)


def test_a_file_of_a_tracker_without_its_place(tmp_path):
    (tmp_path / "own" / "tracker").mkdir(parents=True)
    (tmp_path / "own" / "tracker" / "mine.yaml").write_text("kind: mlflow\nexperiment: mine\n")
    (problem,) = composition.problems_of_arguments(["--config-dir", "own", "tracker=mine"], sweeps=False).values()
    assert problem.key == "tracker"


@pytest.mark.parametrize("options", REPORTS)
def test_a_report(options, tmp_path):
    refused(REPORTS[options], report.main, [str(a_sweep(tmp_path / "sweep")), *options])


@pytest.fixture
def compared(tmp_path):
    """Folders of runs to compare, in the current folder."""
    (a_sweep(tmp_path / "sweep") / "sweep.json").write_text("{}")
    for seed in (1, 2):
        a_run(tmp_path / "new" / str(seed), seed=seed, auc=0.8 + seed**2 / 100, partitioner="fixed_shards")
        a_run(tmp_path / "base" / str(seed), seed=seed)
        a_run(tmp_path / "bare" / str(seed), seed=seed, metrics=None)


@pytest.mark.usefixtures("compared")
@pytest.mark.parametrize("options", COMPARISONS)
def test_a_comparison(options):
    refused(COMPARISONS[options], report.main, [*options])


@pytest.mark.usefixtures("compared")
@pytest.mark.parametrize("package", ["scipy", "statsmodels.stats.multitest"])
def test_a_package_that_a_comparison_lacks(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    refused("pip install", report.main, ["new", "--against", "base", "--metric", "val_auc"])


def test_a_package_that_the_spread_of_a_reproduction_lacks(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    for seed in (1, 2, 3):
        folder = tmp_path / "runs" / "seeds" / str(seed)
        a_run(folder, seed=seed, code={"modules": {}}, environment={}, mode="train")
    (tmp_path / "runs" / "seeds" / "sweep.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    refused("psrun[report]", reproduce.main, ["seeds/1", str(tmp_path / "new"), "--seeds", "seeds"])
    assert not (tmp_path / "new").exists()


@pytest.mark.usefixtures("compared")
@pytest.mark.parametrize("runs", DIFFS)
def test_a_diff(runs):
    refused(DIFFS[runs], diff.main, [*runs])


@pytest.mark.parametrize("command", [report.main, reproduce.main, watch.main])
def test_a_folder_without_a_run(command, tmp_path):
    (tmp_path / "empty" / "inner").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    for name in ("nowhere", "empty", "file"):
        refused(name, command, [name])


@pytest.mark.parametrize("text", OVER_RUNS)
def test_a_command_over_runs(text, tmp_path):
    runs = tmp_path / "runs"
    a_run(runs / "base")
    run_folder.write_name(runs / "base", "baseline")
    a_run(runs / "2026-ab12")
    a_recorded_sweep(runs / "sweep")
    a_recorded_sweep(runs / "bare", metric="nonsense")
    command, arguments = OVER_RUNS[text]
    refused(text, command, arguments)


def test_a_single_run_is_not_compared(tmp_path):
    for options in (("--metric", "val_auc"), ("--mode", "min")):
        refused("holds a single run", watch.main, [str(a_run(tmp_path / options[1])), *options])


def test_logs_of_a_job_of_several_tasks(tmp_path):
    folder = a_run(tmp_path / "runs" / "A")
    (folder / "logs").mkdir()
    for name in ("worker-0", "worker-1"):
        (folder / "logs" / f"{name}.log").touch()
    refused("name one of worker-0, worker-1", logs.main, ["A", "worker"])
    refused("no log of the chief yet; name one of worker-0, worker-1", logs.main, ["A"])


@pytest.mark.parametrize("text", NOT_REPRODUCED)
def test_a_run_that_cannot_be_reproduced(text, tmp_path):
    refused(text, reproduce.main, [str(a_run(tmp_path / "run", **{**RECORD, **NOT_REPRODUCED[text]}))])


def test_a_sweep_is_reproduced_job_by_job(tmp_path):
    sweep = a_sweep(tmp_path / "sweep")
    (sweep / "sweep.json").write_text("{}")
    refused("holds a sweep", reproduce.main, [str(sweep)])


@pytest.mark.parametrize("arguments", REPRODUCTIONS)
def test_a_reproduction(arguments, tmp_path):
    a_run(tmp_path / "full")
    a_run(tmp_path / "run", **RECORD)
    refused(REPRODUCTIONS[arguments], reproduce.main, ["run", *arguments])
