"""Runs whose process, or whose run.json, is gone."""

from __future__ import annotations

import os

from recorded_runs import a_run

from psrun import process
from psrun.results.run_folder import RunFolder
from psrun.runs.listing.commands import main as list_runs
from psrun.runs.logs import main as logs
from psrun.runs.stop import main as stop
from psrun.runs.sweeps.jobs import can_resume
from psrun.runs.sweeps.sweep import Job, Sweep
from psrun.runs.sweeps.sweep_state import SweepReader


def test_a_run_that_is_gone_says_how_it_is_resumed(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    gone = {"status": "running", "process": {**process.place(), "pid": 2**22 + 1}}  # more than Linux has
    folder = a_run(tmp_path / "runs" / "A", **gone)
    (folder / "logs").mkdir()
    (folder / "logs" / "chief-0.log").write_text("its log\n")
    os.utime(folder / "run.json", (0, 0))
    os.utime(folder / "metrics.jsonl", (0, 0))
    for command, arguments in ((list_runs, []), (stop, ["A"]), (logs, ["A"])):
        assert command(arguments) == 0
        output = capfd.readouterr()
        assert "to resume: psrun resume runs/A\n" in output.out + output.err


def test_a_job_whose_run_json_is_lost_is_a_run(tmp_path):
    folder = RunFolder.create(tmp_path / "0", raw={})
    folder.emit("begun", mode="train", overrides=["seed=1"], started_s=0.0)
    folder.emit("ended", status="completed", exit_code=0)
    (folder.path / "run.json").unlink()
    sweep = Sweep(tmp_path, ["seed=1"], metric=None, mode=None, status="completed")
    sweep.jobs = {0: Job(0, ["seed=1"], "0")}
    sweep.write()
    assert can_resume({"mode": "train", "checkpoint": {"kind": "epochs"}}, folder.path)
    assert [job.status for job in SweepReader(tmp_path).look().jobs] == ["completed"]
