"""`psrun list`, `logs`, `stop` and `rm` on runs that are under way, and by two people at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from bounds import BOUND_S
from fault_injection import MOSTLY_WAITING
from recorded_runs import a_run
from support import environment, many_epochs

EPOCH = 20  # steps
LONG = [
    "data.num_train_examples=500", "data.num_eval_examples=100", "evaluation=none", many_epochs(EPOCH),
    f"trainer.steps_per_epoch={EPOCH}", MOSTLY_WAITING,
]  # fmt: skip
# What one person does in a runs/ folder, in turns: a run begins and ends, and an older one is removed.
PERSON = """
import sys
from pathlib import Path
from psrun.runs import remove
from psrun.runs.listing import commands
from psrun.results.run_folder import RunFolder

me, turns = sys.argv[1], int(sys.argv[2])
for turn in range(turns):
    folder = RunFolder.create(Path("runs", f"{me}-{turn}"), raw={"seed": turn})
    folder.emit("begun", overrides=[f"seed={turn}"], started_s=0.0)
    commands.main(["--json"])
    folder.emit("ended", status="completed", exit_code=0, metrics={"loss": float(turn)})
    if turn % 2:
        remove.main([f"{me}-{turn - 1}", "--yes"])
"""


def psrun(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "psrun", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=BOUND_S, check=False
    )


def rows(folder: Path, *arguments: str) -> dict[str, dict]:
    done = psrun("list", *arguments, "--json", folder=folder)
    return {row["run"]: row for row in json.loads(done.stdout)}


@pytest.mark.command
def test_a_run_is_followed_and_stopped_by_its_name(start, tmp_path):
    run = start("cluster=inprocess", "hydra.run.dir=runs/one", "run.name=first try", *LONG)
    run.wait_for("checkpoint")
    run.wait(lambda: (run.folder / "notes.json").exists(), "name")
    shown = run.root / "shown"
    with shown.open("wb") as out:
        view = subprocess.Popen(
            [sys.executable, "-m", "psrun", "logs", "first try", "--follow", "--all"],
            cwd=run.root, env=environment(), stdout=out, stderr=subprocess.PIPE,
        )  # fmt: skip
    row = rows(run.root)["one"]
    assert (row["name"], row["status"], row["engine"]) == ("first try", "running", "inprocess")
    assert psrun("rm", "one", "--yes", folder=run.root).returncode == 2
    assert psrun("logs", "one", "--tasks", folder=run.root).stdout == "chief-0\n"
    stopped = psrun("stop", "first try", folder=run.root)
    assert (stopped.returncode, stopped.stderr) == (0, "")
    saved = run.result["checkpoints"][-1]["step"]
    assert f"runs/one: interrupted, checkpoint of step {saved}; to resume: psrun resume runs/one\n" in stopped.stdout
    assert run.end() == 130
    assert saved == run.result["steps"]["applied"]
    assert view.wait(BOUND_S) == 0
    assert shown.read_bytes() == (run.folder / "logs" / "chief-0.log").read_bytes()
    assert view.stderr is not None
    assert view.stderr.read() == b""
    again = psrun("stop", "one", folder=run.root)
    assert (again.returncode, "there is nothing to stop" in again.stdout) == (0, True)
    assert rows(run.root, "--where", "status=interrupted")["one"]["metrics"]
    resumed = psrun("--cfg", "job", "resume=first try", folder=run.root)
    assert resumed.returncode == 0, resumed.stderr
    assert "name: first try" in resumed.stdout
    assert psrun("rm", "first try", "--yes", folder=run.root).returncode == 0
    assert os.listdir(run.root / "runs") == []


@pytest.mark.cluster
def test_a_local_cluster_is_stopped_at_once_and_another_was_killed(start):
    run = start("cluster=local", *LONG)
    run.wait_for("checkpoint")
    for name in ("chief-0", "worker-0", "worker-1", "ps-0", "ps-1"):
        run.task(name)
    run.look(now=True)
    assert psrun("logs", str(run.folder), "worker", folder=run.root).returncode == 2
    assert psrun("logs", str(run.folder), "worker-1", folder=run.root).returncode == 0
    stopped = psrun("stop", "--now", str(run.folder), folder=run.root)
    assert stopped.returncode == 0, stopped.stderr
    assert run.end() == 130
    # The kernel ends the fork server with its supervisor, and takes a moment for it.
    run.wait(lambda: not run.left(), "end of all processes", within_s=10)
    assert run.result["status"] == "interrupted"

    killed = start("cluster=local", *LONG)
    killed.wait_for("checkpoint")
    killed.look(now=True)
    killed.process.kill()
    killed.process.wait()
    killed.wait(lambda: "gone" in psrun("stop", str(killed.folder), folder=killed.root).stdout, "a run that is gone")


@pytest.mark.command
def test_a_view_of_a_log_ends_by_a_signal_and_the_run_does_not(tmp_path):
    """The run is this process."""
    here = {"status": "running", "process": None}
    folder = a_run(tmp_path / "runs" / "A", **here)
    (folder / "logs").mkdir()
    log = folder / "logs" / "chief-0.log"
    log.write_text("first\n")
    command = [sys.executable, "-m", "psrun", "logs", "A", "-f"]
    view = subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert view.stdout is not None
    assert view.stdout.readline() == "first\n"
    with log.open("a") as file:
        file.write("second\n")
    assert view.stdout.readline() == "second\n"
    log.write_text("anew\n")  # shorter than before
    assert view.stdout.readline() == "anew\n"
    view.send_signal(signal.SIGINT)
    _, said = view.communicate(timeout=BOUND_S)
    assert view.returncode == 130
    assert "the run continues" in said


@pytest.mark.command
def test_two_people_use_one_folder_at_once(tmp_path):
    """Whatever both do, no run is lost, and nothing fails."""
    turns = 12
    a_run(tmp_path / "runs" / "both")
    people = [
        subprocess.Popen(
            [sys.executable, "-c", PERSON, name, str(turns)],
            cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for name in ("ann", "bob")
    ]  # fmt: skip
    for each in people:
        _, said = each.communicate(timeout=BOUND_S)
        assert (each.returncode, said) == (0, "")
    left = {f"{name}-{turn}" for name in ("ann", "bob") for turn in range(1, turns, 2)}
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"both", *left}
    listed = rows(tmp_path)
    assert set(listed) == {"both", *left}
    assert Counter(row["status"] for row in listed.values()) == {"completed": len(left) + 1}
