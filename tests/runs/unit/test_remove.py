"""`psrun rm`: what it removes, and what it refuses to remove."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from recorded_runs import a_recorded_sweep, a_run
from rich.console import Console

from psrun import files, process
from psrun.errors import ConfigError
from psrun.runs import remove
from psrun.runs.remove import main
from psrun.runs.sweeps.sweep_state import SweepReader

DAY_S = 86400


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch) -> Path:
    """Runs A and B, and the sweep S, whose job 1 is the best."""
    monkeypatch.chdir(tmp_path)
    for name in "AB":
        a_run(tmp_path / "runs" / name)
    a_recorded_sweep(tmp_path / "runs" / "S")
    return tmp_path / "runs"


def there(runs: Path) -> list[str]:
    return sorted(str(path.parent.relative_to(runs)) for path in runs.rglob("config.yaml"))


def refused(*arguments: str, because: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(because)):
        main([*arguments, "--yes"])


def refer(run: Path, key: str, value: str) -> None:
    config = OmegaConf.load(run / "config.yaml")
    OmegaConf.update(config, key, value)
    OmegaConf.save(config, run / "config.yaml")


def test_a_run_and_a_sweep_are_removed_and_the_rest_stays(runs, capsys):
    size = sum(path.stat().st_blocks * 512 for path in (runs / "A").rglob("*"))
    assert main(["A", "--dry-run"]) == 0
    assert "A" in there(runs)
    assert main(["A", "--yes"]) == 0
    assert f"{size / 1000:.1f} kB freed" in capsys.readouterr().out
    assert main(["S", "--yes"]) == 0
    assert sorted(os.listdir(runs)) == ["B"]


def test_only_the_best_job_of_a_sweep_is_kept(runs):
    before = there(runs)
    main(["S", "--keep-best", "--yes"])
    assert there(runs) == [each for each in before if each not in ("S/0", "S/2")]
    state = SweepReader(runs / "S").look()
    assert [(job.number, job.status) for job in state.jobs] == [(1, "completed")]
    refused("A", "--keep-best", because="A is a single run")


def test_a_needed_run_whose_name_is_not_ascii_is_not_removed(runs):
    (runs / "A").rename(runs / "é")
    refer(runs / "B", "evaluation.checkpoint_dir", "runs/é/checkpoints")
    refused("é", because="is needed by runs/B")


def test_what_runs_is_not_removed(runs):
    a_run(runs / "C", status="running", process=process.this_process())
    refused("C", because="is running")
    held = files.lock(runs / "B")  # it has just begun
    assert held is not None
    refused("A", "B", because="runs/B is running")
    os.close(held)
    assert {"A", "B", "C"} <= {*there(runs)}
    a_recorded_sweep(runs / "T", status="running", host="elsewhere")
    refused("T", because="is running")
    refused("T", "--keep-best", because="is running")
    a_run(runs / "D", status="running", process={**process.this_process(), "pid": 2**22 + 1})
    os.utime(runs / "D" / "run.json", (0, 0))
    os.utime(runs / "D" / "metrics.jsonl", (0, 0))
    assert main(["D", "--yes"]) == 0  # it was killed


def test_what_others_need_is_not_removed(runs):
    refused("S/0", because="is a job of the sweep runs/S")
    refer(runs / "B", "evaluation.checkpoint_dir", "runs/A/checkpoints")
    refused("A", because="is needed by runs/B, whose evaluation.checkpoint_dir is runs/A/checkpoints")
    refer(runs / "A", "resume", str(runs / "A"))
    assert main(["A", "B", "--yes"]) == 0  # together
    refer(runs / "S" / "1", "init", str(runs / "S" / "0"))
    refused("S", "--keep-best", because="is needed by runs/S/1")
    assert main(["S", "--yes"]) == 0


def test_old_runs_below_a_folder(runs, capsys):
    now_s = time.time()
    for folder, days in (("A", 40), ("B", 20), ("S/0", 40), ("S/1", 40)):
        for file in (runs / folder).iterdir():
            os.utime(file, (now_s - days * DAY_S,) * 2)
    refused("runs", because="is neither a run nor a sweep")
    main(["runs", "--older-than", "30d", "--yes"])
    assert "A" not in there(runs)
    assert {"B", "S/0", "S/1"} <= {*there(runs)}  # something of the sweep is new
    for file in (runs / "S" / "sweep.json", runs / "S" / "2" / "config.yaml", runs / "S" / "2"):
        os.utime(file, (now_s - 40 * DAY_S,) * 2)
    refer(runs / "B", "evaluation.checkpoint_dir", "runs/S/0/checkpoints")
    capsys.readouterr()
    main(["runs", "--older-than", "4w", "--yes"])
    assert "kept runs/S: is needed by runs/B" in capsys.readouterr().out
    main(["runs", "B", "--older-than", "480h", "--yes"])
    assert there(runs) == []


def test_an_interrupted_removal_leaves_no_half_run(runs, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            main(["A", "--yes"])
    (left,) = [name for name in os.listdir(runs) if name.startswith(".removed-A")]
    assert (runs / left / "run.json").exists()
    refused("A", because="there is no folder A")
    main(["B", "--yes"])
    assert sorted(os.listdir(runs)) == ["S"]


def interrupted(path: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["A", "S"])
def test_of_a_link_the_link_alone_is_removed(runs, capsys, name):
    runs.with_name("store").mkdir()
    (runs / name).rename(runs.with_name("store") / name)
    (runs / name).symlink_to(f"../store/{name}")
    before = there(runs.with_name("store"))
    assert main([f"runs/{name}", "--yes"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == [f"runs/{name}  a link to ../store/{name}, which stays", "removed 1 link, 0 bytes freed"]
    assert not (runs / name).is_symlink()
    assert there(runs.with_name("store")) == before
    assert [path.name for path in runs.iterdir() if path.name.startswith(".removed")] == []


def test_links_that_lead_nowhere_or_into_a_sweep_and_links_beside_folders(runs, capsys):
    (runs / "nowhere").symlink_to("../store/N")
    (runs / ".removed-nowhere-1").symlink_to("../store/N")  # of an earlier removal
    kept = runs.with_name("kept")
    (runs / "S" / "1").rename(kept)
    (runs / "S" / "1").symlink_to(kept)
    (runs / "of B").symlink_to("B")
    assert main(["runs/nowhere", "runs/of B", "runs/B", "runs/S", "--yes"]) == 0
    assert "removed 2 folders and 2 links" in capsys.readouterr().out
    assert sorted(os.listdir(runs)) == ["A"]
    assert (kept / "config.yaml").exists()


def test_a_link_to_a_running_run_stays(runs):
    (runs / "link").symlink_to("A")
    held = files.lock(runs / "A")
    try:
        refused("runs/link", because="is running; psrun stop ends it")
    finally:
        os.close(held)
    assert (runs / "link").is_symlink()


@pytest.mark.parametrize(("answer", "remains"), [("y", False), ("", True), ("n", True)])
def test_a_question_on_a_terminal(runs, monkeypatch, answer, remains):
    monkeypatch.setattr(remove, "Console", lambda **options: Console(force_terminal=True, **options))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(Console, "input", lambda *arguments, **options: answer)
    assert main(["A"]) == 0
    assert ("A" in there(runs)) == remains


def test_a_damaged_run_is_removed_too(runs):
    (runs / "A" / "run.json").write_text("{")
    (runs / "A" / "config.yaml").write_text("a: [")
    (runs / "S" / "1" / "notes.json").write_text(json.dumps([]))
    assert main(["A", "--yes"]) == 0
    assert there(runs)[0] == "B"
