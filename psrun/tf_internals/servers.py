"""TensorFlow's servers, without the rest of TensorFlow: see `modules.import_for_servers`."""

from __future__ import annotations

from collections.abc import Mapping

import grpc
from tensorflow.core.example import feature_pb2
from tensorflow.core.framework import device_attributes_pb2
from tensorflow.core.protobuf import config_pb2
from tensorflow.python import tf2
from tensorflow.python.framework import errors
from tensorflow.python.training import server_lib

OpError = errors.OpError


def start(
    addresses: Mapping[str, Mapping[int, str]],
    job: str,
    index: int,
    *,
    device_count: Mapping[str, int],
    num_inter_op_threads: int,
    num_intra_op_threads: int,
) -> server_lib.Server:
    """Starts the server of a task in this process: `tf.distribute.Server`, which needs the whole of TensorFlow there.

    Raises:
      OpError: it could not be started.
    """
    tf2.enable()  # as `import tensorflow` does: the runtime asks for it
    config = config_pb2.ConfigProto(
        device_count=device_count,
        inter_op_parallelism_threads=num_inter_op_threads,
        intra_op_parallelism_threads=num_intra_op_threads,
    )
    return server_lib.Server({name: dict(tasks) for name, tasks in addresses.items()}, job, index, "grpc", config)


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
    devices = feature_pb2.BytesList.FromString(answer).value
    return device_attributes_pb2.DeviceAttributes.FromString(devices[0]).incarnation
