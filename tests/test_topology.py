"""TF_CONFIG as schedulers and people write it, and all that can be wrong with it."""

from __future__ import annotations

import json

import pytest

from psrun.cluster import topology
from psrun.cluster.topology import Task
from psrun.errors import ConfigError

CLUSTER = {"chief": ["c:1"], "worker": ["w:1", "w:2"], "ps": ["p:1"]}


def parsed(cluster=CLUSTER, task=None, **more):
    task = {"type": "worker", "index": 1} if task is None else task
    return topology.from_tf_config(json.dumps({"cluster": cluster, "task": task, **more}))


def test_a_plain_one():
    found = parsed()
    assert found.me == Task("worker", 1)
    assert found.spec() == {"chief": {0: "c:1"}, "worker": {0: "w:1", 1: "w:2"}, "ps": {0: "p:1"}}


def test_as_tfjob_writes_it_the_evaluator_is_stripped():
    found = parsed({**CLUSTER, "evaluator": ["e:1"]}, {"type": "evaluator", "index": 0}, environment="cloud")
    assert found.me == Task("evaluator", 0)
    assert "evaluator" not in found.spec()


def test_sparse_workers_master_and_text_for_an_index():
    found = parsed({"master": ["c:1"], "worker": {"1": "w:2"}, "ps": ["p:1"]}, {"type": "worker", "index": "1"})
    assert found.spec() == {"chief": {0: "c:1"}, "worker": {1: "w:2"}, "ps": {0: "p:1"}}
    assert parsed({**CLUSTER}, {"type": "master", "index": 0}).me == topology.CHIEF


def test_without_a_chief_address():
    assert "chief" not in parsed({"worker": ["w:1"], "ps": ["p:1"]}, {"type": "chief"}).spec()


def test_round_trip():
    addresses = parsed().addresses
    assert topology.from_tf_config(topology.tf_config(addresses, Task("ps", 0))).addresses == addresses


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "is not set"),
        ("{cluster", "is not JSON"),
        ("[]", "needs an object"),
        (json.dumps({"cluster": CLUSTER}), "TF_CONFIG.task: needs 'type'"),
        (json.dumps({"cluster": CLUSTER, "task": {"type": "worker", "index": 7}}), "is 7; TF_CONFIG.cluster.worker"),
        (json.dumps({"cluster": CLUSTER, "task": {"type": "boss", "index": 0}}), "'boss', must be one of"),
        (json.dumps({"cluster": CLUSTER, "task": {"type": "chief", "index": 1}}), "there is one chief"),
        (json.dumps({"cluster": CLUSTER, "task": {"type": "ps", "index": "x"}}), "must be a number"),
        (json.dumps({"cluster": {**CLUSTER, "ps": ["w:1"]}, "task": {"type": "ps"}}), "is the address of"),
        (json.dumps({"cluster": {**CLUSTER, "ps": ["nowhere"]}, "task": {"type": "ps"}}), "is no address"),
        (json.dumps({"cluster": {**CLUSTER, "ps": "p:1"}, "task": {"type": "ps"}}), "must be a list"),
        (json.dumps({"cluster": {**CLUSTER, "boss": ["b:1"]}, "task": {"type": "ps"}}), "boss: is no job"),
        (json.dumps({"cluster": {"worker": ["w:1"]}, "task": {"type": "worker"}}), "ps: is missing"),
    ],
)
def test_what_is_malformed_is_told(text, said):
    with pytest.raises(ConfigError, match=said.replace("[", r"\[")):
        topology.from_tf_config(text)
