"""TF_CONFIG as schedulers and people write it."""

from __future__ import annotations

import json

import pytest
from plain_config import loaded

from psrun.config import topology
from psrun.config.topology import Task, make
from psrun.errors import ConfigError
from psrun.roles.table import identify

CLUSTER = {"chief": ["c:1"], "worker": ["w:1", "w:2"], "ps": ["p:1"]}


SPEC = {"chief": {0: "c:1"}, "worker": {0: "w:1", 1: "w:2"}, "ps": {0: "p:1"}}


@pytest.mark.parametrize(
    ("cluster", "task", "me", "spec"),
    [
        (CLUSTER, {"type": "worker", "index": 1}, Task("worker", 1), SPEC),
        (CLUSTER, {"type": "master", "index": 0}, topology.CHIEF, SPEC),
        ({**CLUSTER, "evaluator": ["e:1"]}, {"type": "evaluator", "index": 0}, topology.EVALUATOR, SPEC),  # by TFJob
        (
            {"master": ["c:1"], "worker": {"1": "w:2"}, "ps": ["p:1"]}, {"type": "worker", "index": "1"},
            Task("worker", 1), {**SPEC, "worker": {1: "w:2"}},
        ),
        (
            {"worker": ["w:1"], "ps": ["p:1"]}, {"type": "chief"},  # without its address
            topology.CHIEF, {"worker": {0: "w:1"}, "ps": {0: "p:1"}},
        ),
    ],
)  # fmt: skip
def test_a_cluster_as_people_and_schedulers_write_it(cluster, task, me, spec):
    read = topology.from_tf_config(json.dumps({"cluster": cluster, "task": task, "environment": "cloud"}))
    assert (read.me, read.spec()) == (me, spec)
    if spec is SPEC:
        again = topology.from_tf_config(topology.tf_config(read.addresses, Task("ps", 0)))
        assert again.addresses == read.addresses


@pytest.mark.parametrize("cluster", [{"cluster": {"evaluator": ["host7:2222"]}}, {}], ids=["alone", "no_cluster"])
@pytest.mark.parametrize("evaluation", ["sidecar", "sidecar_thread", "direct"])
def test_the_evaluator_needs_no_cluster(cluster, evaluation):
    """As TensorFlow's tutorial has it."""
    text = json.dumps({**cluster, "task": {"type": "evaluator", "index": 0}})
    identity = identify(loaded("cluster=tf_config", f"evaluation={evaluation}"), {"TF_CONFIG": text})
    assert (identity.role, identity.name, identity.owns_folder) == ("evaluator", "evaluator-0", False)
    static = loaded("cluster=static", f"evaluation={evaluation}", "task.type=evaluator")
    assert identify(static, {}).role == "evaluator"


def test_a_worker_to_slow_down_must_be_in_the_cluster():
    text = json.dumps({"cluster": CLUSTER, "task": {"type": "chief", "index": 0}})
    assert identify(loaded("cluster=tf_config", "cluster.slow_workers={0: 0.1, 1: 0.1}"), {"TF_CONFIG": text})
    with pytest.raises(ConfigError, match="worker 2"):
        identify(loaded("cluster=tf_config", "cluster.slow_workers={2: 0.1}"), {"TF_CONFIG": text})


def test_a_cluster_without_the_jobs_that_are_needed_is_refused():
    """More mistakes: test_refused_configurations.py."""
    with pytest.raises(ConfigError) as raised:
        make({"chief": ["c:1"]}, "chief", 0, key="cluster", task_key="task")
    assert [problem.key for problem in raised.value.problems] == ["cluster.worker", "cluster.ps"]
