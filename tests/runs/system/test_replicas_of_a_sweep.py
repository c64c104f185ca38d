"""Batch sizes and learning rates that follow from the number of replicas of each job of a sweep."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

FIVE = ("data.global_batch_size=null", "data.batch_size_per_replica=5")


@pytest.mark.thorough
def test_jobs_of_a_sweep_follow_each_by_its_replicas(psrun, tmp_path):
    done = psrun(
        "-m", "mode=plan", "cluster=mirrored", "cluster.num_replicas=1,2", "model=dense", *FIVE,
        "optimizer.learning_rate='${by_batch_size:{5: 0.1, 10: 0.15}}'", f"hydra.sweep.dir={tmp_path}/sweep",
    )  # fmt: skip
    assert done.code == 0, done.stderr + done.stdout
    configs = [OmegaConf.load(tmp_path / "sweep" / str(job) / "config.yaml") for job in range(2)]
    assert [(each.data.global_batch_size, each.optimizer.learning_rate) for each in configs] == [(5, 0.1), (10, 0.15)]
