"""cluster=slurm and psrun submit slurm on a real Slurm."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from fault_injection import MOSTLY_WAITING
from support import many_epochs

pytestmark = pytest.mark.slurm

DATA = ["data.num_train_examples=500", "data.num_eval_examples=100"]
QUICK = [*DATA, "trainer.epochs=2", "trainer.steps_per_epoch=20"]
EPOCH = 50  # steps
LONG = [*DATA, many_epochs(EPOCH), f"trainer.steps_per_epoch={EPOCH}", "evaluation=none", MOSTLY_WAITING]


def job_of(run) -> str:
    """The job number that `psrun submit` prints."""
    run.wait(lambda: "Slurm job " in run.stdout, "job")
    return run.stdout.partition("Slurm job ")[2].split()[0]


def begin_again(slurm, job: str) -> None:
    """Slurm lets a requeued job wait for two minutes; here two seconds do.

    A node refuses what was granted to a job in the second in which it ended it, and Slurm takes the job for failed.
    """
    slurm.wait(lambda: slurm.job(job).get("JobState") == "PENDING", "requeued job", within_s=90)
    slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now+2seconds")


def test_a_heterogeneous_job_with_a_sidecar_evaluator(on_slurm):
    run = on_slurm("cluster=slurm", *QUICK, "evaluation=sidecar", prefix=["salloc", "-n1", "-N1", ":", "-n5", "-N3"])
    assert run.end() == 0, run.stderr
    assert run.result["status"] == "completed"
    assert run.result["steps"]["applied"] == 40
    assert run.result["cluster"] == {"topology": "slurm", "num_workers": 2, "num_ps": 2}
    assert run.result["evaluation"]["step"] == 40
    logs = {path.stem for path in (run.folder / "logs").iterdir()}
    assert logs == {"supervisor", "chief-0", "ps-0", "ps-1", "worker-0", "worker-1", "evaluator-0"}
    assert "completed 40 steps" in run.stdout
    assert not (run.folder / ".tasks").exists()


def test_submit_a_lost_worker_ps_and_chief_and_scancel(on_slurm, slurm):
    run = on_slurm("submit", "slurm", *LONG, "slurm.nodes=4", "slurm.time=10")
    job = job_of(run)
    run.wait_for("checkpoint")
    run.kill("worker-1")
    worker = run.wait_for("recovery")
    assert (worker["task"], worker["cause"]) == ("worker-1", "was killed by SIGKILL")
    run.kill("ps-0")
    ps = run.wait_for("recovery", 2)
    assert ps["task"] == "ps-0"
    assert run.events("restored")
    run.kill("chief-0")
    assert run.wait_for("recovery", 3)["task"] == "chief-0"
    step = run.events("epoch")[-1]["step"]
    slurm.run("scancel", job)
    assert run.end(within_s=60) == 175
    assert run.result["status"] == "interrupted"
    assert [row["task"] for row in run.result["recoveries"]] == ["worker-1", "ps-0", "chief-0"]
    assert run.result["checkpoints"][-1]["step"] >= step
    assert "psrun submit slurm 'resume=" in run.stdout  # the folder has a blank in its name
    assert slurm.job(job)["JobState"] == "CANCELLED"
    epochs = run.result["checkpoints"][-1]["step"] // EPOCH + 1
    again = on_slurm("submit", "slurm", f"resume='{run.folder}'", f"trainer.epochs={epochs}")
    assert again.end() == 0, again.stderr
    assert run.result["status"] == "completed"
    assert run.result["steps"]["applied"] >= EPOCH * epochs


def test_a_cut_node(on_slurm, slurm):
    if slurm.network is None:
        pytest.skip("nodes that can be cut off need root, ip (iproute2) and nsenter")
    run = on_slurm("submit", "slurm", *LONG, "slurm.nodes=2")
    job = job_of(run)
    run.wait_for("checkpoint", 3)
    try:
        assert slurm.job(job)["NodeList"] == "n[0-1]"
        slurm.cut(1)
        before = len(run.events("restored"))
        begin_again(slurm, job)
        restored = run.wait_for("restored", before + 1)
        run.wait(lambda: run.events("epoch")[-1]["step"] > restored["step"], "epoch after it")
        assert slurm.job(job)["Restarts"] != "0"
        assert restored["step"] >= 3 * EPOCH
        assert run.process.poll() is None
    finally:
        slurm.mend(1)
        slurm.run("scancel", job)
    assert run.end(within_s=60) == 175
    slurm.wait(lambda: slurm.num_idle() == len(slurm.nodes), "idle nodes")


def test_a_job_with_room_for_the_tasks_of_a_cut_node_continues(on_slurm, slurm):
    if slurm.network is None:
        pytest.skip("nodes that can be cut off need root, ip (iproute2) and nsenter")
    run = on_slurm("submit", "slurm", *LONG, "slurm.nodes=4", "slurm.options=['--ntasks=8','--no-kill']")
    job = job_of(run)
    run.wait_for("checkpoint")
    try:
        slurm.cut(1)
        recovery = run.wait_for("recovery")
        assert "was lost with its job step on node n1" in recovery["cause"]
        restored = run.wait_for("restored")
        run.wait(lambda: run.events("epoch")[-1]["step"] > restored["step"], "epoch after it")
        assert slurm.job(job)["Restarts"] == "0"
        restarted = run.events("failure")[-1]["restarted"]
        assert set(restarted) == {"chief-0", "ps-0", "ps-1", "worker-0", "worker-1"}
    finally:
        slurm.mend(1)
        slurm.run("scancel", job)
    assert run.end(within_s=60) == 175
    slurm.wait(lambda: slurm.num_idle() == len(slurm.nodes), "idle nodes")


def test_the_time_limit_is_near(on_slurm, slurm, tmp_path):
    """Slurm sends the signal of --signal; here the test sends it, as the shortest limit is a minute."""
    run = on_slurm("submit", "slurm", *LONG)
    job = job_of(run)
    run.wait_for("epoch", 3)
    slurm.run("scancel", "--batch", "--signal=USR1", job)
    assert run.wait_for("stopping")["signal"] == f"the time limit of Slurm job {job} is near (SIGUSR1)"
    slurm.wait(lambda: slurm.job(job).get("JobState") == "PENDING", "requeued job", within_s=90)
    psrun = [sys.executable, "-m", "psrun"]
    row = json.loads(slurm.run(*psrun, "list", str(run.root), "--json"))[0]
    assert row["status"] == "pending"
    assert row["where"].startswith(f"Slurm job {job}: pending (BeginTime) until ")
    slurm.run(*psrun, "rm", "--yes", str(run.folder), check=False)
    assert run.result["status"] == "interrupted"  # it is still there
    second = on_slurm("submit", "slurm", f"resume='{run.folder}'")
    assert second.end() == 2
    assert f"Slurm job {job} already" in second.stderr
    view = tmp_path / "view"
    with view.open("w") as file:
        command = [*slurm.prefix, *psrun, "watch", str(run.folder)]
        watching = subprocess.Popen(command, env=slurm.environment, stdout=file)
    slurm.wait(lambda: "the run resumes by itself" in view.read_text(), "line of the view")
    begin_again(slurm, job)
    restored = run.wait_for("restored")
    saved = [event["step"] for event in run.events("checkpoint") if event["wall_s"] < restored["wall_s"]]
    assert restored["step"] == saved[-1]
    run.wait(lambda: run.events("epoch")[-1]["step"] > restored["step"], "epoch after it")
    assert run.result["status"] == "running"
    run.process.send_signal(2)  # Ctrl-C ends the view and nothing else
    assert run.end() == 130
    assert "to stop it: psrun stop" in run.stdout
    assert watching.poll() is None
    watching.send_signal(2)
    assert watching.wait(20) == 130
    assert slurm.job(job)["JobState"] == "RUNNING"


def test_a_sweep_by_submitit(on_slurm, slurm):
    """Jobs of a sweep are Slurm jobs with SLURM_* of their own, which a cluster of their own must not heed."""
    launcher = ["hydra/launcher=submitit_slurm", "hydra.launcher.timeout_min=10", "hydra.launcher.cpus_per_task=2"]
    launcher += ["hydra.launcher.mem_gb=1"]
    run = on_slurm("-m", *launcher, "hydra.sweep.dir=sweep", "cluster=inprocess,local", *QUICK)
    assert run.end() == 0, run.stderr + run.stdout
    for number in (0, 1):
        result = json.loads((run.folder / str(number) / "run.json").read_text())
        assert (result["status"], result["steps"]["applied"]) == ("completed", 40)


def test_an_interrupted_sweep_by_submitit_leaves_no_job(on_slurm, slurm):
    launcher = ["hydra/launcher=submitit_slurm", "hydra.launcher.timeout_min=10", "hydra.launcher.mem_gb=1"]
    launcher += ["hydra.launcher.cpus_per_task=2", "hydra.launcher.array_parallelism=1"]
    run = on_slurm("-m", *launcher, "hydra.sweep.dir=sweep", "cluster=none", "seed=1,2", *LONG[:-1])
    first = run.folder / "0" / "run.json"
    run.wait(lambda: first.exists() and json.loads(first.read_text()).get("checkpoints"), "checkpoint of the first job")
    run.process.send_signal(15)
    assert run.end(within_s=80) == 175
    assert json.loads(first.read_text())["status"] == "interrupted"
    assert not (run.folder / "1" / "run.json").exists()
    slurm.wait(lambda: not slurm.run("squeue", "-h").strip(), "empty queue")


def test_a_search_on_slurm_pauses_jobs_and_goes_on_with_the_best(on_slurm):
    pytest.importorskip("optuna", minversion="5", reason="the extra psrun[optuna] is missing")
    launcher = ["hydra/launcher=submitit_slurm", "hydra.launcher.timeout_min=10", "hydra.launcher.mem_gb=1"]
    search = ["sweep.search=grid", "sweep.metric=val_loss", "sweep.mode=min", "sweep.halving.factor=2"]
    rates = "optimizer.learning_rate=0.001,0.3"
    run = on_slurm("-m", *launcher, *search, "hydra.sweep.dir=sweep", "cluster=none", rates, *QUICK)
    assert run.end() == 2
    assert "sweep.max_parallel: is auto" in run.stderr
    run = on_slurm("-m", *launcher, *search, "hydra.sweep.dir=sweep", "cluster=none", rates, *QUICK,
                   "sweep.max_parallel=2")  # fmt: skip
    assert run.end() == 0, run.stderr + run.stdout
    results = [json.loads((run.folder / number / "run.json").read_text()) for number in ("0", "1")]
    assert [(each["status"], each["steps"]["applied"]) for each in results] == [("interrupted", 20), ("completed", 40)]
    assert results[0]["search"] == {"state": "pruned", "epoch": 1}


def test_a_folder_that_nodes_do_not_share(on_slurm, slurm, tmp_path):
    if slurm.network is None:
        pytest.skip("a node with a disk of its own needs root")
    own = tmp_path / "a run"
    own.mkdir()
    with slurm.disk(1, own):
        run = on_slurm("cluster=slurm", *QUICK, f"hydra.run.dir='{own}'", prefix=["salloc", "-n5", "-N2"])
        assert run.end(within_s=90) == 2
    assert f"hydra.run.dir: node n1 does not see {own}; choose a folder on a shared disk" in run.stderr
    assert run.result["error"]["type"] == "ConfigError"


def test_slurm_refuses_the_job(on_slurm):
    run = on_slurm("submit", "slurm", *QUICK, "slurm.partition=gpu")
    assert run.end() == 1
    assert "Slurm rejected the job" in run.stderr
    assert "invalid partition" in run.stderr


def test_a_job_that_ends_before_the_run_begins(on_slurm):
    run = on_slurm("submit", "slurm", *QUICK, "slurm.setup=[echo no such module, exit 3]")
    assert run.end(within_s=60) == 1
    assert "ended before the run started" in run.stderr
    assert "no such module" in run.stderr


def test_a_job_that_waits_is_listed_and_cancelled(on_slurm, slurm):
    run = on_slurm("submit", "slurm", "--no-follow", *QUICK, "run.name=later", "slurm.options=['--begin=now+1hour']")
    job = job_of(run)
    assert run.end() == 0
    psrun = [sys.executable, "-m", "psrun"]

    def row():
        return json.loads(slurm.run(*psrun, "list", str(run.root), "--json"))[0]

    assert [row()[name] for name in ("name", "status")] == ["later", "pending"]
    assert row()["where"].startswith(f"Slurm job {job}: pending (BeginTime) until ")
    folder = row()["folder"]
    assert "not run: its job was cancelled" in slurm.run(*psrun, "stop", folder)
    assert slurm.job(job)["JobState"] == "CANCELLED"
    assert row()["status"] == "not run"
    assert "there is nothing to stop" in slurm.run(*psrun, "stop", folder)
    slurm.run(*psrun, "rm", "--yes", folder)


def test_the_logs_of_a_job_and_its_end(on_slurm, slurm):
    """From a host that is not the node of the supervisor."""
    run = on_slurm("submit", "slurm", *LONG, "slurm.nodes=4", "slurm.time=10")
    job = job_of(run)
    run.wait_for("checkpoint")
    psrun = [sys.executable, "-m", "psrun"]
    row = json.loads(slurm.run(*psrun, "list", str(run.root), "--json"))[0]
    assert (row["engine"], row["status"]) == ("slurm", "running")
    assert row["where"].startswith(f"job {job} on ")
    tasks = slurm.run(*psrun, "logs", str(run.folder), "--tasks").split()
    assert {"chief-0", "ps-0", "worker-1", "slurm", "supervisor"} <= {*tasks}
    assert slurm.run(*psrun, "logs", str(run.folder), "slurm") == (run.folder / "logs" / "slurm.log").read_text()
    stopped = slurm.run(*psrun, "stop", str(run.folder), timeout_s=120)
    assert "interrupted, checkpoint of step" in stopped
    assert run.end(within_s=60) == 130
    assert run.result["checkpoints"][-1]["step"] == run.result["steps"]["applied"]
    slurm.wait(lambda: slurm.job(job)["JobState"] == "FAILED", "end of the job")  # by its exit code; not requeued
    assert slurm.job(job)["Restarts"] == "0"
    again = on_slurm("submit", "slurm", f"resume='{run.folder}'")
    again.wait(lambda: "Slurm job " in again.stdout, "job")
    again.wait(lambda: run.result["status"] == "running", "resumed run")
    slurm.run(*psrun, "stop", "--now", str(run.folder), check=False, timeout_s=120)
    slurm.wait(lambda: slurm.job(job_of(again))["JobState"] not in ("RUNNING", "COMPLETING"), "end at once")
    again.end(within_s=120)


def test_a_run_that_is_stopped_now_does_not_save(on_slurm, slurm):
    run = on_slurm("submit", "slurm", *LONG, "slurm.nodes=4", "slurm.time=10")
    job = job_of(run)
    run.wait_for("epoch", 2)
    stopped = slurm.run(sys.executable, "-m", "psrun", "stop", "--now", str(run.folder), timeout_s=60)
    assert "interrupted" in stopped
    assert run.end(within_s=60) == 130
    slurm.wait(lambda: slurm.job(job)["JobState"] in ("FAILED", "CANCELLED"), "end of the job")
    assert run.result["checkpoints"][-1]["step"] % EPOCH == 0  # of an epoch, not of the end
    assert run.result["checkpoints"][-1]["step"] <= run.events("epoch")[-1]["step"]


def test_the_jobs_of_a_sweep_that_was_killed(on_slurm, slurm):
    launcher = ["hydra/launcher=submitit_slurm", "hydra.launcher.timeout_min=10", "hydra.launcher.mem_gb=1"]
    launcher += ["hydra.launcher.cpus_per_task=2"]
    run = on_slurm("-m", *launcher, "hydra.sweep.dir=sweep", "cluster=none", "seed=1,2", *LONG[:-1])
    first = run.folder / "0" / "run.json"
    run.wait(lambda: first.exists() and json.loads(first.read_text()).get("checkpoints"), "checkpoint of the first job")
    run.process.kill()
    psrun = [sys.executable, "-m", "psrun"]
    slurm.run(*psrun, "stop", str(run.folder), timeout_s=120)
    slurm.wait(lambda: not slurm.run("squeue", "-h").strip(), "empty queue")

    def states() -> list[str]:
        rows = json.loads(slurm.run(*psrun, "list", str(run.root), "--jobs", "--json"))
        return [row["status"] for row in rows]

    slurm.wait(lambda: not {"running", "starting"} & {*states()}, "end of all jobs", within_s=90)
    slurm.run(*psrun, "rm", "--yes", str(run.folder))


def test_the_time_limit_is_near_before_the_first_step(on_slurm, slurm):
    run = on_slurm("submit", "slurm", *LONG)
    job = job_of(run)
    run.wait(lambda: "supervisor" in {path.stem for path in (run.folder / "logs").iterdir()}, "supervisor")
    run.wait(lambda: (run.folder / ".tasks").exists() and any((run.folder / ".tasks").iterdir()), "task")
    slurm.run("scancel", "--batch", "--signal=USR1", job)
    assert run.end(within_s=60) == 175
    log = (run.folder / "logs" / "slurm.log").read_text()
    assert f"the time limit of Slurm job {job} is near, before the first step; set slurm.time" in log
