"""The texts of TensorFlow's errors and logs, and records of its summary files (TensorFlow 2.21, tf-keras 2.21)."""

from __future__ import annotations

import re
import time

import tensorflow as tf
from tensorflow.python.ops import summary_ops_v2

# The logger of TensorFlow's Python code, which the coordinator reports failed steps to.
LOGGER = "tensorflow"
# What the coordinator logs when it gives up, before the first error that it met.
_GAVE_UP = re.compile(r"^Start cancelling closures due to error \w+\(.*?\): ")
# Rows that a look-up asks for: in one table, and in one that is cut in shards, where the id itself is not shown.
_OUTSIDE = re.compile(r"(indices|partitions)\[[\d,]*\] = (-?\d+) is not in \[0, \d+\)")
_NODE = re.compile(r"\{\{node ([^}]+)\}\}")
# What TensorFlow wraps its messages in; the whole is in the log.
_NOISE = re.compile(
    r"^(Graph execution error|Detected at node|\s*File |Additional GRPC|:UNKNOWN|\d+ root error|\s*\[\[|"
    r"Remote function on worker)|^\s*$|stack traces unavailable|encountered the following error when processing closure"
)
_OF_SEVERAL = re.compile(r"^\s*\(\d+\) ")  # errors of one function that failed in more than one place
_CANCELLED = re.compile("[Cc]ancelled|CANCELLED")
_TASK = re.compile(r"/job:(ps|worker)/replica:0/task:(\d+)")
# The chain of iterators above a function of tf.data that failed.
_CHAIN = re.compile(r"Error in user-defined function passed to \S+ transformation with iterator: Iterator::\S+: ")
_TRACEBACK = "Traceback (most recent call last):\n"  # of an exception in a Python function that TensorFlow calls
_FRAME = re.compile(r'^\s+File "([^"]+)", line (\d+), in ')
_TOO_FEW_FILES = re.compile(r"only has \d+ file\(s\), which is not enough for the required (\d+)")


def task_lost(error: tf.errors.OpError) -> bool:
    """Whether an error reports a lost task, also as the text of another error.

    The type is not enough: within a function over a dataset TensorFlow makes an InternalError of it.
    """
    text = str(error)
    unavailable = "UNAVAILABLE" in text or "originally returned UnavailableError" in text
    return isinstance(error, tf.errors.UnavailableError) or ("/job:ps" in text and unavailable)


def task_in(text: str) -> str | None:
    """The first task that a message names, such as 'ps-0'."""
    task = _TASK.search(text)
    return f"{task[1]}-{task[2]}" if task else None


def gave_up_for(message: str) -> str | None:
    """The first error that the coordinator met, from what it logs when it gives up; None for another message."""
    return _GAVE_UP.sub("", message) if _GAVE_UP.search(message) else None


def assigns_on_replicas(error: ValueError) -> bool:
    """Whether a replica assigned a variable that says nothing about what several replicas assign."""
    return "You must specify an aggregation method" in str(error)


def cancelled(text: str) -> bool:
    """Whether an operation was cancelled, which another error is the cause of."""
    return bool(_CANCELLED.search(text))


def data_ended(text: str) -> bool:
    """Whether a dataset was at its end."""
    return "End of sequence" in text


def workers_short_of_files(text: str) -> int | None:
    """The number of workers that share fewer files; None for other messages.

    TensorFlow reports it when the first batch is read, with a wrong number of files.
    """
    match = _TOO_FEW_FILES.search(text)
    return int(match[1]) if match else None


def epoch_without_steps(error: ValueError) -> bool:
    """Whether `fit` failed because the data ended within the first execution of an epoch."""
    return "Empty logs" in str(error)


def reason_of(error: tf.errors.OpError) -> str:
    """The message of an operation that was run eagerly, without the operation's name."""
    return error.message.rpartition("}} ")[2].partition(" [Op:")[0]


def gist(text: str) -> str:
    """The first line of a message that says what happened; of several errors in it, a cause."""
    lines = [line for line in text.splitlines() if not _NOISE.search(line)]
    several = sorted((line for line in lines if _OF_SEVERAL.search(line)), key=_consequence)
    first = next(iter(several or lines), text)
    first = _CHAIN.sub("in the data: ", first)
    return re.sub(r"\{\{[^}]*\}\}\s*", "", first).strip()[:400]


def _consequence(line: str) -> int:
    """How likely an error is one that followed from another."""
    return 2 if cancelled(line) else int(data_ended(line))


def python_error(text: str) -> tuple[list[tuple[str, int]], str] | None:
    """The exception of a Python function that TensorFlow called, such as the generator of a dataset.

    Returns:
      File and line of each frame, the innermost one last, and the exception as a line of text; None for other messages.
    """
    _, found, after = text.partition(_TRACEBACK)
    if not found:
        return None
    frames: list[tuple[str, int]] = []
    for line in after.splitlines():
        frame = _FRAME.match(line)
        if frame is not None:
            frames.append((frame[1], int(frame[2])))
        elif line.strip() and not line[0].isspace():
            return frames, line.strip()
    return None


def outside_lookup(text: str) -> tuple[str, int | None] | None:
    """The node of a look-up that failed because an id has no row, and the id; None for other messages.

    The id is None where the table is cut in shards.
    """
    failed = _OUTSIDE.search(text)
    node = _NODE.search(text, failed.end()) if failed else None
    if failed is None or node is None:
        return None
    return node[1], int(failed[2]) if failed[1] == "indices" else None


def write_session_start(step: int) -> None:
    """Writes, with the default summary writer, that a training begins at `step`.

    TensorBoard then forgets the values of `step` and later steps that it has read so far.
    """
    start = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
    event = tf.compat.v1.Event(wall_time=time.time(), step=step, session_log=start)
    summary_ops_v2.import_event(event.SerializeToString())
