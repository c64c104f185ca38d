"""A chief signals to its servers that the run is over."""

from __future__ import annotations

import threading
import time

import tensorflow as tf

from psrun.cluster import run_over
from psrun.config.topology import Task, Topology

_WITHIN_S = 3.0


def signal_run_over(topology: Topology) -> None:
    """Signals to every server that the run is over. Does not require a shared folder.

    Call in the chief while it is connected. Takes a few seconds at most: servers that are not reached detect the loss
    of the chief.
    """
    threads = [threading.Thread(target=_signal, args=(task,), daemon=True) for task in topology.servers()]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + _WITHIN_S
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))


def _signal(task: Task) -> None:
    with tf.device(f"/job:{task.job}/replica:0/task:{task.index}/device:CPU:0"):
        try:
            tf.function(signal_over)()
        except tf.errors.OpError as error:
            tf.get_logger().warning("%s did not receive the signal that the run is over: %s", task, error)


def signal_over() -> None:
    """Signals the process that runs it. Without arguments: sending a tensor to a worker that rejoined can hang."""
    tf.io.write_file(run_over.PATH, "over")
