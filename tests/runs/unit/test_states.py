"""A state of a run or a job has one word and one color, whichever command shows it."""

from __future__ import annotations

import io

import pytest
from recorded_runs import a_run
from rich.console import Console

from psrun.results.run_folder import NOT_RUN, OVER, PENDING, PLANNED, SEARCH_STATES, RunFolder
from psrun.results.run_state import GONE, UNKNOWN
from psrun.runs.listing import entries
from psrun.runs.listing.commands import main as list_runs
from psrun.runs.report.table import lines
from psrun.runs.states import STARTING, STATES, WAITING
from psrun.runs.sweeps.sweep import Job, Sweep
from psrun.runs.sweeps.sweep_state import SweepState
from psrun.runs.watch.sweep import SweepScreen, overview


def test_every_state_is_in_the_table():
    others = {"running", WAITING, STARTING, PENDING, PLANNED, GONE, NOT_RUN, UNKNOWN}
    assert {*STATES} == {*OVER, *SEARCH_STATES, *others}


@pytest.mark.parametrize(("word", "code"), [("completed", 32), ("running", 36), ("paused", 2), ("not run", 2)])
def test_a_state_looks_alike_in_all_commands(tmp_path, monkeypatch, capfd, word, code):
    in_a_search = {"search": {"state": word}} if word in SEARCH_STATES else {}
    a_run(tmp_path / "run", status="interrupted" if in_a_search else word, **in_a_search)
    monkeypatch.setenv("FORCE_COLOR", "1")
    list_runs([str(tmp_path)])
    console = Console(file=io.StringIO(), color_system="standard", width=200)
    console.file.writelines(lines([{"run": "A", "status": word}], ["run", "status"], console))
    sweep = SweepState([Job(0, (), "0", status=word, doing=word)], "running", None, "min")
    console.print(overview(sweep, console, 5))
    SweepScreen(console).result(sweep)
    shown = capfd.readouterr().out + console.file.getvalue()
    assert shown.count(f"\x1b[{code}m{word}") == 4


def test_a_job_that_has_not_started_is_waiting_also_when_the_sweep_has_ended():
    sweep = SweepState([Job(0, (), "0", status="completed"), Job(1, (), "1")], "interrupted", None, "min")
    console = Console(file=io.StringIO(), width=200)
    SweepScreen(console).result(sweep)
    *_, waiting, summary = console.file.getvalue().splitlines()
    assert waiting.split() == ["1", WAITING]
    assert summary == "2 jobs: 1 completed, 1 waiting"


def test_a_plan_is_shown_as_planned(tmp_path):
    sweep = Sweep(tmp_path / "sweep", ["-m"], status="completed", jobs={0: Job(0, [], "0", status="completed")})
    folder = RunFolder.create(tmp_path / "sweep" / "0", raw={})
    folder.emit("begun", mode="plan", started_s=0.0, overrides=[])
    folder.emit("ended", status="completed", exit_code=0, wall_s=1.0)
    sweep.write()
    (job,) = entries.below(tmp_path).sweeps[0].jobs
    assert (job.row["status"], entries.below(tmp_path).sweeps[0].row["status"]) == (PLANNED, PLANNED)
    folder.emit("epoch", metrics={"loss": 1.0})
    (job,) = entries.below(tmp_path).sweeps[0].jobs
    assert job.row["status"] == "completed"
