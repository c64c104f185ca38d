"""Batch sizes and learning rates that follow from the number of replicas, before TensorFlow is imported."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf
from support import raw_config, run_config

from psrun.config import composition, parse, topology
from psrun.errors import ConfigError
from psrun.results import recorded_config

FIVE = ("data.global_batch_size=null", "data.batch_size_per_replica=5")


@pytest.mark.parametrize(
    ("overrides", "count"),
    [
        (("cluster=none",), 1),
        (("cluster=one_device",), 1),
        (("cluster=mirrored", "cluster.num_replicas=3"), 3),
        (("cluster=central_storage", "cluster.num_replicas=2"), 2),
        (("cluster=multi_worker_mirrored", "cluster.num_workers=4", "trainer=fit"), 4),
        (("cluster=inprocess",), 1),
        (("cluster=local", "cluster.num_workers=4", "cluster.replicas_per_worker=2"), 2),
        (("cluster=tf_config", "cluster.replicas_per_worker=2"), 2),
    ],
)
def test_a_step_has_the_examples_of_all_replicas(monkeypatch, overrides, count):
    monkeypatch.setattr(topology, "gpus_here", list)
    rates = ("optimizer.learning_rate=${scaled:0.5}", "seed=${num_replicas:}")
    run = run_config(*overrides, *FIVE, *rates)
    assert run.data.global_batch_size == 5 * count
    assert run.optimizer.options["learning_rate"] == 0.5 * count
    assert run.seed == count


@pytest.mark.parametrize(
    ("overrides", "gpu_names", "key", "message"),
    [
        (("cluster=tf_config", *FIVE), [], "cluster.replicas_per_worker", "unknown until they run"),
        (("cluster=tf_config", FIVE[1]), [], "cluster.replicas_per_worker", "unknown until they run"),
        (("cluster=local", *FIVE), ["0"], "cluster.replicas_per_worker", "unknown until they run"),
        (("cluster=multi_worker_mirrored", "trainer=fit", *FIVE), ["0"], "cluster", "set data.global_batch_size"),
        (("data.batch_size_per_replica=5",), [], "data.global_batch_size",
         "is 64, but 1 x data.batch_size_per_replica=5 is 5: set one of them to null"),
        (("data.global_batch_size=null",), [], "data.global_batch_size", "is required"),
        ((FIVE[0], "data.batch_size_per_replica=0"), [], "data.batch_size_per_replica", "must be 1 or more"),
    ],
)  # fmt: skip
def test_what_does_not_follow_is_a_problem(monkeypatch, overrides, gpu_names, key, message):
    monkeypatch.setattr(topology, "gpus_here", lambda: gpu_names)
    raw = raw_config(*overrides)
    with pytest.raises(ConfigError) as raised:
        parse.load(raw)
    assert message in {problem.key: problem.message for problem in raised.value.problems}[key]


@pytest.mark.parametrize(
    ("reference", "value"),
    [
        ("${by_batch_size:{5: 0.1, 10: 0.15}}", 0.15),
        ("${by_batch_size:{5: 0.1}}", r"data.global_batch_size: is 10, but \$\{by_batch_size:...\} has only 5"),
        ("${by_batch_size:5}", "requires a mapping"),
        ("${scaled:fast}", "requires a number"),
    ],
)
def test_a_rate_is_looked_up_by_the_batch_size(reference, value):
    cluster = {"kind": "mirrored", "num_replicas": 2}
    data = {"global_batch_size": None, "batch_size_per_replica": 5}
    composed = OmegaConf.create({"cluster": cluster, "data": data, "optimizer": {"learning_rate": reference}})
    if isinstance(value, str):
        with pytest.raises(ConfigError, match=value):
            composition.plain(composed)
    else:
        plain = composition.plain(composed)
        assert (plain["optimizer"]["learning_rate"], plain["data"]["global_batch_size"]) == (value, 10)


def test_a_resumed_run_keeps_the_batch_of_a_replica_with_any_number_of_replicas(tmp_path):
    then = raw_config("cluster=mirrored", "cluster.num_replicas=2", *FIVE)
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(parse.load(then).raw))
    assert OmegaConf.load(tmp_path / "config.yaml").data.global_batch_size == 10
    now = raw_config("cluster=mirrored", "cluster.num_replicas=3", *FIVE)
    held = parse.load(recorded_config.as_recorded(now, now, tmp_path, {"cluster.num_replicas"})).raw
    assert (held["data"]["batch_size_per_replica"], held["data"]["global_batch_size"]) == (5, 15)
