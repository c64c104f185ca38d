"""TensorFlow's servers, without the rest of TensorFlow: see `modules.import_for_servers`."""

from __future__ import annotations

from collections.abc import Mapping

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
