"""What the choices of a configuration answer about themselves."""

from __future__ import annotations

import pytest
from plain_config import loaded

from psrun.config.topology import EVALUATOR, Task

ADDRESSES = "cluster.addresses={chief: [h:1], worker: [h:2], ps: [h:3]}"
SERVERS, PROCESSES, SYNCHRONOUS, ELSEWHERE, MACHINES = (
    "has_parameter_servers",
    "has_server_processes",
    "has_synchronous_workers",
    "started_elsewhere",
    "spans_machines",
)


@pytest.mark.parametrize(
    ("overrides", "true", "size"),
    [
        (("cluster=none",), set(), (1, 0)),
        (("cluster=one_device",), set(), (1, 0)),
        (("cluster=mirrored",), set(), (1, 0)),
        (("cluster=central_storage",), set(), (1, 0)),
        (("cluster=multi_worker_mirrored", "trainer=fit"), {SYNCHRONOUS}, (2, 0)),
        (("cluster=inprocess",), {SERVERS}, (2, 1)),
        (("cluster=local",), {SERVERS, PROCESSES}, (2, 1)),
        (("cluster=ray",), {SERVERS, PROCESSES}, (2, 1)),
        (("cluster=ray", "cluster.address=auto"), {SERVERS, PROCESSES, MACHINES}, (2, 1)),
        (("cluster=tf_config",), {SERVERS, PROCESSES, ELSEWHERE, MACHINES}, (None, None)),
        (("cluster=static", ADDRESSES), {SERVERS, PROCESSES, ELSEWHERE, MACHINES}, (None, None)),
        (("cluster=slurm",), {SERVERS, PROCESSES, MACHINES}, (2, 1)),
        (("cluster=kubernetes",), {SERVERS, PROCESSES, ELSEWHERE, MACHINES}, (2, 1)),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) and isinstance(value[0], str) else "",
)
def test_what_a_cluster_answers(overrides, true, size):
    sized = ("cluster.num_workers=2",) if size[0] == 2 else ()
    sized += ("cluster.num_ps=1",) if size[1] == 1 else ()
    cluster = loaded("evaluation=none", *overrides, *sized).cluster
    assert {name for name in (SERVERS, PROCESSES, SYNCHRONOUS, ELSEWHERE, MACHINES) if getattr(cluster, name)} == true
    assert (cluster.num_workers, cluster.num_ps) == size
    assert (cluster.connect_timeout_s > 0) == (cluster.chief_timeout_s > 0) == (PROCESSES in true)
    shown = {(2, 1): " (2 workers, 1 ps)", (2, 0): " (2 workers)"}.get(size, "")
    assert cluster.title == cluster.kind + shown


@pytest.mark.parametrize(
    ("kind", "runs_on", "due"),
    [
        ("none", None, False),
        ("validation", "fit", False),
        ("direct", "coordinator", True),
        ("distributed", "coordinator", True),
        ("exact", "coordinator", True),
        ("sidecar", "evaluator", False),
        ("sidecar_thread", "evaluator", False),
    ],
)
def test_what_an_evaluation_answers(kind, runs_on, due):
    trainer = ("trainer=fit",) if kind == "validation" else ()
    every = ("evaluation.every=2",) if runs_on == "coordinator" else ()
    evaluation = loaded("cluster=local", f"evaluation={kind}", *trainer, *every).evaluation
    assert (evaluation.runs_on, evaluation.sets_worker_aside) == (runs_on, kind == "sidecar_thread")
    assert (evaluation.is_due(2), evaluation.is_due(3)) == (due, False)


@pytest.mark.parametrize(
    ("override", "group", "answers"),
    [
        ("partitioner=none", "partitioner", {"splits": False, "num_shards": None}),
        ("partitioner=fixed_shards", "partitioner", {"splits": True, "num_shards": 2}),
        ("partitioner=min_size", "partitioner", {"splits": True, "num_shards": None}),
        ("partitioner=max_size", "partitioner", {"splits": True, "num_shards": None}),
        ("checkpoint=epoch", "checkpoint", {"are_taken": True}),
        ("checkpoint=none", "checkpoint", {"are_taken": False, "best_metric": None}),
        ("trainer=fit", "trainer", {"uses_fit": True}),
        ("trainer=custom_loop", "trainer", {"uses_fit": False, "callbacks": ()}),
    ],
)
def test_what_other_choices_answer(override, group, answers):
    choice = getattr(loaded("cluster=inprocess", override), group)
    assert {name: getattr(choice, name) for name in answers} == answers


@pytest.mark.parametrize(
    ("evaluation", "evaluator", "of_job"),
    [("none", None, 0), ("sidecar", EVALUATOR, 1), ("sidecar_thread", Task("worker", 1), 0)],
)
def test_the_tasks_of_a_run(evaluation, evaluator, of_job):
    run = loaded("cluster=local", "cluster.num_workers=2", "cluster.num_ps=1", f"evaluation={evaluation}")
    assert run.evaluator == evaluator
    assert run.num_tasks == {"chief": 1, "ps": 1, "worker": 2} | ({"evaluator": 1} if of_job else {})
