"""What reports, the live view, run folders, sweeps and checkpoints say of mistakes: see __snapshots__."""

from __future__ import annotations

import pytest
from recorded_runs import a_run, a_sweep

from psrun.checkpoint.manifest import Contents
from psrun.results.report import commands as report
from psrun.results.run_folder import RunFolder
from psrun.results.watch import commands as watch

REPORTS = {
    "no condition": ["--where", "val_auc"],
    "mistyped key of a condition": ["--where", "val_acu>0.7"],
    "no number": ["--where", "val_auc>high"],
    "no run matches": ["--where", "val_auc>2"],
    "mistyped key to sort by": ["--sort", "-val_acu"],
    "unknown column": ["--columns", "nonsense"],
    "ambiguous column": ["--columns", "kind"],
}
COMMANDS = {"report": report.main, "watch": watch.main}
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


@pytest.mark.parametrize("name", ["nowhere", "empty", "file"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_without_a_run(command, name, tmp_path, monkeypatch, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty" / "inner").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    says(COMMANDS[command], [str(tmp_path / name)])


@pytest.mark.parametrize("options", [("--metric", "val_auc"), ("--mode", "min")], ids=lambda each: each[0])
def test_a_single_run_is_not_compared(tmp_path, options, says):
    says(watch.main, [str(a_run(tmp_path / "run")), *options])


def test_a_folder_that_holds_a_run(tmp_path, says):
    RunFolder.create(tmp_path, raw={}).record("ended", status="running")
    says(RunFolder.create, tmp_path, raw={})


@pytest.mark.parametrize("difference", OTHERS)
def test_a_checkpoint_of_another_model_or_optimizer(difference, says):
    says(HERE.check, "ckpt-1", OTHERS[difference])
