"""Private names of TensorFlow and tf-keras that psrun depends on: each one a function with its reason.

A name that is gone fails loudly; a test pins each of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from unittest import mock

import grpc
import tensorflow as tf
from tensorflow.core.framework import device_attributes_pb2
from tensorflow.python.distribute.parameter_server_strategy_v2 import ParameterServerStrategyV2Extended
from tensorflow.python.distribute.ps_values import AggregatingVariable
from tf_keras.src.engine import compile_utils

_ONE_CPU = ("/device:CPU:0",)


def built_metrics(weighted: Any, network: Any, prediction: Any, label: Any, names: Sequence[str]) -> Any:
    """The container in which `compile` keeps weighted metrics, with variables of its own.

    It knows which output a metric is for, and what 'accuracy' means by the shapes of label and prediction. Keras has no
    public way to it but a second compiled model, with an optimizer that nobody needs (tf-keras 2.21).

    Args:
      weighted: metrics as `compile` takes them.
      prediction, label: specs of a batch.
      names: for the metrics in order: Keras numbers those that have none, anew each time.
    """
    container = compile_utils.MetricsContainer(weighted_metrics=weighted, output_names=network.output_names)
    build_metrics(container, prediction, label)
    for metric, name in zip(container.metrics, names, strict=True):
        metric._name = name
    return container


def build_metrics(container: Any, prediction: Any, label: Any) -> None:
    """Makes the variables of metrics, as the first `container.update_state` would (tf-keras 2.21).

    Args:
      container: such as the `compiled_metrics` of a network.
      prediction, label: of a batch, or their specs. Labels may be by the names of outputs that come as a list, which
        only `update_state` allows for.
    """
    container.build(prediction, container._conform_to_outputs(prediction, label))


def losses_by_output(container: Any, label: Any, prediction: Any, weight: Any) -> dict[str, Any]:
    """The loss of a batch for each output that has one, without an update of metrics.

    `container(...)`, which is public, adds to metrics on parameter servers; an evaluation must leave these alone. So
    its losses are called here in the same way: by output, with labels and weights of the same type and rank (tf-keras
    2.21).

    Args:
      container: the `compiled_loss` of a network, built.
      label, prediction, weight: of the batch, as the network's `train_step` takes them; `weight` may be None.
    """
    labels = container._conform_to_outputs(prediction, label)
    weights = container._conform_to_outputs(prediction, weight)
    losses = {}
    batch = map(tf.nest.flatten, (labels, prediction, weights))
    flat = zip(*batch, container._losses, container._output_names, strict=True)
    for of_label, of_prediction, of_weight, loss, name in flat:
        if loss is not None and of_label is not None:
            aligned = compile_utils.match_dtype_and_rank(of_label, of_prediction, of_weight)
            losses[name] = loss(aligned[0], aligned[1], sample_weight=aligned[2])
    return losses


def position_in_backup(network: Any, steps_per_epoch: int) -> tuple[int, int]:
    """Where `fit` resumes once BackupAndRestore has restored the network: whole epochs, and steps of the next one.

    `fit` asks this after the callbacks' `on_train_begin`; psrun must know it before, to report epochs and steps and to
    find the place in the data (tf-keras 2.21).
    """
    epochs, steps = network._maybe_load_initial_counters_from_ckpt(steps_per_epoch, 0)
    return int(epochs), int(steps)


def strategy_with_replicas(
    make: Callable[[], tf.distribute.ParameterServerStrategy], devices: Callable[[], tuple[str, ...]]
) -> tf.distribute.ParameterServerStrategy:
    """A strategy whose workers have a replica on each of `devices`, rather than on each GPU that they have.

    TensorFlow counts the GPUs of workers when a strategy is made, and knows no other number and no other devices
    (TensorFlow 2.21).

    Args:
      make: makes the strategy, connected to its cluster.
      devices: called once the cluster is connected to; the names of the devices within a worker, one or more.
    """
    found: list[tuple[str, ...]] = []

    def set_num_gpus(extended: Any) -> None:
        found.append(devices())
        # 0 stands for one replica on the CPU, which needs no variables that add up what replicas write.
        extended._num_gpus_per_worker = 0 if found[0] == _ONE_CPU else len(found[0])

    with mock.patch.object(ParameterServerStrategyV2Extended, "_set_num_gpus", set_num_gpus):
        strategy = make()
    (names,) = found
    extended = strategy.extended
    extended.__class__ = type(
        "Extended", (ParameterServerStrategyV2Extended,), {"worker_devices": property(lambda self: names)}
    )
    if strategy.num_replicas_in_sync != len(names) or extended.worker_devices != names:
        raise RuntimeError(f"TensorFlow {tf.__version__} decides on the replicas of workers in another way than 2.21")
    return strategy


def aggregate_alike(variables: Iterable[Any]) -> None:
    """Makes it possible for all replicas to assign these variables, provided that they assign the same.

    tf-keras makes the variable of a learning rate that follows a schedule without a way to aggregate, and assigns it on
    each replica: TensorFlow refuses that (tf-keras 2.21).
    """
    for variable in aggregating(variables):
        if variable._aggregation == tf.VariableAggregation.NONE:
            variable._aggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA


def aggregating(variables: Iterable[Any]) -> list[Any]:
    """The variables among these that add up what replicas write, shards one by one."""
    shards = [shard for variable in variables for shard in getattr(variable, "variables", None) or [variable]]
    return [shard for shard in shards if isinstance(shard, AggregatingVariable)]


def iterations_in_checkpoint(reader: Any) -> int | None:
    """The steps that an optimizer in a checkpoint had applied; None where the checkpoint holds no optimizer.

    A checkpoint names values by the attributes of their objects: `_iterations` of an optimizer of tf-keras 2.21, `iter`
    of one of before Keras 2.11.
    """
    held = reader.get_variable_to_shape_map()
    for name in ("optimizer/_iterations", "optimizer/iter", "model/optimizer/_iterations", "model/optimizer/iter"):
        key = f"{name}/.ATTRIBUTES/VARIABLE_VALUE"
        if key in held:
            return int(reader.get_tensor(key))
    return None


def lock_of_saves(network: Any) -> threading.Lock:
    """A lock that is held while `network.save` in some thread looks for what to save.

    Keras sets `train_function` to None meanwhile, and `fit` in another thread would call that None (tf-keras 2.21).
    """
    lock, children = threading.Lock(), network._trackable_children

    def guarded(save_type: str = "checkpoint", **options: Any) -> Any:
        if save_type != "savedmodel":
            return children(save_type, **options)
        with lock:
            return children(save_type, **options)

    network._trackable_children = guarded
    return lock


def incarnation(channel: grpc.Channel, timeout_s: float) -> int | None:
    """The random number that a server took when it started; None where it is too busy to answer within `timeout_s`.

    With it TensorFlow itself finds that a server was started again. No public function asks a single server for it, and
    the messages of `WorkerService` are not in the wheel: as bytes, the devices are field 1 of the answer (TensorFlow
    2.21).

    Raises:
      RuntimeError: the server has no such method.
    """
    try:
        answer = channel.unary_unary("/tensorflow.WorkerService/GetStatus")(b"", timeout=timeout_s)
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.UNIMPLEMENTED:
            raise RuntimeError("TensorFlow's servers have no WorkerService.GetStatus any more") from error
        return None
    devices = tf.train.BytesList.FromString(answer).value
    return device_attributes_pb2.DeviceAttributes.FromString(devices[0]).incarnation
