"""Commands on a run whose process is gone."""

from __future__ import annotations

import os

from recorded_runs import a_run

from psrun import process
from psrun.runs.listing.commands import main as list_runs
from psrun.runs.logs import main as logs
from psrun.runs.stop import main as stop


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
        assert "to resume: psrun resume=runs/A\n" in output.out + output.err
