"""A signal ends a run well in each of its phases: exit code, status, one sentence, and nothing left."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from bounds import BOUND_S
from support import HARNESS, environment, many_epochs

pytestmark = pytest.mark.cluster

PHASES = ["import", "data", "build", "connect", "trace", "step", "evaluation", "save", "export", "predict"]
SIGNALS = {"SIGINT": 130, "SIGTERM": 175, "SIGHUP": 175}
RUN = [
    "model=dense", "~model.hidden_units", "model._target_=interrupted.model",
    "data=regression", "~data.num_train_examples", "~data.num_eval_examples", "~data.num_features", "~data.noise",
    "data._target_=interrupted.Numbers", "data.global_batch_size=16", "trainer.epochs=2", "trainer.steps_per_epoch=4",
    "trainer.hooks=[{_target_: interrupted.hook, every_steps: 1}]", "export.at_end=true",
]  # fmt: skip
CLUSTERS = {
    "none": ["cluster=none"],
    "inprocess": ["cluster=inprocess", "cluster.num_workers=1", "cluster.num_ps=1"],
    "local": ["cluster=local", "cluster.num_workers=1", "cluster.num_ps=1", "trainer=fit"],
}
# `python -m pytest -m release tests/core/system/test_signals.py` has all of them.
CASES = [
    *(("none", phase, "SIGTERM") for phase in PHASES),
    ("none", "discarded", "SIGHUP"),
    ("inprocess", "build", "SIGHUP"),
    ("inprocess", "evaluation", "SIGINT"),
    ("local", "connect", "SIGTERM"),
    ("local", "step", "SIGINT"),
]


@dataclass(frozen=True)
class Outcome:
    """What a run that got a signal has left."""

    code: int
    output: str
    result: dict[str, Any]
    processes: list[psutil.Process]
    files: list[Path]


def outcomes(cases: list[tuple[str, str, str]], root: Path) -> dict[tuple[str, str, str], Outcome]:
    """Runs all cases in processes that are forked from one that has imported TensorFlow."""
    runs = []
    for number, (cluster, phase, signal) in enumerate(cases):
        folder = root / str(number)
        temporary = folder / "tmp"
        temporary.mkdir(parents=True)
        variables = {"PHASE": phase, "SIGNAL": signal, "TMPDIR": str(temporary)}
        arguments = [*RUN, *CLUSTERS[cluster], f"hydra.run.dir={folder / 'run'}"]
        if phase == "predict":
            runs.append([str(folder), {**variables, "PHASE": ""}, arguments])
            arguments = [f"resume={folder / 'run'}", "mode=predict"]
        runs.append([str(folder), variables, arguments])
    codes = dict(zip((folder for folder, _, _ in runs), forked(runs)))  # of each folder, the last run's
    return {case: _outcome(root / str(number), codes[str(root / str(number))]) for number, case in enumerate(cases)}


def forked(runs: list[list[Any]]) -> list[int]:
    """The exit codes of runs one after another, each a folder, variables and arguments."""
    done = subprocess.run(
        [sys.executable, str(HARNESS / "forked_runs.py")],
        input=json.dumps(runs), capture_output=True, text=True, env=environment(PYTHONPATH=str(HARNESS)), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _outcome(folder: Path, code: int) -> Outcome:
    result = json.loads((folder / "run" / "run.json").read_text())
    left = []
    for process in psutil.process_iter():
        try:
            if str(folder) in process.cwd():
                left.append(process)
        except psutil.Error:
            pass
    return Outcome(code, (folder / "output").read_text(), result, left, list((folder / "tmp").rglob("*")))


def check(case: tuple[str, str, str], outcome: Outcome) -> None:
    _, phase, signal = case
    said = [line for line in outcome.output.splitlines() if "interrupted" in line]
    assert outcome.code == SIGNALS[signal], outcome.output
    assert said == [f"psrun: interrupted by {signal}"]
    assert (outcome.processes, outcome.files) == ([], [])
    if phase == "predict":  # run.json belongs to the training
        assert outcome.result["status"] == "completed"
        return
    assert (outcome.result["status"], outcome.result["exit_code"]) == ("interrupted", SIGNALS[signal])
    assert outcome.result["error"]["message"] == f"interrupted by {signal}"
    if phase in ("trace", "step", "save", "evaluation", "export"):
        assert "to resume: psrun resume run\n" in outcome.output
        assert outcome.result["checkpoints"][-1]["step"] == outcome.result["steps"]["applied"] > 0


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    return outcomes(CASES, tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_a_signal_in_a_phase(interrupted, case):
    check(case, interrupted[case])


@pytest.mark.release
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_each_signal_in_each_phase(tmp_path, cluster):
    cases = list(itertools.product([cluster], PHASES, SIGNALS))
    for case, outcome in outcomes(cases, tmp_path).items():
        check(case, outcome)


def test_a_completed_run_stays_so_where_a_resumption_trains_no_step(tmp_path):
    run = tmp_path / "run"
    folder = str(tmp_path)
    resume = f"resume={run}"
    quiet = {"PHASE": ""}
    first, again = forked(
        [[folder, quiet, [*RUN, *CLUSTERS["none"], f"hydra.run.dir={run}"]], [folder, quiet, [resume]]]
    )
    before = (run / "run.json").read_text()
    output = (tmp_path / "output").read_text()
    assert (first, again) == (0, 0)
    assert output.count("run folder run") == 1  # the second did not start
    assert output.endswith("to train on, set trainer.epochs higher: psrun resume run trainer.epochs=4\n")
    ended = [
        [folder, {"PHASE": "build", "SIGNAL": "SIGTERM"}, [resume, "trainer.epochs=3"]],
        [folder, quiet, [resume, "model._target_=interrupted.no_model"]],
        [folder, quiet, [resume]],
        [folder, quiet, [resume, "trainer.epochs=3"]],
    ]
    assert forked(ended[:3]) == [175, 2, 0]
    assert (run / "run.json").read_text() == before
    output = (tmp_path / "output").read_text()
    assert "psrun: interrupted by SIGTERM\n" in output
    assert output.count("the run is completed, as it was before\n") == 1
    assert output.endswith("trainer.epochs=4\n")
    assert forked(ended[3:]) == [0]
    assert json.loads((run / "run.json").read_text())["steps"]["applied"] == 12


def test_a_resumed_run_without_a_checkpoint_says_so(tmp_path):
    run = tmp_path / "run"
    first = [*RUN, *CLUSTERS["none"], f"hydra.run.dir={run}"]
    variables = {"PHASE": "build", "SIGNAL": "SIGINT"}
    runs = [[str(tmp_path), variables, first], [str(tmp_path), {"PHASE": ""}, [f"resume={run}"]]]
    assert forked(runs) == [130, 0]
    output = (tmp_path / "output").read_text()
    assert "to resume" not in output  # there is nothing to go on from
    assert output.count("note: the run has no checkpoint: it starts from step 0\n") == 1


@pytest.mark.parametrize("cluster", ["none", "local"])
def test_a_terminal_that_is_closed_ends_a_run_after_a_checkpoint(tmp_path, cluster):
    """Its processes get SIGHUP, and what they write to it fails."""
    pexpect = pytest.importorskip("pexpect")
    endless = [many_epochs(50), "trainer.steps_per_epoch=50", "evaluation=none"]
    command = ["-m", "psrun", *CLUSTERS[cluster], *endless, f"hydra.run.dir={tmp_path / 'run'}"]
    child = pexpect.spawn(
        sys.executable, command, cwd=tmp_path, dimensions=(40, 140), timeout=BOUND_S, encoding="utf-8"
    )
    try:
        child.expect(r"epoch 2/")
        os.close(child.child_fd)
        _, status = os.waitpid(child.pid, 0)
    finally:
        if psutil.pid_exists(child.pid):
            os.kill(child.pid, 9)
    result = json.loads((tmp_path / "run" / "run.json").read_text())
    assert os.waitstatus_to_exitcode(status) == SIGNALS["SIGHUP"]
    assert (result["status"], result["error"]["message"]) == ("interrupted", "interrupted by SIGHUP")
    assert result["checkpoints"][-1]["step"] == result["steps"]["applied"] > 0
