"""The job steps of cluster=slurm with an srun that starts them here: their faults need no Slurm."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest
from fault_injection import MOSTLY_WAITING, Cluster
from support import many_epochs

pytestmark = pytest.mark.cluster

LONG = ["data.num_train_examples=500", "data.num_eval_examples=100", many_epochs(20), "evaluation=none",
        "trainer.steps_per_epoch=20", "cluster.num_ps=1", MOSTLY_WAITING]  # fmt: skip
SRUN = f"""#!{sys.executable}
import os, subprocess, sys
if any(each.startswith("--immediate") for each in sys.argv):
    sys.exit("srun: error: Unable to allocate resources")
command = [each for each in sys.argv[1:] if not each.startswith("--")]
count = next(int(each.partition("=")[2]) for each in sys.argv if each.startswith("--ntasks="))
tasks = [
    subprocess.Popen(command, env={{**os.environ, "SLURM_PROCID": str(i), "SLURMD_NODENAME": f"n{{i}}"}}, stdin=-1)
    for i in range(count)
]
while lines := os.read(0, 65536):
    for task in tasks:
        os.write(task.stdin.fileno(), lines) if task.poll() is None else None
for task in tasks:
    task.stdin.close()
for task in tasks:
    task.wait()
"""
SCONTROL = "#!/bin/sh\necho 'not here' >&2; exit 1\n"


@pytest.fixture
def job(start, tmp_path: Path):
    """Starts a chief, a parameter server and two workers, each on a node of its own, as a batch script would."""
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    here = {"SLURM_JOB_ID": "9", "SLURM_JOB_NODELIST": "n[0-3]", "SLURM_TASKS_PER_NODE": "1(x4)"}

    def run(*arguments: str) -> Cluster:
        return start("cluster=slurm", *LONG, *arguments, **here, PATH=f"{tmp_path}:{os.environ['PATH']}")

    return run


def step_of(run: Cluster, name: str) -> psutil.Process:
    """The process of a task's job step, its parent."""
    step = run.task(name).parent()
    assert step is not None
    return step


def test_a_lost_node_without_room_elsewhere_asks_for_another_start(job):
    run = job("cluster.heartbeat_timeout_s=5")
    run.wait_for("checkpoint")
    step_of(run, "worker-1").kill()
    assert run.end(within_s=60) == 175
    assert "node n3 is lost, and the job has no room for its tasks on other nodes" in run.stdout
    assert "Slurm job 9: the job cannot be requeued: not here" in run.stdout
    assert run.result["status"] == "interrupted"
    saved = run.result["checkpoints"][-1]["step"]
    assert saved == run.result["steps"]["applied"]  # the chief was not lost


def test_a_step_that_does_not_answer_is_lost(job):
    run = job("cluster.heartbeat_timeout_s=5", "cluster.restart.stop_timeout_s=5")
    run.wait_for("checkpoint")
    step = step_of(run, "ps-0")
    run.stop("ps-0")
    step.suspend()
    assert run.end(within_s=90) == 175
    assert "node n1 is lost" in run.stdout
    step.kill()  # it was stopped, and did not see the end of its input
    run.wait(lambda: not run.left(), "end of all tasks")


def test_a_start_that_was_given_up_ends(job):
    """Slurm has lost its node, and starts the job on another one, which sees the same disk."""
    run = job()
    run.wait_for("checkpoint")
    (run.folder / ".tasks" / "supervisor.holder").write_text("slurm-9.1")
    assert run.end(within_s=60) == 175
    assert "the job was restarted without" in run.stderr


def test_no_task_outlives_a_supervisor_that_is_killed(job):
    run = job()
    run.wait_for("checkpoint")
    run.process.kill()
    run.wait(lambda: not run.left(), "end of all tasks")


def test_an_interface_that_is_not_there(job):
    run = job("cluster.interface=ib9")
    assert run.end() == 2
    assert "cluster.interface: is 'ib9'; node n0 has" in run.stderr
    assert run.result["error"]["type"] == "ConfigError"
