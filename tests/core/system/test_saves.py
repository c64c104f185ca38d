"""Checkpoints of clusters of real processes: saves that are cut short, tables that do not fit the chief."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fault_injection import MOSTLY_WAITING
from support import REPOSITORY, many_epochs

pytestmark = pytest.mark.cluster

BENCHMARKS = REPOSITORY / "benchmarks"
HARNESS = REPOSITORY / "tests" / "harness"


def script(path: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(path), *arguments], capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_a_save_that_is_cut_short_costs_no_more_than_itself():
    message = script(HARNESS / "save_faults.py", "--kills", "2", "--rows", str(1 << 19))
    assert "2 kills, and the run went on from the last complete checkpoint" in message


@pytest.mark.release
def test_the_table_stays_on_the_parameter_servers(tmp_path):
    """A table of 256 MiB and as much again of slots: neither save, restore nor verify holds it in one place.

    A server, which has half of it, holds one copy of that.
    """
    report = tmp_path / "figures.json"
    script(
        BENCHMARKS / "checkpoint.py",
        "--rows",
        str(1 << 22),
        "--steps",
        "500",
        "--repetitions",
        "1",
        "--json",
        str(report),
    )
    (figures,) = json.loads(report.read_text())
    assert figures["bytes"] > 512 << 20
    assert figures["chief grows in a save, MiB"] < 100
    assert figures["a server grows in the first save, MiB"] < 256 + 64
    assert figures["a server grows in a later save, MiB"] < 64
    assert figures["chief grows in a restore, MiB"] < 100
    assert figures["verify holds at most, MiB"] < 100


def test_a_run_folder_that_is_deleted_ends_the_run(start):
    cluster = start("cluster=local", "cluster.num_ps=1", many_epochs(100), "data.num_train_examples=2000")
    cluster.wait_for("checkpoint", 2)
    gone = cluster.folder.with_name(
        "gone"
    )  # at once: what is written while it is removed would stay, and with it the run
    cluster.folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)
    assert cluster.end(within_s=60) == 1
    assert "was deleted under the run" in cluster.stderr
    assert cluster.left() == []


@pytest.mark.release
def test_a_chief_that_is_killed_within_an_epoch_resumes_from_the_backup_with_counts_that_are_right(start):
    """By Keras. A death at the end of an epoch is one of `test_backup_and_restore_hook`, in one process."""
    steps, epochs = 50, 6
    cluster = start(
        "cluster=local", "cluster.num_ps=1", "trainer=fit", "checkpoint=none", "evaluation=none",
        f"trainer.epochs={epochs}", f"trainer.steps_per_epoch={steps}", "data.num_train_examples=2000",
        "data.num_eval_examples=200", MOSTLY_WAITING,  # not done before the chief is killed
        "trainer.callbacks=[{_target_: tf_keras.callbacks.BackupAndRestore,"
        " backup_dir: '${hydra:runtime.output_dir}/backup'}]",
    )  # fmt: skip
    cluster.wait_for("epoch", 2)
    cluster.wait_for_step(2 * steps + 20)
    cluster.kill("chief-0")
    assert cluster.end() == 0, cluster.stderr
    result = cluster.result
    assert (result["steps"]["scheduled"], result["steps"]["applied"]) == (epochs * steps, epochs * steps)
    (restored,) = cluster.events("restored")
    assert restored["step"] % steps == 0
    ends = [(event["epoch"], event["step"]) for event in cluster.events("epoch")]
    assert all(step == epoch * steps for epoch, step in ends)
    assert ends[-1] == (epochs, epochs * steps)
    assert [row["task"] for row in result["recoveries"]] == ["chief-0"]
    assert cluster.left() == []
