"""TF_CONFIG as schedulers and people write it, and all that can be wrong with it."""

from __future__ import annotations

import json

import pytest
from support import run_config

from psrun.config import topology
from psrun.config.topology import DATA_JOBS, DISPATCHER, Task, make
from psrun.errors import ConfigError
from psrun.roles.task_assignment import identify

CLUSTER = {"chief": ["c:1"], "worker": ["w:1", "w:2"], "ps": ["p:1"]}


def parsed(cluster=CLUSTER, task=None, **more):
    task = {"type": "worker", "index": 1} if task is None else task
    return topology.from_tf_config(json.dumps({"cluster": cluster, "task": task, **more}))


def test_a_plain_one():
    cluster = parsed()
    assert cluster.me == Task("worker", 1)
    assert cluster.spec() == {"chief": {0: "c:1"}, "worker": {0: "w:1", 1: "w:2"}, "ps": {0: "p:1"}}


def test_as_tfjob_writes_it_the_evaluator_is_stripped():
    cluster = parsed({**CLUSTER, "evaluator": ["e:1"]}, {"type": "evaluator", "index": 0}, environment="cloud")
    assert cluster.me == Task("evaluator", 0)
    assert "evaluator" not in cluster.spec()


@pytest.mark.parametrize("cluster", [{"cluster": {"evaluator": ["host7:2222"]}}, {}], ids=["alone", "no_cluster"])
@pytest.mark.parametrize("evaluation", ["sidecar", "sidecar_thread", "direct"])
def test_the_evaluator_needs_no_cluster(cluster, evaluation):
    """As TensorFlow's tutorial has it."""
    text = json.dumps({**cluster, "task": {"type": "evaluator", "index": 0}})
    identity = identify(run_config("cluster=tf_config", f"evaluation={evaluation}"), {"TF_CONFIG": text})
    assert (identity.role, identity.name, identity.owns_folder) == ("evaluator", "evaluator-0", False)
    static = run_config("cluster=static", f"evaluation={evaluation}", "task.type=evaluator")
    assert identify(static, {}).role == "evaluator"


def test_a_worker_to_slow_down_must_be_in_the_cluster():
    text = json.dumps({"cluster": CLUSTER, "task": {"type": "chief", "index": 0}})
    for last, names in ((1, "{0: 0.1, 1: 0.1}"), (2, "{2: 0.1}")):
        run = run_config("cluster=tf_config", f"cluster.slow_workers={names}")
        if last == 1:
            assert identify(run, {"TF_CONFIG": text}).role == "coordinator"
            continue
        with pytest.raises(ConfigError, match="names worker 2, which does not exist; the workers are 0 to 1"):
            identify(run, {"TF_CONFIG": text})


def test_sparse_workers_master_and_text_for_an_index():
    cluster = parsed({"master": ["c:1"], "worker": {"1": "w:2"}, "ps": ["p:1"]}, {"type": "worker", "index": "1"})
    assert cluster.spec() == {"chief": {0: "c:1"}, "worker": {1: "w:2"}, "ps": {0: "p:1"}}
    assert parsed({**CLUSTER}, {"type": "master", "index": 0}).me == topology.CHIEF


def test_without_a_chief_address():
    assert "chief" not in parsed({"worker": ["w:1"], "ps": ["p:1"]}, {"type": "chief"}).spec()


def test_round_trip():
    addresses = parsed().addresses
    assert topology.from_tf_config(topology.tf_config(addresses, Task("ps", 0))).addresses == addresses


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "is not set"),
        ("{cluster", "is not JSON"),
        ("[]", "must be an object"),
        (json.dumps({"cluster": CLUSTER}), "TF_CONFIG.task: is None, must have 'type'"),
        (
            json.dumps({"cluster": CLUSTER, "task": {"type": "worker", "index": 7}}),
            "is 7, must be one of [0, 1] as in TF_CONFIG.cluster.worker",
        ),
        (json.dumps({"cluster": CLUSTER, "task": {"type": "boss", "index": 0}}), "'boss', must be one of"),
        (json.dumps({"cluster": CLUSTER, "task": {"type": "chief", "index": 1}}), "there is one chief"),
        (json.dumps({"cluster": CLUSTER, "task": {"type": "ps", "index": "x"}}), "must be an integer"),
        (json.dumps({"cluster": {**CLUSTER, "ps": ["w:1"]}, "task": {"type": "ps"}}), "is the address of"),
        (json.dumps({"cluster": {**CLUSTER, "ps": ["nowhere"]}, "task": {"type": "ps"}}), "must be HOST:PORT"),
        (json.dumps({"cluster": {**CLUSTER, "ps": "p:1"}, "task": {"type": "ps"}}), "must be a list"),
        (json.dumps({"cluster": {**CLUSTER, "boss": ["b:1"]}, "task": {"type": "ps"}}), "boss: is not a job"),
        (json.dumps({"cluster": {"worker": ["w:1"]}, "task": {"type": "worker"}}), "ps: is missing"),
    ],
)
def test_what_is_malformed_is_reported(text, message):
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        topology.from_tf_config(text)


@pytest.mark.parametrize(
    ("cluster", "job", "message"),
    [
        ({"data_worker": ["d:1"]}, "chief", "data_dispatcher: is missing: data.visitation=dynamic needs at least one"),
        ({"data_dispatcher": ["d:1", "d:2"], "data_worker": ["e:1"]}, "chief", "must have one"),
        (
            {"data_dispatcher": ["d:1"], "data_worker": ["e:1"]},
            "data_worker:3",
            "is 3, must be one of [0] as in cluster.data_worker",
        ),
    ],
)
def test_what_is_wrong_with_the_tasks_of_the_data_service_is_reported(cluster, job, message):
    whole = {"chief": ["c:1"], "worker": ["w:1"], "ps": ["p:1"], **cluster}
    job, _, index = job.partition(":")
    with pytest.raises(ConfigError) as raised:
        make(whole, job, int(index or 0), key="cluster", task_key="task", needed=("worker", "ps", *DATA_JOBS))
    assert message in str(raised.value)


def test_tensorflow_does_not_see_the_tasks_of_the_data_service():
    whole = {"chief": ["c:1"], "worker": ["w:1"], "ps": ["p:1"], "data_dispatcher": ["d:1"], "data_worker": ["e:1"]}
    cluster = make(whole, "data_worker", 0, key="cluster", task_key="task")
    assert set(cluster.spec()) == {"chief", "worker", "ps"}
    assert cluster.addresses[DISPATCHER] == "d:1"


def test_addresses_of_the_data_service_can_be_in_the_configuration():
    addresses = "{chief: ['c:1'], worker: ['w:1'], ps: ['p:1'], data_dispatcher: ['d:1'], data_worker: ['e:1']}"
    run = run_config(
        "cluster=static", f"cluster.addresses={addresses}", "data.visitation=dynamic", "task.type=data_worker"
    )
    identity = identify(run, {})
    assert (identity.role, identity.name) == ("data_server", "data_worker-0")
    assert identity.topology is not None
    assert identity.topology.addresses[DISPATCHER] == "d:1"
