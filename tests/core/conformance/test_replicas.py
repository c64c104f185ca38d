"""Several replicas a worker: a batch is split between them, and the step is that of the whole batch on one device."""

from __future__ import annotations

import pytest
import tensorflow as tf
from outcomes import check_same
from tensorflow.config import LogicalDevice

from psrun.closures import scheduling
from psrun.cluster import servers, strategy
from psrun.config import topology
from psrun.config.topology import Task

pytestmark = pytest.mark.inprocess

# 64 examples in batches of 9: none can be split evenly in 3, and the last is one example: two of its parts are empty.
IDS = ("~model.embedding_dim", "~data.num_train_examples", "~data.num_eval_examples", "data._target_=embeddings.Ids",
       "data.visitation=once", "data.global_batch_size=9", "trainer.steps_per_epoch=null", "trainer.epochs=2",
       "trainer.steps_per_execution=4")  # fmt: skip


def both(train, *pieces: str, replicas: int = 3):
    """A run on one device, and on parts of one worker."""
    pieces = (*pieces, "cluster=inprocess")
    alone, here = train(*pieces, num_workers=1)
    split, there = train(*pieces, f"cluster.replicas_per_worker={replicas}", num_workers=1)
    check_same(there, here)
    return alone, split


OF_LINEAR = ("model._target_=replicas.linear", "evaluation=exact")
CASES = [
    ("fit", (*OF_LINEAR, "+model.keras=true", "+model.regularizer=null", "optimizer=adam", "evaluation=validation")),
    ("custom_loop", (*OF_LINEAR, "+model.reduction=sum", "optimizer=lazy_adam")),
]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(("trainer", "pieces"), CASES)
def test_steps_are_those_of_one_device(train, monkeypatch, trainer, pieces):
    monkeypatch.setattr(scheduling, "_STEPS_TO_UNROLL_FOR", 1)
    alone, split = both(train, *IDS, "partitioner=fixed_shards", *pieces, f"trainer={trainer}")
    assert split["steps"] == alone["steps"] == {"applied": 16, "scheduled": 16, "repeated": 0}
    for name, value in alone["metrics"].items():
        if "+model.reduction=sum" not in pieces or name != "loss":  # Keras reports the mean of the sums of parts
            assert split["metrics"][name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    assert split["metrics"]["assigned"] == 64
    assert split["evaluation"]["examples_seen"] == 16
    assert split["replicas"] == {"per_worker": 3, "devices": ["CPU:0", "CPU:1", "CPU:2"]}
    assert alone["replicas"] == {"per_worker": 1, "devices": ["CPU:0"]}


@pytest.mark.thorough
def test_what_an_own_step_returns_can_be_followed(train, warnings_of_tensorflow):
    """It is traced before the training, with an optimizer whose learning rate follows a schedule."""
    schedule = ("{_target_: tf_keras.optimizers.schedules.ExponentialDecay, initial_learning_rate: 0.1, "
                "decay_steps: 5, decay_rate: 0.5}")  # fmt: skip
    result, _ = train(*IDS, "model._target_=replicas.own_step", "evaluation=none", "optimizer=adagrad",
                      f"optimizer.learning_rate={schedule}", "early_stopping.metric=loss", "early_stopping.mode=min",
                      "cluster=inprocess", "cluster.replicas_per_worker=3", num_workers=1)  # fmt: skip
    assert set(result["metrics"]) == {"loss"}
    assert warnings_of_tensorflow == []


def logical(kind: str, *counts: int) -> list:
    """Devices of workers, so many of each; and of the others, as TensorFlow lists them."""
    tasks = [f"/job:worker/replica:0/task:{task}" for task, count in enumerate(counts) for _ in range(count)]
    numbers = [number for count in counts for number in range(count)]
    others = [f"/job:{job}/replica:0/task:0/device:{kind}:0" for job in ("chief", "ps")]
    return [
        LogicalDevice(name, kind) for name in (*others, *map("{}/device:{}:{}".format, tasks, [kind] * 99, numbers))
    ]


@pytest.mark.parametrize(
    ("wanted", "cpus", "gpus", "expected"),
    [
        (None, (1, 1), (0, 0), ["CPU:0"]),
        (None, (1, 1), (2, 2), ["GPU:0", "GPU:1"]),
        (2, (2, 2), (2, 3), ["GPU:0", "GPU:1"]),
        (2, (2, 2), (2, 1), ["CPU:0", "CPU:1"]),
        (1, (1, 1), (4, 4), ["GPU:0"]),
    ],
)
def test_replicas_are_on_gpus_where_all_workers_have_so_many(monkeypatch, wanted, cpus, gpus, expected):
    there = {"CPU": logical("CPU", *cpus), "GPU": logical("GPU", *gpus)}
    monkeypatch.setattr(tf.config, "list_logical_devices", there.__getitem__)
    assert strategy.replica_devices(wanted) == tuple(f"/device:{name}" for name in expected)


def test_only_workers_have_gpus_and_on_one_machine_each_has_its_own(tmp_path):
    assert servers.devices("ps", 2) == servers.devices("ps", None) == {"GPU": 0}
    assert servers.devices("worker", None) == {}
    tasks = [Task("chief", 0), Task("ps", 0), Task("worker", 0), Task("worker", 1)]
    seen = [topology.gpus_of_task(task, tasks, ["3", "5", "6", "7"]).get("CUDA_VISIBLE_DEVICES") for task in tasks]
    assert seen == ["-1", "-1", "3,5", "6,7"]
    assert [topology.gpus_of_task(task, tasks, ["0"]) for task in tasks] == [{"CUDA_VISIBLE_DEVICES": "-1"}] * 4
    assert topology.gpus_of_task(tasks[2], tasks, []) == {}
    synchronous = [Task("chief", 0), Task("worker", 0)]  # NCCL shares the GPUs
    assert topology.gpus_of_task(tasks[2], synchronous, ["0"]) == {}
    for name in ("nvidia0", "nvidia10", "nvidia2", "nvidiactl", "null"):
        (tmp_path / name).touch()
    assert topology.gpus_here({}, tmp_path) == ["0", "2", "10"]
    assert topology.gpus_here({"CUDA_VISIBLE_DEVICES": "4, 5"}, tmp_path) == ["4", "5"]
    assert topology.gpus_here({"CUDA_VISIBLE_DEVICES": "-1"}, tmp_path) == []
    assert topology.gpus_here({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == []
