"""A run.json that is lost, of runs of each mode and each end: the events of metrics.jsonl add up to the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from outcomes import check_rebuilt
from support import HARNESS, environment

pytestmark = pytest.mark.command

SMALL = ["data.num_train_examples=200", "data.num_eval_examples=50", "trainer.steps_per_epoch=6"]
DENSE = [*SMALL, "model=dense", "cluster=none", "trainer.epochs=1"]
# By the folder: runs that follow each other, with their exit codes. The run is in `run` of the folder.
RUNS = {
    "in-process": [([*SMALL, "trainer.epochs=1"], 0)],
    "trained": [
        ([*DENSE, "evaluation=none", "export.at_end=true"], 0),
        (["mode=evaluate", "evaluation=direct"], 0),
        (["mode=predict"], 0),
        (["mode=export"], 0),
        (["model.hidden_units=[3]", "trainer.epochs=2"], 2),
        (["trainer.epochs=3"], 0),
    ],
    "failed": [([*DENSE, "optimizer=sgd", "optimizer.learning_rate=1e20"], 1)],
    "planned": [(["mode=plan"], 0)],
    "refused": [(["evaluation=validation"], 2)],
}
STATUS = {
    "in-process": "completed",
    "trained": "completed",
    "failed": "failed",
    "planned": "completed",
    "refused": "failed",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """The folder of the runs, which are forked from one process that has imported TensorFlow."""
    root = tmp_path_factory.mktemp("runs")
    commands = []
    expected = []
    for name, following in RUNS.items():
        folder = root / name
        folder.mkdir()
        place = f"hydra.run.dir={folder / 'run'}"
        for arguments, code in following:
            commands.append([str(folder), {}, [*arguments, place]])
            expected.append((name, arguments, code))
            place = f"resume={folder / 'run'}"
    done = subprocess.run(
        [sys.executable, str(HARNESS / "forked_runs.py")],
        input=json.dumps(commands), capture_output=True, text=True, env=environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for (name, arguments, code), exit_code in zip(expected, json.loads(done.stdout)):
        assert exit_code == code, f"{name} {arguments}: {(root / name / 'output').read_text()}"
    return root


@pytest.mark.parametrize("name", RUNS)
def test_the_events_of_a_run_add_up_to_its_result(root, name):
    folder = root / name / "run"
    assert json.loads((folder / "run.json").read_text())["status"] == STATUS[name]
    check_rebuilt(folder)
