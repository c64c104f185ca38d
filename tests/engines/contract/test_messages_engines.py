"""What is said where a run cannot be started by Slurm, Ray or Kubernetes, as the golden file has it.

More mistakes of these kinds, by their keys alone: tests/engines/unit/test_refused_submissions.py.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest
from kubernetes_manifests import GIVEN
from support import run_config, stated

from psrun.engines import ray as ray_engine
from psrun.engines import submit
from psrun.errors import PsrunError
from psrun.roles import table

JOB = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_JOB_NODELIST": "n[0-3]", "SLURM_TASKS_PER_NODE": "2,1(x3)"}
POD = {"PSRUN_JOB": "worker", "JOB_COMPLETION_INDEX": "0"}
# Mistakes that are reported together are in one case.
SUBMITTED = {
    "kubernetes: nothing given": ["kubernetes"],
    "kubernetes: names and values": [
        "kubernetes", GIVEN[0], "kubernetes.claim=Runs", "kubernetes.name=1a", "kubernetes.namespace=a.b",
        "kubernetes.mount_path=/tmp", "kubernetes.port=70000", "kubernetes.resources.ps.limits.memory=4GB",
        "kubernetes.resources.worker.requests.memory=40Gi", "++kubernetes.resources.ps.limits.gpu=1", "mode=plan",
        "hydra.run.dir=x", "--dry-run", "--no-follow",
    ],
    "slurm: another cluster": ["slurm", "cluster=local"],
    "slurm: keys": ["slurm", "slurm.tim=5", "cluster.num_ps=0"],
    "slurm: a folder by the time": ["slurm", "hydra.run.dir=there/${now:%H}"],
    "slurm: not installed": ["slurm"],
}  # fmt: skip
CONFIGURED = {
    "ray: keys": [
        "cluster=ray", "cluster.address=head", "cluster.placement_group=strict_spread", "cluster.num_ps=0",
        "cluster.resources.ps.num_cpus=0", "cluster.resources.ps.memory_bytes=1GiB", "++cluster.resources.ps.num_gpu=1",
        "++cluster.resources.boss=1", "cluster.restart.budget=-1",
    ],
    "ray: a client": ["cluster=ray", "cluster.address='ray://head:10001'"],
    "slurm: no time to save": ["cluster=slurm", "slurm.warn_s=20"],
}  # fmt: skip
STARTED = {
    "slurm: no job": ("slurm", {}),
    "slurm: a small job": ("slurm", {**JOB, "SLURM_TASKS_PER_NODE": "2,1"}),
    "kubernetes: no pod": ("kubernetes", {}),
    "kubernetes: another job": ("kubernetes", {**POD, "PSRUN_JOB": "boss"}),
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
    says(table.identify, run, environment)


def test_ray_that_is_not_installed(monkeypatch, says):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    says(ray_engine.check_installed)
