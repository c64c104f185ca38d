"""TensorFlow's errors as psrun's: what happened, in one line, by its own name."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import tensorflow as tf

from psrun import strategy
from psrun.errors import TaskLostError, TrainingError
from psrun.training.monitor import iterations
from psrun.training.session import Session, data_ended

# What TensorFlow wraps its messages in; the whole is in the log.
_NOISE = re.compile(
    r"^(Graph execution error|Detected at node|\s*File |Additional GRPC|:UNKNOWN|\d+ root error|\s*\[\[|"
    r"Remote function on worker)|^\s*$|stack traces unavailable"
)


class _WorkersErrors(logging.Handler):
    """Remembers what the coordinator logs of steps that failed.

    One error cancels all other steps, and which of them is raised is a matter of chance: the log has the first cause.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: deque[str] = deque(maxlen=64)

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@contextmanager
def named(current: Callable[[], Session | None]) -> Iterator[None]:
    """Raises TensorFlow's errors as psrun's.

    Args:
      current: the session, once there is one.

    Raises:
      TaskLostError: a parameter server has gone.
      NonFiniteLossError, DataExhaustedError, TrainingError: the reason behind the error.
    """
    heard, logger = _WorkersErrors(), logging.getLogger("tensorflow")
    logger.addHandler(heard)
    try:
        yield
    except tf.errors.OpError as error:
        session = current()
        if session is not None:
            session.check_loss()
        if strategy.task_lost(error):
            task = re.search(r"/job:(ps|worker)/replica:0/task:(\d+)", str(error))
            name = f"{task[1]}-{task[2]}" if task else "a task"
            raise TaskLostError(f"{name} was lost: {gist(str(error))}", task=name if task else None) from error
        causes = [str(error), *heard.messages]
        ended = isinstance(error, tf.errors.OutOfRangeError) or any("End of sequence" in cause for cause in causes)
        if ended and session is not None:
            raise data_ended(iterations(session.program), session.monitor.planned) from error
        told = next((cause for cause in causes if "ancelled" not in cause and "CANCELLED" not in cause), causes[0])
        raise TrainingError(f"a step failed: {type(error).__name__}: {gist(told)}") from error
    finally:
        logger.removeHandler(heard)


def gist(text: str) -> str:
    """The first line of one of TensorFlow's messages that says what happened."""
    lines = [line for line in text.splitlines() if not _NOISE.search(line)]
    return re.sub(r"\{\{[^}]*\}\}\s*", "", lines[0] if lines else text).strip()[:400]
