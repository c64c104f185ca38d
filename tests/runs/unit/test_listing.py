"""`psrun list`: the rows of runs and sweeps."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from recorded_runs import a_recorded_sweep, a_run
from rich.console import Console
from support import environment

from psrun.results import run_folder
from psrun.runs.listing import commands, entries
from psrun.runs.listing.commands import age
from psrun.runs.listing.commands import main as list_runs
from psrun.runs.report.commands import main as report


@pytest.fixture
def runs(tmp_path, monkeypatch) -> Path:
    """Runs A to C and the sweep S below runs/, the current folder above it."""
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate("ABC"):
        a_run(tmp_path / "runs" / name, workers=number + 1, auc=0.9 - number / 10, process={"host": "here", "pid": 1})
    a_recorded_sweep(tmp_path / "runs" / "S")
    return tmp_path / "runs"


def listed(capfd, *arguments: str) -> list[dict]:
    list_runs([*arguments, "--json"])
    return json.loads(capfd.readouterr().out)


def names(rows: list[dict]) -> list[str]:
    return [row["run"] for row in rows]


def test_rows_of_runs_and_sweeps(runs, capfd):
    (runs / "B" / "config.yaml").unlink()
    (runs / "B" / "run.json").write_text("{")
    rows = {row["run"]: row for row in listed(capfd, "--jobs")}
    assert list(rows) == ["A", "B", "C", "S", "S/0", "S/1", "S/2"]
    run = rows["A"]
    assert (run["status"], run["metric"], run["value"], run["engine"]) == ("completed", "val_loss", 0.4, "local")
    assert run["where"] == "here"
    assert run["bytes"] == entries.size_bytes(str(runs / "A")) > 0
    assert run["metrics"]["val_auc"] == 0.9
    assert 0 <= run["age_s"] < 3600
    assert rows["B"]["status"] == "unknown"
    assert [rows[f"S/{number}"]["status"] for number in range(3)] == ["completed", "completed", "waiting"]
    sweep = rows["S"]
    assert (sweep["status"], sweep["jobs"]) == ("interrupted", {"completed": 2, "waiting": 1})
    assert (sweep["metric"], sweep["value"], sweep["best"]) == ("val_auc", 0.9, "1")
    assert sweep["bytes"] >= rows["S/0"]["bytes"] + rows["S/1"]["bytes"]


@pytest.mark.parametrize("root", [".", "runs", "./runs/S"])
def test_the_jobs_of_a_sweep_are_found_from_any_folder(runs, capfd, root):
    (sweep,) = (row for row in listed(capfd, root) if "jobs" in row)
    assert sweep["jobs"] == {"completed": 2, "waiting": 1}


@pytest.mark.command
@pytest.mark.parametrize(
    "arguments",
    ["list runs", "report runs", "rm runs --older-than 0min --dry-run", "logs A", "rm runs/A", "resume=A",
     "stop runs/group/x", "resume=runs/group/x"],
)  # fmt: skip
def test_a_folder_that_cannot_be_read_hides_no_other(runs, arguments):
    """As a person without the rights of root, who shares the folder with others."""
    capabilities = "-dac_override,-dac_read_search"
    drop = ["setpriv", f"--bounding-set={capabilities}", f"--inh-caps={capabilities}"] if os.getuid() == 0 else []
    shutil.copytree(runs / "C", runs / "group" / "x")
    closed = [runs / "A", runs / "group"]
    for folder in closed:
        folder.chmod(0)
    try:
        ended = subprocess.run([*drop, sys.executable, "-m", "psrun", *arguments.split()], timeout=60, check=False,
                               capture_output=True, text=True, env=environment())  # fmt: skip
    finally:
        for folder in closed:
            folder.chmod(0o755)
    assert "Traceback" not in ended.stderr
    named = re.search(r"[ =](\S+[Ax]|A)$", arguments)
    if named:
        assert ended.returncode in (1, 2)
        assert f"runs/{named[1].removeprefix('runs/')} cannot be read" in ended.stderr
    else:
        assert ended.returncode == 0, ended.stderr
        assert {"B", "C"} <= {word.removeprefix("runs/").rstrip(",") for word in ended.stdout.split()}


def test_where_a_run_is(tmp_path):
    here = {"host": "n0", "pid": 1}
    of_slurm = a_run(tmp_path / "slurm", process={**here, "slurm_job": "7"}, config={"cluster": {"kind": "slurm"}})
    of_ray = a_run(tmp_path / "ray", process=here, config={"cluster": {"kind": "ray", "address": "head:6379"}})
    where = [entries.of_run(str(folder)).row["where"] for folder in (of_slurm, of_ray)]
    assert where == ["job 7 on n0", "head:6379"]


def test_conditions_and_the_order_are_those_of_a_report(runs, capfd):
    shutil.rmtree(runs / "S")
    chosen = ["--where", "num_workers>=2", "--where", "status=completed", "--sort", "-val_auc"]
    report([str(runs), *chosen, "--json", "-"])
    reported = json.loads(capfd.readouterr().out)
    rows = listed(capfd, *chosen)
    assert names(rows) == names(reported) == ["B", "C"]
    assert [row["cluster.num_workers"] for row in rows] == [2, 3]  # a key that is named is a column
    assert names(listed(capfd, "--sort", "-size", "--sort", "run")) == ["A", "B", "C"]
    list_runs(["--sort", "num_workers"])
    assert capfd.readouterr().out.splitlines()[0].split()[:4] == ["run", "status", "metric", "num_workers"]


def test_a_sweep_has_what_all_of_its_jobs_have(runs, capfd):
    assert "S" in names(listed(capfd, "--where", "model.embedding_dim=20"))
    assert "S" not in names(listed(capfd, "--where", "seed=1"))


def test_the_name_of_a_run(runs, capfd):
    file = runs / "A" / "notes.json"
    file.write_text('{"name": "other", "more": 1}')
    run_folder.write_name(runs / "A", "baseline")
    assert json.loads(file.read_text()) == {"name": "baseline", "more": 1}
    (row,) = listed(capfd, "--where", "name=baseline")
    assert row["name"] == "baseline"
    assert "A" not in names(listed(capfd, "--where", "name!=baseline"))
    assert names(listed(capfd, "--where", "name=B")) == ["B"]  # one without a name has that of its folder
    report([str(runs), "--where", "name=B", "--json", "-"])
    assert names(json.loads(capfd.readouterr().out)) == ["B"]
    report([str(runs / "A"), str(runs / "B")])
    shown = capfd.readouterr().out
    assert "baseline" in shown


def test_the_metric_is_the_one_that_the_configuration_names(tmp_path, capfd):
    configured = OmegaConf.to_yaml({"cluster": {"kind": "ray", "address": "a:1"}, "reduce_lr": {"metric": "val_auc"}})
    by_hand = '{"cluster": {"kind": "ray", "address": "a:1"}, "reduce_lr": {"metric": "val_auc"}}'
    for name, text in {"written": configured, "by-hand": by_hand, "commented": f"# note\n{configured}# note\n"}.items():
        (a_run(tmp_path / name) / "config.yaml").write_text(text)
    for row in listed(capfd, str(tmp_path)):
        assert (row["metric"], row["engine"], row["where"]) == ("val_auc", "ray", "a:1")


def test_the_model_and_what_differs(runs, capfd):
    """Of the overrides, also of a sweep; of jobs, among the jobs of their sweep."""
    rows = {row["run"]: row for row in listed(capfd, "--jobs")}
    assert {row["model"] for row in rows.values()} == {"embedding"}
    workers, seed = "cluster.num_workers", "seed"
    both = {"partitioner": "none"}  # the sweep has no such override
    assert rows["A"]["differs"] == {workers: "1", **both, seed: "1"}
    assert rows["S"]["differs"] == {seed: "1,2,3"}
    assert [rows[f"S/{number}"]["differs"] for number in (0, 1)] == [{workers: "2", **both, seed: s} for s in "01"]
    shutil.rmtree(runs / "S")
    list_runs([])
    lines = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert lines[0][3:5] == ["model", "differs"]
    assert [line[4:6] for line in lines[1:4]] == [["embedding", f"num_workers={number}"] for number in (1, 2, 3)]


def test_what_differs_is_cut_to_the_width_of_a_terminal(tmp_path, monkeypatch, capfd):
    """The key with the most values and the shortest name first, and of a path its end."""
    for name in "ab":
        overrides = ["data=table", f"data.path=/a/long/path/to/some/{name}.csv", f"model.x={name}"]
        overrides += ["trainer.epochs=3"] * (name == "b")
        a_run(tmp_path / name, overrides=overrides)
    console = Console(force_terminal=True, width=62, color_system=None)
    monkeypatch.setattr(commands, "Console", lambda **options: console)
    list_runs([str(tmp_path)])
    plain = re.sub(r"\x1b\[[\d;]*m", "", capfd.readouterr().out)
    lines = [line for line in plain.splitlines() if line.startswith(("a ", "b "))]
    assert [line.partition("  x=")[2] for line in lines] == ["a path=…/path/to/s…", "b path=…/path/to/s…"]
    assert max(map(len, lines)) <= 62


def test_a_narrow_terminal_has_a_line_a_run_and_says_what_it_hides(tmp_path, monkeypatch, capfd):
    names_of_runs = [f"2026-11-29_17-42-3{number}-two_tower-17b{number}" for number in range(3)]
    for name in names_of_runs:
        a_run(tmp_path / name, overrides=[f"run.tag={name}"])
    a_recorded_sweep(tmp_path / "sweep")
    console = Console(force_terminal=True, width=70, color_system=None)
    monkeypatch.setattr(commands, "Console", lambda **options: console)
    list_runs([str(tmp_path)])
    plain = re.sub(r"\x1b\[[\d;]*m", "", capfd.readouterr().out)
    head, *lines = plain[plain.index("run  ") :].splitlines()  # after the spinner
    assert head.split() == ["run", "status", "metric", "model"]
    for line, name in zip(lines, names_of_runs):
        begin, _, end = line.split()[0].partition("…")
        assert len(end) > 10
        assert name.startswith(begin)
        assert name.endswith(end)
    assert "interrupted (2 of 3)" in lines[3]
    assert "hidden columns: differs, age, size, engine, where" in plain
    assert max(map(len, [head, *lines])) <= 70


def test_the_metric_of_a_run_with_a_best_checkpoint_is_the_one_of_that_checkpoint(tmp_path, capfd):
    best = {"step": 100, "metric": "val_auc", "mode": "max", "value": 0.95}
    a_run(tmp_path / "a", best_checkpoint=best)
    (row,) = listed(capfd, str(tmp_path))
    assert (row["metric"], row["value"], row["metrics"]["val_auc"]) == ("val_auc", 0.95, 0.9)
    list_runs([str(tmp_path)])
    assert "best val_auc 0.95" in capfd.readouterr().out


def test_folders_without_runs(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    list_runs([])
    assert capfd.readouterr().out == "no runs below runs\n"
    a_run(tmp_path / "one")
    assert names(listed(capfd, "one")) == ["one"]


def test_the_age_of_a_sweep_is_the_time_since_its_first_job(tmp_path, capfd):
    """Also after it was resumed."""
    sweep = a_recorded_sweep(tmp_path / "S", started_s=time.time())
    result = tmp_path / "S" / "0" / "run.json"
    result.write_text(json.dumps({**json.loads(result.read_text()), "started_s": sweep.started_s - 500}))
    (row,) = listed(capfd, str(tmp_path))
    assert row["age_s"] == pytest.approx(500, abs=60)


def test_ages():
    assert [age(seconds) for seconds in (0.2, 59, 60, 7200, 86400 * 3, 86400 * 21)] == [
        "0 s", "59 s", "1 min", "2 h", "3 d", "3 w",
    ]  # fmt: skip
