"""What is said where a run cannot be started by an engine: Slurm, Ray, Kubernetes, TF_CONFIG by hand."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest
from kubernetes_manifests import GIVEN
from recorded_runs import a_recorded_sweep, a_run
from support import raw_config, run_config, stated

from psrun import process
from psrun.config import parse
from psrun.config.topology import Task
from psrun.engines import ray as ray_engine
from psrun.engines import submit
from psrun.errors import PsrunError
from psrun.launch.restart_policy import RestartPolicy
from psrun.roles import task_assignment
from psrun.runs import logs, stop

JOB = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_JOB_NODELIST": "n[0-3]", "SLURM_TASKS_PER_NODE": "2,1(x3)"}
POD = {"PSRUN_JOB": "worker", "JOB_COMPLETION_INDEX": "0"}
# Mistakes that are reported together are in one case.
SUBMITTED = {
    "kubernetes: nothing given": ["kubernetes", "--dry-run"],
    "kubernetes: names and values": [
        "kubernetes", "--dry-run", GIVEN[0], "kubernetes.claim=Runs", "kubernetes.name=1a", "kubernetes.namespace=a.b",
        "kubernetes.mount_path=/tmp", "kubernetes.port=70000", "kubernetes.resources.ps.limits.memory=4GB",
        "kubernetes.resources.worker.requests.memory=40Gi", "++kubernetes.resources.ps.limits.gpu=1", "mode=plan",
        "hydra.run.dir=x",
    ],
    "kubernetes: a long name, a colon in the path": [
        "kubernetes", "--dry-run", *GIVEN[:2], f"kubernetes.name={'a' * 48}", "kubernetes.mount_path=/runs:ro",
    ],
    "kubernetes: keys": [
        "kubernetes", "--dry-run", *GIVEN[:2], "kubernetes.port=80", "kubernetes.kind=tfjob", "kubernetes.imge=x",
        "kubernetes.knd=x", "kubernetes.resources.pss.limits.memory=4Gi",
    ],
    "kubernetes: another cluster": ["kubernetes", "--dry-run", *GIVEN[:2], "cluster=local"],
    "kubernetes: a sweep": ["kubernetes", "--dry-run", *GIVEN[:2], "--multirun", "seed=1,2"],
    "slurm: another cluster": ["slurm", "cluster=local"],
    "slurm: one process": ["slurm", "mode=plan"],
    "slurm: keys": ["slurm", "slurm.tim=5", "cluster.num_ps=0"],
    "slurm: a folder with a run and a quote": ["slurm", "hydra.run.dir='it\\'s'"],
    "slurm: a folder with a run, by ++": ["slurm", "++hydra.run.dir=there"],
    "slurm: a folder by the time": ["slurm", "hydra.run.dir=there/${now:%H}"],
    "slurm: nothing to resume": ["slurm", "resume=nowhere"],
    "slurm: a sweep": ["slurm", "-m", "seed=1,2"],
    "slurm: line breaks": [
        "slurm", "--dry-run", "slurm.partition='a\nrm -r b'", "slurm.options=['--a','--b\nrm -r b']",
    ],
    "slurm: not installed": ["slurm"],
}  # fmt: skip
CONFIGURED = {
    "ray: keys": [
        "cluster=ray", "cluster.address=head", "cluster.placement_group=strict_spread", "cluster.num_ps=0",
        "cluster.resources.ps.num_cpus=0", "cluster.resources.ps.memory_bytes=1GiB", "++cluster.resources.ps.num_gpu=1",
        "++cluster.resources.boss=1", "cluster.restart.budget=-1",
    ],
    "ray: a client": ["cluster=ray", "cluster.address='ray://head:10001'"],
    "ray: a port": ["cluster=ray", "cluster.address='6379'"],
    "ray: isolated from the nodes": ["cluster=ray", "cluster.address=auto", "cluster.isolate=true"],
    "slurm: keys": ["cluster=slurm", "slurm.cpus_per_task=0", "+slurm.tim=5", "slurm.nodes=many"],
    "slurm: no time to save": ["cluster=slurm", "slurm.warn_s=20"],
    "kubernetes: data that is not here": ["cluster=kubernetes", "data=criteo", "data.path=/not/here"],
}  # fmt: skip
STARTED = {
    "slurm: no job": ("slurm", {}),
    "slurm: by srun": ("slurm", {**JOB, "SLURM_STEP_ID": "0"}),
    "slurm: a small job": ("slurm", {**JOB, "SLURM_TASKS_PER_NODE": "2,1"}),
    "slurm: inconsistent variables": ("slurm", {**JOB, "SLURM_TASKS_PER_NODE": "x"}),
    "kubernetes: no pod": ("kubernetes", {}),
    "kubernetes: another job": ("kubernetes", {**POD, "PSRUN_JOB": "boss"}),
    "kubernetes: no index": ("kubernetes", {"PSRUN_JOB": "worker"}),
    "kubernetes: no number": ("kubernetes", {**POD, "JOB_COMPLETION_INDEX": "²"}),
    "kubernetes: another index": ("kubernetes", {**POD, "JOB_COMPLETION_INDEX": "7"}),
}


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A folder with two runs, where no command of an engine is installed."""
    for name in ("there", "it's"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    return tmp_path


@pytest.mark.parametrize("arguments", SUBMITTED.values(), ids=SUBMITTED)
def test_what_cannot_be_submitted(arguments, here, capsys, snapshot):
    with pytest.raises(PsrunError) as raised:
        submit.main(arguments)
    assert capsys.readouterr().out == ""
    # A folder without a name of its own is named by the time.
    text = re.sub(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", "<time>", stated(raised.value, tmp=here))
    assert text == snapshot
    assert {path.name for path in here.iterdir()} == {"there", "it's"}


@pytest.mark.parametrize("overrides", CONFIGURED.values(), ids=CONFIGURED)
@pytest.mark.usefixtures("here")
def test_what_cannot_be_configured(overrides, says):
    says(run_config, *overrides)


@pytest.mark.parametrize(("cluster", "environment"), STARTED.values(), ids=STARTED)
def test_a_process_that_is_no_task(cluster, environment, says):
    run = run_config(f"cluster={cluster}", *(["kubernetes.name=run-1"] if cluster == "kubernetes" else []))
    says(task_assignment.identify, run, environment)


def test_settings_of_kubernetes_go_with_its_cluster_only(says):
    """Those of Slurm: test_messages_config.py."""
    says(parse.load, {**raw_config(), "kubernetes": raw_config("cluster=kubernetes")["kubernetes"]})


def test_ray_that_is_not_installed(monkeypatch, says):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    says(ray_engine.check_installed)


def test_a_budget_that_is_spent(snapshot):
    error = RestartPolicy(budget=3, first_delay_s=2.0, longest_delay_s=10.0).exhausted(Task("ps", 1), "was killed")
    assert stated(error) == snapshot


LOGS = {
    "a sweep": ["sweep"],
    "no logs yet": ["bare"],
    "a mistyped task": ["A", "wroker-1"],
    "a job of several tasks": ["A", "worker"],
}


@pytest.mark.parametrize("mistake", LOGS)
def test_a_mistake_in_logs(mistake, tmp_path, monkeypatch, says):
    monkeypatch.chdir(tmp_path)
    a_recorded_sweep(tmp_path / "runs" / "sweep")
    a_run(tmp_path / "runs" / "bare")
    folder = a_run(tmp_path / "runs" / "A")
    (folder / "logs").mkdir()
    for name in ("chief-0", "worker-0", "worker-1", "ps-0"):
        (folder / "logs" / f"{name}.log").touch()
    says(logs.main, LOGS[mistake])


def test_runs_that_cannot_be_stopped_from_here(tmp_path, monkeypatch, capsys, snapshot):
    """Each line is about one run; all of them are tried."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))  # without scancel
    here = process.place()
    places: dict[str, dict] = {
        "over": {},
        "elsewhere": {"status": "running", "process": {"host": "n1", "pid_namespace": 1, "pid": 7}},
        "container": {"status": "running", "process": {**here, "pid_namespace": 1, "pid": 7}},
        "unknown": {"status": "running", "process": None},
        "slurm": {"status": "running", "process": {"host": "n1", "pid_namespace": 1, "pid": 7, "slurm_job": "12"}},
    }
    for name, changes in places.items():
        a_run(tmp_path / "runs" / name, **changes)
    (a_run(tmp_path / "runs" / "damaged") / "run.json").unlink()
    (tmp_path / "runs" / "damaged" / "metrics.jsonl").write_text("")
    a_recorded_sweep(tmp_path / "runs" / "sweep", status="running", host="n1", process={"host": "n1", "pid": 7})
    assert stop.main([*places, "damaged", "sweep"]) == 1
    said = " ".join(capsys.readouterr().out.replace("\n", "|").split()).replace("|", "\n")
    assert said.replace(str(tmp_path), "<tmp>") == snapshot
