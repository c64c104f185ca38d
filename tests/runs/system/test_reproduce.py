"""What a run records of its code, its data and its environment, and `psrun reproduce` with that record."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest
from outcomes import check_rebuilt

from psrun.results.run_folder import RunFolder

pytestmark = pytest.mark.command

NET = """
import tf_keras
from own.units import WIDTH

def net(source):
    inputs = {name: tf_keras.Input((1,), name=name) for name in source.features}
    joined = tf_keras.layers.Concatenate()(list(inputs.values()))
    hidden = tf_keras.layers.Dense(WIDTH, activation="relu")(joined)
    return tf_keras.Model(inputs, tf_keras.layers.Dense(1)(hidden))

def late(context):
    import own.late
"""
TRAINING = (
    "model._target_=own.net.net", "~model.embedding_dim", "data=table", "data.path=rows.csv", "data.label=y",
    "data.task=regression",
    "data.features={a: {dtype: float32}, b: {dtype: float32}}", "data.global_batch_size=16", "cluster=none",
    "trainer.epochs=2", "trainer.steps_per_epoch=10", "trainer.hooks=[{_target_: own.net.late, every_epochs: 1}]",
)  # fmt: skip


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    return subprocess.run(
        ["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True, timeout=60
    ).stdout.strip()


@pytest.fixture
def project(tmp_path) -> Path:
    """A repository with a package and data, in which a file is changed and another one staged."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__init__.py").write_text("")
    (tmp_path / "own" / "net.py").write_text(NET)
    (tmp_path / "own" / "units.py").write_text("WIDTH = 4\n")
    (tmp_path / "notes.txt").write_text("first\n")
    numbers = random.Random(1)
    rows = [(numbers.random(), numbers.random()) for _ in range(200)]
    (tmp_path / "rows.csv").write_text("a,b,y\n" + "".join(f"{a:.4f},{b:.4f},{a - b:.4f}\n" for a, b in rows))
    git(tmp_path, "init", "-q", "-b", "trunk")
    git(tmp_path, "add", "own", "notes.txt")
    git(tmp_path, "commit", "-q", "-m", "first")
    (tmp_path / "own" / "units.py").write_text("WIDTH = 5\n")
    (tmp_path / "notes.txt").write_text("second\n")
    git(tmp_path, "add", "notes.txt")
    (tmp_path / "own" / "late.py").write_text("LATE = True\n")  # untracked, and imported by a hook
    return tmp_path


def test_a_run_is_reproduced_with_the_code_that_it_recorded(psrun, project):
    done = psrun(*TRAINING, "run.name=first")
    assert done.code == 0, done.stderr
    assert (done.folder / "notes.json").exists()
    code = done.result["code"]
    assert (code["commit"], code["branch"], code["dirty"]) == (git(project, "rev-parse", "HEAD"), "trunk", True)
    diff = (done.folder / code["diff"]).read_text()
    assert ["+WIDTH = 5" in diff, "+second" in diff] == [True, True]
    assert set(code["modules"]) == {"own", "own.net", "own.units", "own.late"}
    for name, copy in code["modules"].items():
        source = project / (name.replace(".", "/") + ("/__init__.py" if name == "own" else ".py"))
        assert (done.folder / copy).read_bytes() == source.read_bytes()
    data = (project / "rows.csv").read_bytes()
    recorded = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    assert done.result["data"]["hashes"] == {"rows.csv": recorded}
    here = done.result["environment"]
    assert {name: here["packages"][name] for name in ("numpy", "tf-keras")} == {
        name: version(name) for name in ("numpy", "tf-keras")
    }
    assert here["hardware"]["memory_bytes"] > here["hardware"]["cores"] > 0

    (project / "own" / "units.py").write_text("WIDTH = 50\n")
    (project / "own" / "late.py").unlink()
    git(project, "commit", "-q", "-a", "-m", "second")
    again = psrun("reproduce", "run", "again", folder="again")
    assert again.code == 0, again.stdout + again.stderr
    assert "all numbers are equal" in again.stdout
    for part in (code["commit"], "module own.units", "module own.late"):
        assert part in again.stdout
    assert again.result["metrics"] == done.result["metrics"]
    assert again.result["reproduction"]["equal"] is True
    check_rebuilt(again.folder)
    assert again.result["code"] == code  # not that of the tree today
    assert (again.folder / "code/dirty.diff").read_bytes() == (done.folder / "code/dirty.diff").read_bytes()
    assert (again.folder / "code/modules/own/units.py").read_text() == "WIDTH = 5\n"
    assert again.result["overrides"] == done.result["overrides"]
    assert not (again.folder / "notes.json").exists()  # the name still means one run

    other = psrun("reproduce", "run", "other", "seed=2", folder="other")
    assert (other.code, "not judged" in other.stdout) == (1, True)
    assert other.result["reproduction"]["reproduced"] is False
    assert other.result["metrics"] != done.result["metrics"]

    with (project / "rows.csv").open("a") as file:
        file.write("0.5,0.5,0\n")
    refused = psrun("reproduce", "run", folder="refused")
    assert (refused.code, "rows.csv" in refused.stderr, refused.folder.exists()) == (2, True, False)
    anyway = psrun("reproduce", "run", "anyway", "--anyway", folder="anyway")
    assert (anyway.code, "data rows.csv" in anyway.stdout) == (1, True)


def test_a_dry_run_of_a_resumed_run_names_what_differs_without_tensorflow(psrun, project):
    done = psrun(*TRAINING)
    assert done.code == 0, done.stderr
    (project / "own" / "units.py").write_text("WIDTH = 5  # as before\n")
    resumed = psrun("resume=run", "trainer.epochs=3")
    assert resumed.code == 0, resumed.stderr
    assert resumed.result["code"]["resumed_with_other_code"] is True
    assert "the code changed since the run last trained: own/units.py" in " ".join(resumed.stdout.split())
    assert "as before" in (done.folder / "code/modules/own/units.py").read_text()
    (project / "tensorflow.py").write_text("raise RuntimeError('imported')\n")
    same = psrun("reproduce", "run", "--dry-run")
    assert (same.code, "Environment: no difference" in same.stdout) == (0, True)
    assert "resumed with other code" in same.stdout
    (versions,) = [line for line in same.stdout.splitlines() if line.startswith("the same: python ")]
    for name in ("tensorflow", "tf-keras", "keras", "numpy", "psrun"):
        assert f", {name} {version(name)}" in versions
    environment = done.result["environment"]
    environment["packages"] |= {"gone": "7"}
    RunFolder(done.folder).emit("environment", **environment)
    counted = psrun("reproduce", "run", "--dry-run")
    assert counted.code == 0
    assert "1 other package differs (gone); neither psrun nor the modules of the run import them" in counted.stdout
    environment["packages"] |= {"numpy": "0.1"}
    environment["hardware"]["cpu"] = "Abacus"
    RunFolder(done.folder).emit("environment", **environment)
    differs = psrun("reproduce", "run", "--dry-run")
    assert differs.code == 1
    lines = [line.split() for line in differs.stdout.splitlines()]
    assert ["package", "numpy", "0.1", version("numpy")] in lines
    assert ["package", "gone", "7", "-"] not in lines
    assert any(line[:3] == ["hardware", "cpu", "Abacus"] for line in lines)


@pytest.mark.thorough
def test_a_job_of_an_asynchronous_sweep_is_judged_by_the_seeds_of_the_sweep(psrun, tmp_path):
    small = (
        "data.num_train_examples=500",
        "data.num_eval_examples=100",
        "trainer.epochs=1",
        "trainer.steps_per_epoch=40",
    )
    done = psrun("-m", *small, "seed=1,2,3", "hydra.sweep.dir=sweep")
    assert done.code == 0, done.stderr
    again = psrun("reproduce", "sweep/0", folder="runs/reproduced/sweep-0-again")
    verdict = again.result["reproduction"]
    assert again.code == (0 if verdict["reproduced"] else 1)
    assert verdict["equal"] or "95 % prediction interval of 3 seeds" in verdict["verdict"]
    assert "interval of 3 seeds" in " ".join(again.stdout.split())
    record = json.loads((tmp_path / "sweep" / "0" / "run.json").read_text())
    assert again.result["steps"] == record["steps"]


@pytest.mark.thorough
def test_one_worker_and_synchronous_ones_give_equal_numbers_however_fast_they_are(psrun):
    """Three gradients: their sum depends on their order."""
    small = ("model=wide_deep", "data=features", "trainer.epochs=1", "trainer.steps_per_epoch=40")
    one = psrun(*small, "cluster.num_workers=1", folder="one")
    again = psrun("reproduce", "one", "again", folder="again")
    assert (again.code, again.result["reproduction"]["equal"]) == (0, True), again.stdout
    assert again.result["metrics"] == one.result["metrics"]
    workers = ("cluster.num_workers=3", "consistency=sync")
    first = psrun(*small, *workers, "cluster.slow_workers={0: 0.01}", folder="first")
    last = psrun("reproduce", "first", "last", "cluster.slow_workers={2: 0.01}", folder="last")
    assert (last.code, last.result["reproduction"]["equal"]) == (0, True), last.stdout
    assert last.result["metrics"]["val_loss"] == first.result["metrics"]["val_loss"]
