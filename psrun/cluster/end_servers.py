"""A chief tells its servers that the run is over."""

from __future__ import annotations

import threading
import time

import tensorflow as tf

from psrun.cluster import run_over
from psrun.config.topology import Task, Topology

_WITHIN_S = 3.0


def tell_servers(topology: Topology) -> None:
    """Tells every server that the run is over. Needs no folder that is shared.

    Call in the chief, while it is connected. A server that has gone meanwhile is passed over; what takes longer than a
    few seconds is left, and the servers find out for themselves that the chief has gone.
    """
    threads = [threading.Thread(target=_tell, args=(task,), daemon=True) for task in topology.servers()]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + _WITHIN_S
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))


def _tell(task: Task) -> None:
    with tf.device(f"/job:{task.job}/replica:0/task:{task.index}/device:CPU:0"):
        try:
            tf.function(tell)()
        except tf.errors.OpError as error:
            tf.get_logger().warning("%s could not be told that the run is over: %s", task, error)


def tell() -> None:
    """Tells the process that runs it. It takes nothing: a tensor for a worker that came back can hang, lock held."""
    tf.io.write_file(run_over.PATH, "over")
