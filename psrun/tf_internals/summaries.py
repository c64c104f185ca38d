"""Records of summary files that TensorFlow's public API does not write."""

from __future__ import annotations

import time

import tensorflow as tf
from tensorflow.python.ops import summary_ops_v2


def write_session_start(step: int) -> None:
    """Writes, with the default summary writer, that a training begins at `step`.

    TensorBoard then forgets the values of `step` and later steps that it has read so far.
    """
    start = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
    event = tf.compat.v1.Event(wall_time=time.time(), step=step, session_log=start)
    summary_ops_v2.import_event(event.SerializeToString())
