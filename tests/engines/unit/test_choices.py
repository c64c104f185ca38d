"""What the clusters of the engines answer about themselves."""

from __future__ import annotations

import pytest
from plain_config import loaded

from psrun.config import choices

QUESTIONS = ("has_parameter_servers", "has_server_processes", "started_elsewhere", "spans_machines", "fits_in_sweep")
SERVERS, PROCESSES, ELSEWHERE, MACHINES, IN_SWEEPS = QUESTIONS


@pytest.mark.parametrize(
    ("arguments", "true"),
    [
        (["cluster=ray"], {SERVERS, PROCESSES, IN_SWEEPS}),
        (["cluster=ray", "cluster.address=auto"], {SERVERS, PROCESSES, MACHINES, IN_SWEEPS}),
        (["cluster=slurm"], {SERVERS, PROCESSES, MACHINES}),
        (["cluster=kubernetes"], {SERVERS, PROCESSES, ELSEWHERE, MACHINES}),
    ],
    ids=["ray", "ray-of-several-machines", "slurm", "kubernetes"],
)
def test_what_a_cluster_answers(arguments, true):
    cluster = loaded("evaluation=none", *arguments, "cluster.num_workers=2", "cluster.num_ps=1").cluster
    assert type(cluster) is choices.of_kind("cluster", cluster.kind)
    assert {name for name in QUESTIONS if getattr(cluster, name)} == true
    assert (cluster.num_workers, cluster.num_ps) == (2, 1)
    assert cluster.connect_timeout_s > 0
    assert cluster.chief_timeout_s > 0
