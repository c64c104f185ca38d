"""What reports, the live view, run folders, sweeps and checkpoints say of mistakes: see __snapshots__."""

from __future__ import annotations

import sys

import pytest
from recorded_runs import a_recorded_sweep, a_run, a_sweep

from psrun.checkpoint.manifest import Contents
from psrun.results import labels, mark, note
from psrun.results.run_folder import RunFolder
from psrun.runs import remove, reproduce
from psrun.runs.listing import commands as listing
from psrun.runs.report import commands as report
from psrun.runs.report import diff
from psrun.runs.watch import commands as watch

REPORTS = {
    "no condition": ["--where", "val_auc"],
    "mistyped key of a condition": ["--where", "val_acu>0.7"],
    "no number": ["--where", "val_auc>high"],
    "no run matches": ["--where", "val_auc>2"],
    "mistyped key to sort by": ["--sort", "-val_acu"],
    "unknown column": ["--columns", "nonsense"],
    "ambiguous column": ["--columns", "kind"],
}
COMMANDS = {"report": report.main, "reproduce": reproduce.main, "watch": watch.main}
# The folders: sweep has one run without a metric; new and base differ in the partitioner, other has other seeds.
COMPARISONS = {
    "a metric without a baseline": ["new", "--metric", "val_auc"],
    "unpaired without a baseline": ["new", "--unpaired"],
    "mistyped metric": ["new", "--against", "base", "--metric", "val_acu"],
    "no metric": ["bare/1", "--against", "bare/2"],
    "several configurations in the baseline": ["new", "--against", "sweep/0", "sweep/10"],
    "no completed run in the baseline": ["new", "--against", "sweep/2"],
    "nothing but the baseline": ["new", "--against", "new"],
    "no common seed": ["new", "--against", "other"],
}
DIFFS = {
    "a sweep": ["sweep", "new/1"],
    "several runs": ["new/1", "base"],
    "the same run": ["new/1", "new/../new/1"],
    "no run": ["new/1", "nowhere"],
}
RECORD = {"code": {"commit": None, "dirty": False, "diff": None, "modules": {}}, "environment": {}}
NOT_REPRODUCED = {
    "still running": {"status": "running"},
    "planned": {"mode": "plan"},
    "without metrics": {"metrics": {}},
    "pruned by a search": {"status": "interrupted", "search": {"state": "pruned"}},
    "without a record": {"code": None},
    "a lost copy": {"code": {**RECORD["code"], "modules": {"own.net": "code/modules/own/net.py"}}},
}
REPRODUCTIONS = {
    "two folders": ["one", "two"],
    "a folder that is not empty": ["full"],
    "keys of the command": ["resume=x", "mode=plan", "hydra.run.dir=x"],
    "an unknown key": ["new", "trainer.epoch=3"],
    "too few seeds": ["--seeds", "full"],
}
OVER_RUNS = {
    "a run by a mistyped name": (note.main, ["baselin", "text"]),
    "a run by an end that many have": (note.main, ["12", "text"]),
    "no run at all": (note.main, ["runs", "text"]),
    "an empty note": (note.main, ["base", " "]),
    "a mark that is no word": (mark.main, ["base", "+to do"]),
    "a mark to add and to remove": (mark.main, ["base", "+x", "-x"]),
    "a mistyped mark to remove": (mark.main, ["base", "-kep"]),
    "a mark to remove of a run without marks": (mark.main, ["ab12", "-keep"]),
    "list: a folder that does not exist": (listing.main, ["nowhere"]),
    "list: a mistyped key": (listing.main, ["--where", "val_acu>0.7"]),
    "list: no run matches": (listing.main, ["--where", "status=failed"]),
    "rm: a folder of runs": (remove.main, ["runs", "--yes"]),
    "rm: nobody to ask": (remove.main, ["base"]),
    "rm: a job of a sweep": (remove.main, ["sweep/0", "--yes"]),
    "rm: of what runs and of what others need": (remove.main, ["cd12", "ab12", "--yes"]),
    "rm: the best of a single run": (remove.main, ["base", "--keep-best"]),
    "rm: the best of a sweep without metrics": (remove.main, ["bare", "--keep-best"]),
}
TABLE = {"table": {"shape": [8, 2], "dtype": "float32"}}
HERE = Contents("Adagrad", TABLE, {"table/accumulator": TABLE["table"]}, [])
OTHERS = {
    "shape": Contents("Adagrad", {"table": {"shape": [8, 3], "dtype": "float32"}}, HERE.slots, []),
    "type": Contents("Adagrad", {"table": {"shape": [8, 2], "dtype": "float16"}}, HERE.slots, []),
    "more variables": Contents("Adagrad", {**TABLE, "b": TABLE["table"]}, {}, []),
    "optimizer": Contents("Adam", TABLE, HERE.slots, []),
    "slots": Contents("Adagrad", TABLE, {}, []),
}


@pytest.mark.parametrize("mistake", REPORTS)
def test_a_mistake_in_a_report(mistake, tmp_path, says):
    says(report.main, [str(a_sweep(tmp_path / "sweep")), *REPORTS[mistake]])


@pytest.fixture
def compared(tmp_path, monkeypatch):
    """Folders of runs to compare, in the current folder."""
    monkeypatch.chdir(tmp_path)
    (a_sweep(tmp_path / "sweep") / "sweep.json").write_text("{}")
    for seed in (1, 2):
        a_run(tmp_path / "new" / str(seed), seed=seed, auc=0.8 + seed**2 / 100, partitioner="fixed_shards")
        a_run(tmp_path / "base" / str(seed), seed=seed)
        a_run(tmp_path / "other" / str(seed), seed=seed + 7)
        a_run(tmp_path / "bare" / str(seed), seed=seed, metrics=None)


@pytest.mark.usefixtures("compared")
@pytest.mark.parametrize("mistake", COMPARISONS)
def test_a_mistake_in_a_comparison(mistake, says):
    says(report.main, COMPARISONS[mistake])


@pytest.mark.usefixtures("compared")
@pytest.mark.parametrize("package", ["scipy", "statsmodels.stats.multitest"])
def test_a_package_that_a_comparison_lacks(package, monkeypatch, says):
    monkeypatch.setitem(sys.modules, package, None)
    says(report.main, ["new", "--against", "base", "--metric", "val_auc"])


@pytest.mark.usefixtures("compared")
@pytest.mark.parametrize("mistake", DIFFS)
def test_a_mistake_in_a_diff(mistake, says):
    says(diff.main, DIFFS[mistake])


@pytest.mark.parametrize("name", ["nowhere", "empty", "file"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_without_a_run(command, name, tmp_path, monkeypatch, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty" / "inner").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    says(COMMANDS[command], [str(tmp_path / name)])


@pytest.mark.parametrize("mistake", OVER_RUNS)
def test_a_mistake_in_a_command_over_runs(mistake, tmp_path, monkeypatch, says):
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs"
    a_run(runs / "base")
    labels.rename(runs / "base", "baseline")
    labels.mark(runs / "base", add={"keep"}, remove=set())
    a_run(runs / "2026-ab12")
    a_run(runs / "2026-cd12", status="running")
    a_run(runs / "user", config={"evaluation": {"kind": "sidecar", "checkpoint_dir": "runs/2026-ab12/checkpoints"}})
    a_recorded_sweep(runs / "sweep")
    a_recorded_sweep(runs / "bare", metric="nonsense")
    command, arguments = OVER_RUNS[mistake]
    says(command, arguments)


def test_damaged_notes(tmp_path, says):
    (tmp_path / "notes.json").write_text("{")
    says(labels.note, tmp_path, "text")


@pytest.mark.parametrize("options", [("--metric", "val_auc"), ("--mode", "min")], ids=lambda each: each[0])
def test_a_single_run_is_not_compared(tmp_path, options, says):
    says(watch.main, [str(a_run(tmp_path / "run")), *options])


def test_a_folder_that_holds_a_run(tmp_path, says):
    RunFolder.create(tmp_path, raw={}).record("ended", status="running")
    says(RunFolder.create, tmp_path, raw={})


@pytest.mark.parametrize("difference", OTHERS)
def test_a_checkpoint_of_another_model_or_optimizer(difference, says):
    says(HERE.check, "ckpt-1", OTHERS[difference])


@pytest.mark.parametrize("what", NOT_REPRODUCED)
def test_a_run_that_cannot_be_reproduced(what, tmp_path, says):
    says(reproduce.main, [str(a_run(tmp_path / "run", **{**RECORD, **NOT_REPRODUCED[what]}))])


def test_a_sweep_is_reproduced_job_by_job(tmp_path, says):
    sweep = a_sweep(tmp_path / "sweep")
    (sweep / "sweep.json").write_text("{}")
    says(reproduce.main, [str(sweep)])


def test_data_that_has_changed_is_not_trained_on(tmp_path, monkeypatch, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("a,b")
    recorded = {"sha256": "0123456789abcdef", "bytes": 1000}
    data = {"hashes": {"rows.csv": recorded, "gone.csv": recorded}}
    says(reproduce.main, [str(a_run(tmp_path / "run", **RECORD, data=data))])


@pytest.mark.parametrize("what", REPRODUCTIONS)
def test_a_mistake_in_a_reproduction(what, tmp_path, monkeypatch, says):
    monkeypatch.chdir(tmp_path)
    a_run(tmp_path / "full")
    a_run(tmp_path / "run", **RECORD)
    says(reproduce.main, ["run", *REPRODUCTIONS[what]])
