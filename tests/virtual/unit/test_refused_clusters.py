"""Virtual clusters that cannot be are refused by the key that has to change, before TensorFlow is imported."""

from __future__ import annotations

import shlex

import pytest
from messages import refused
from plain_config import plain_config

from psrun.config import parse

VIRTUAL = "cluster=virtual"
TIMED = f"{VIRTUAL} cluster.step_s=0.1"
LATE = f"{VIRTUAL} cluster.delay=constant"
CASES = {
    VIRTUAL: "cluster.step_s",
    f"{VIRTUAL} cluster.step_s=0": "cluster.step_s",
    f"{VIRTUAL} cluster.step_s=-0.1": "cluster.step_s",
    f"{TIMED} cluster.step_deviation=-1": "cluster.step_deviation",
    f"{TIMED} cluster.step_deviation=inf": "cluster.step_deviation",
    f"{TIMED} cluster.latency_s=nan": "cluster.latency_s",
    f"{TIMED} cluster.pause_probability=1.5": "cluster.pause_probability",
    f"{TIMED} cluster.worker_mtbf_s=0": "cluster.worker_mtbf_s",
    f"{TIMED} cluster.worker_mtbf_s=inf": "cluster.worker_mtbf_s",
    f"{TIMED} cluster.ps_mtbf_s=inf": "cluster.ps_mtbf_s",
    f"{TIMED} cluster.worker_mtbf_s=-1": "cluster.worker_mtbf_s",
    f"{TIMED} cluster.worker_mtbf_s=0.11 'cluster.slow_workers={{0: 0.1}}'": "cluster.worker_mtbf_s",
    f"{TIMED} cluster.worker_recovery_s=-1": "cluster.worker_recovery_s",
    f"{TIMED} cluster.ps_mtbf_s=0.05": "cluster.ps_mtbf_s",
    f"{TIMED} cluster.ps_recovery_s=nan": "cluster.ps_recovery_s",
    f"{LATE} cluster.mean_delay=1 cluster.ps_mtbf_s=9": "cluster.ps_mtbf_s",
    f"{TIMED} cluster.bytes_per_s=0": "cluster.bytes_per_s",
    f"{TIMED} cluster.num_workers=0": "cluster.num_workers",
    f"{TIMED} 'cluster.slow_workers={{7: 0.1}}'": "cluster.slow_workers",
    f"{TIMED} cluster.like=.": "cluster.step_s",
    f"{TIMED} cluster.mean_delay=3": "cluster.mean_delay",
    f"{VIRTUAL} cluster.like=none": "cluster.like",
    f"{VIRTUAL} cluster.like=text": "cluster.like",
    f"{VIRTUAL} cluster.like=slowed": "cluster.like",
    f"{VIRTUAL} cluster.like=.": "cluster.like",
    f"{TIMED} trainer=fit": "trainer",
    f"{TIMED} trainer=own_loop trainer._target_=user_code.plain": "trainer",
    f"{TIMED} trainer.dense_sync_every=2": "trainer.dense_sync_every",
    f"{TIMED} trainer.prefetch_rows=true": "trainer.prefetch_rows",
    f"{TIMED} trainer.run_eagerly=true": "trainer.run_eagerly",
    f"{TIMED} consistency=scheduled 'consistency.schedule={{0: sync}}'": "cluster",
    f"{TIMED} consistency=sync consistency.backup_workers=4": "consistency.backup_workers",
    f"{TIMED} consistency=k_async consistency.gradients=9": "consistency.gradients",
    LATE: "cluster.mean_delay",
    f"{LATE} cluster.mean_delay=1.5": "cluster.mean_delay",
    f"{LATE} cluster.mean_delay=-1": "cluster.mean_delay",
    f"{LATE} cluster.mean_delay=1 cluster.like=.": "cluster.like",
    f"{LATE} cluster.mean_delay=1 cluster.step_s=0.1": "cluster.step_s",
    f"{LATE} cluster.mean_delay=1 consistency=ssp": "consistency",
    f"{VIRTUAL} cluster.delay=normal": "cluster.delay",
    f"{VIRTUAL} cluster.delay=recorded": "cluster.like",
    f"{VIRTUAL} cluster.delay=recorded cluster.like=none": "cluster.like",
    f"{VIRTUAL} cluster.delay=recorded cluster.like=.": "cluster.like",
}


@pytest.mark.parametrize("arguments", CASES)
def test_a_virtual_cluster(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("mean: 3")
    (tmp_path / "run.json").write_text('{"staleness": {"mean": 3}}')
    slowed = tmp_path / "slowed"
    slowed.mkdir()
    (slowed / "run.json").write_text('{"step_time": {"compute_s": 1, "input_s": 1, "traffic_s": 1, "other_s": 1}}')
    (slowed / "config.yaml").write_text("cluster: {slow_workers: {0: 0.1}}")
    refused(CASES[arguments], parse.load, plain_config(*shlex.split(arguments)))
