"""What commands over runs, sweeps and trackers say about mistakes of a user, as the golden file has them.

More mistakes of these kinds: tests/runs/unit/test_refused_runs.py.
"""

from __future__ import annotations

import pytest
from plain_config import plain_config, put
from recorded_runs import a_recorded_sweep, a_run, a_sweep
from support import stated

from psrun import process
from psrun.cli import command_line
from psrun.config import composition, parse
from psrun.errors import ConfigError
from psrun.runs import logs, remove, reproduce, stop
from psrun.runs.report import commands as report
from psrun.runs.report import diff
from psrun.runs.sweeps import proposals
from psrun.runs.sweeps.hydra_search import Space
from psrun.runs.watch import commands as watch

SEARCH = "-m sweep.search=grid sweep.metric=loss sweep.mode=min"
COMMAND_LINES = [
    "reprot",
    "sweep.search=tpe",
    SEARCH,
    f"{SEARCH} sweep.halving.factor=3 trainer.epochs=9,18,27",
]
# What a search cannot vary, by its method.
SPACES = {
    "a grid of ranges": ("grid", ["optimizer.learning_rate=interval(0.1,1)", "seed=1,2"]),
}
TRACKERS = ["tracker=[tensorbord,mlflow]", "tracker=[mlflow,mlflow]"]
COMPOSED = {
    "two trackers": ["tracker=mlflow", "tracker=wandb"],
    "keys of trackers": [
        "tracker=mlflow", "tracker.tracking_uri=x", "tracker.mlflow.uri=x", "tracker.wandb.mode=online",
        "tracker.x.y=1",
    ],
    "none beside a tracker": ["tracker=[none,wandb]", "tracker.wandb.artifacts=[exprt]"],
}  # fmt: skip
REPORTS = {
    "no condition": ["--where", "val_auc"],
    "mistyped key of a condition": ["--where", "val_acu>0.7"],
    "no run matches": ["--where", "val_auc>2"],
    "ambiguous column": ["--columns", "kind"],
}
# The folders: new and base differ in the partitioner, other has other seeds.
COMPARISONS = {
    "a metric without a baseline": ["new", "--metric", "val_auc"],
    "no common seed": ["new", "--against", "other"],
}
RECORD = {"code": {"commit": None, "dirty": False, "diff": None, "modules": {}}, "environment": {}}
REPRODUCTIONS = {
    "a folder that is not empty": ["full"],
    "keys of the command": ["resume=x", "mode=plan", "hydra.run.dir=x"],
}
OVER_RUNS = {
    "rm: a run by a mistyped name": (remove.main, ["2026-ab1", "--yes"]),
    "rm: a run by an end that many have": (remove.main, ["12", "--yes"]),
    "rm: nobody to ask": (remove.main, ["base"]),
    "rm: of what runs and of what others need": (remove.main, ["cd12", "ab12", "--yes"]),
    "report: no run": (report.main, ["empty"]),
    "watch: no run": (watch.main, ["empty"]),
    "logs: a sweep": (logs.main, ["sweep"]),
    "diff: a sweep": (diff.main, ["runs/sweep", "runs/base"]),
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # as the command does


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_a_command_line(monkeypatch, line, says):
    monkeypatch.setattr("sys.argv", ["psrun", *line.split()])
    says(command_line._dispatch, 0.0)


@pytest.mark.parametrize("space", SPACES)
def test_what_a_search_cannot_vary(space, snapshot):
    method, arguments = SPACES[space]
    parameters = Space.of(arguments, method, None).parameters
    assert stated(ConfigError(proposals.problems(method, parameters))) == snapshot


@pytest.mark.parametrize("argument", TRACKERS)
def test_a_choice_of_trackers(snapshot, argument):
    (problem,) = composition.problems_of_arguments([argument], sweeps=False).values()
    assert str(problem) == snapshot


@pytest.mark.parametrize("case", COMPOSED)
def test_keys_of_trackers(monkeypatch, case, says):
    monkeypatch.setattr("sys.argv", ["psrun", "hydra.run.dir=run", *COMPOSED[case]])
    says(command_line.run_experiment, 0.0)


def test_a_value_of_a_search(says):
    raw = plain_config()
    put(raw, "sweep.search", "bayes")
    says(parse.load, raw)


@pytest.mark.parametrize("mistake", REPORTS)
def test_a_mistake_in_a_report(mistake, tmp_path, says):
    says(report.main, [str(a_sweep(tmp_path / "sweep")), *REPORTS[mistake]])


@pytest.mark.parametrize("mistake", COMPARISONS)
def test_a_mistake_in_a_comparison(mistake, tmp_path, says):
    for seed in (1, 2):
        a_run(tmp_path / "new" / str(seed), seed=seed, partitioner="fixed_shards")
        a_run(tmp_path / "other" / str(seed), seed=seed + 7)
    says(report.main, COMPARISONS[mistake])


@pytest.mark.parametrize("mistake", OVER_RUNS)
def test_a_mistake_in_a_command_over_runs(mistake, tmp_path, says):
    runs = tmp_path / "runs"
    a_run(runs / "base")
    a_run(runs / "2026-ab12")
    a_run(runs / "2026-cd12", status="running")
    a_run(runs / "user", config={"evaluation": {"kind": "sidecar", "checkpoint_dir": "runs/2026-ab12/checkpoints"}})
    a_recorded_sweep(runs / "sweep")
    (tmp_path / "empty").mkdir()
    command, arguments = OVER_RUNS[mistake]
    says(command, arguments)


def test_a_mistyped_task_in_logs(tmp_path, says):
    folder = a_run(tmp_path / "runs" / "A")
    (folder / "logs").mkdir()
    (folder / "logs" / "worker-1.log").touch()
    says(logs.main, ["A", "wroker-1"])


def test_runs_that_cannot_be_stopped_from_here(tmp_path, monkeypatch, capsys, snapshot):
    """Each line is about one run; all of them are tried."""
    monkeypatch.setenv("PATH", str(tmp_path))  # without scancel
    here = process.place()
    of_slurm = {"host": "n1", "pid_namespace": 1, "pid": 7, "slurm_job": "12"}
    places: dict[str, dict] = {
        "over": {},
        "elsewhere": {"status": "running", "process": {"host": "n1", "pid_namespace": 1, "pid": 7}},
        "container": {"status": "running", "process": {**here, "pid_namespace": 1, "pid": 7}},
        "unknown": {"status": "running", "process": None},
        "slurm": {"status": "running", "process": of_slurm, "cluster": {"topology": "slurm"}},
        "begins": {"status": "running", "process": of_slurm, "cluster": None, "config": {"cluster": {"kind": "slurm"}}},
        "pods": {"status": "running", "process": {**here, "pid": 7}, "cluster": {"topology": "kubernetes"}},
    }
    for name, changes in places.items():
        a_run(tmp_path / "runs" / name, **changes)
    (a_run(tmp_path / "runs" / "damaged") / "run.json").unlink()
    (tmp_path / "runs" / "damaged" / "metrics.jsonl").write_text("")
    a_recorded_sweep(tmp_path / "runs" / "sweep", status="running", host="n1", process={"host": "n1", "pid": 7})
    assert stop.main([*places, "damaged", "sweep"]) == 1
    said = " ".join(capsys.readouterr().out.replace("\n", "|").split()).replace("|", "\n")
    assert said.replace(str(tmp_path), "<tmp>") == snapshot


def test_a_run_without_results_is_not_reproduced(tmp_path, says):
    says(reproduce.main, [str(a_run(tmp_path / "run", **RECORD, status="running"))])


def test_data_that_has_changed_is_not_trained_on(tmp_path, says):
    (tmp_path / "rows.csv").write_text("a,b")
    recorded = {"sha256": "0123456789abcdef", "bytes": 1000}
    data = {"hashes": {"rows.csv": recorded, "gone.csv": recorded}}
    says(reproduce.main, [str(a_run(tmp_path / "run", **RECORD, data=data))])


@pytest.mark.parametrize("what", REPRODUCTIONS)
def test_a_mistake_in_a_reproduction(what, tmp_path, says):
    a_run(tmp_path / "full")
    a_run(tmp_path / "run", **RECORD)
    says(reproduce.main, ["run", *REPRODUCTIONS[what]])
