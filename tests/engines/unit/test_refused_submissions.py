"""Runs that Slurm, Ray or Kubernetes cannot start are refused, by the key or the variable that has to change.

What is said: tests/engines/contract/test_messages_engines.py.
"""

from __future__ import annotations

import sys

import pytest
from kubernetes_manifests import GIVEN
from messages import refused
from support import raw_config, run_config

from psrun.config import parse
from psrun.engines import submit
from psrun.roles import table

JOB = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_JOB_NODELIST": "n[0-3]", "SLURM_TASKS_PER_NODE": "2,1(x3)"}
POD = {"PSRUN_JOB": "worker", "JOB_COMPLETION_INDEX": "0"}
# The arguments and the keys.
SUBMITTED = {
    "kubernetes: a long name, a colon in the path": (
        [
            "kubernetes",
            *GIVEN[:2],
            f"kubernetes.name={'a' * 48}",
            "kubernetes.mount_path=/runs:ro",
        ],
        "kubernetes.name, kubernetes.mount_path",
    ),
    "kubernetes: keys": (
        [
            "kubernetes",
            *GIVEN[:2],
            "kubernetes.port=80",
            "kubernetes.kind=tfjob",
            "kubernetes.imge=x",
            "kubernetes.knd=x",
            "kubernetes.resources.pss.limits.memory=4Gi",
        ],
        "kubernetes.imge, kubernetes.knd, kubernetes.resources.pss.limits.memory, kubernetes.kind, kubernetes.port",
    ),
    "kubernetes: another cluster": (
        ["kubernetes", *GIVEN[:2], "cluster=local"],
        "cluster=local contradicts submit kubernetes",
    ),
    "kubernetes: a sweep": (["kubernetes", *GIVEN[:2], "--multirun", "seed=1,2"], "submit takes one run"),
    "slurm: one process": (["slurm", "mode=plan"], "mode"),
    "slurm: a folder with a run and a quote": (["slurm", "hydra.run.dir='it\\'s'"], "hydra.run.dir"),
    "slurm: a folder with a run, by ++": (["slurm", "++hydra.run.dir=there"], "hydra.run.dir"),
    "slurm: nothing to resume": (["slurm", "resume=nowhere"], "resume"),
    "slurm: a sweep": (["slurm", "-m", "seed=1,2"], "submit takes one run"),
    "slurm: line breaks": (
        [
            "slurm",
            "--dry-run",
            "slurm.partition='a\nrm -r b'",
            "slurm.options=['--a','--b\nrm -r b']",
        ],
        "slurm.partition, slurm.options[1]",
    ),
}
CONFIGURED = {
    "ray: a port": (["cluster=ray", "cluster.address='6379'"], "cluster.address"),
    "ray: isolated from the nodes": (
        ["cluster=ray", "cluster.address=auto", "cluster.isolate=true"],
        "cluster.isolate",
    ),
    "slurm: keys": (
        ["cluster=slurm", "slurm.cpus_per_task=0", "+slurm.tim=5", "slurm.nodes=many"],
        "slurm.nodes, slurm.cpus_per_task, slurm.tim",
    ),
    "kubernetes: data that is not here": (["cluster=kubernetes", "data=criteo", "data.path=/not/here"], "data.path"),
}
# A choice of the cluster, the environment of the process, and the key.
STARTED = {
    "slurm: by srun": (("slurm", {**JOB, "SLURM_STEP_ID": "0"}), "cluster"),
    "slurm: inconsistent variables": (("slurm", {**JOB, "SLURM_TASKS_PER_NODE": "x"}), "cluster"),
    "kubernetes: no index": (("kubernetes", {"PSRUN_JOB": "worker"}), "JOB_COMPLETION_INDEX"),
    "kubernetes: no number": (("kubernetes", {**POD, "JOB_COMPLETION_INDEX": "²"}), "JOB_COMPLETION_INDEX"),
    "kubernetes: another index": (("kubernetes", {**POD, "JOB_COMPLETION_INDEX": "7"}), "PSRUN_JOB.index"),
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder with two runs, where no command of an engine is installed."""
    for name in ("there", "it's"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")


@pytest.mark.parametrize("case", SUBMITTED)
def test_what_cannot_be_submitted(case, capsys, tmp_path):
    arguments, keys = SUBMITTED[case]
    refused(keys, submit.main, arguments)
    assert capsys.readouterr().out == ""
    assert {path.name for path in tmp_path.iterdir()} == {"there", "it's"}


@pytest.mark.parametrize("case", CONFIGURED)
def test_what_cannot_be_configured(case):
    overrides, keys = CONFIGURED[case]
    refused(keys, run_config, *overrides)


@pytest.mark.parametrize("case", STARTED)
def test_a_process_that_is_no_task(case):
    (cluster, environment), key = STARTED[case]
    name = ["kubernetes.name=run-1"] if cluster == "kubernetes" else []
    refused(key, table.identify, run_config(f"cluster={cluster}", *name), environment)


@pytest.mark.parametrize("group", ["kubernetes", "slurm"])
def test_settings_of_an_engine_go_with_its_cluster_only(group):
    settings = raw_config(f"cluster={group}")[group]
    refused(group, parse.load, {**raw_config(), group: settings})
