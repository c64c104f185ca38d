"""TensorFlow's errors as psrun's: what happened, in one line, by its own name."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import tensorflow as tf

from psrun.cluster import strategy
from psrun.data import autoshard
from psrun.errors import ConfigError, DataExhaustedError, NonFiniteLossError, PsrunError, TaskLostError, TrainingError
from psrun.optimizers import rows
from psrun.training.progress import iterations
from psrun.training.session import Session

# What the coordinator logs when it gives up, before the first error that it met.
_GAVE_UP = re.compile(r"^Start cancelling closures due to error \w+\(.*?\): ")
# What TensorFlow wraps its messages in; the whole is in the log.
_NOISE = re.compile(
    r"^(Graph execution error|Detected at node|\s*File |Additional GRPC|:UNKNOWN|\d+ root error|\s*\[\[|"
    r"Remote function on worker)|^\s*$|stack traces unavailable|encountered the following error when processing closure"
)
_OF_SEVERAL = re.compile(r"^\s*\(\d+\) ")  # errors of one function that failed in more than one place
_CANCELLED = re.compile("[Cc]ancelled|CANCELLED")


class _WorkersErrors(logging.Handler):
    """Remembers what the coordinator logs of steps that failed.

    One error cancels all other steps, and which of them is raised is a matter of chance; a dataset that failed says
    that it is at its end when it is asked once more. The log has the first cause.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: deque[str] = deque(maxlen=64)

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())

    def cause(self, raised: str) -> str:
        """The earliest known cause: of the coordinator's cancellation, of its exception, or from the workers."""
        gave_up = [_GAVE_UP.sub("", message) for message in self.messages if _GAVE_UP.search(message)]
        causes = [*gave_up[-1:], raised, *self.messages]
        return next((cause for cause in causes if not _CANCELLED.search(gist(cause))), raised)


@contextmanager
def named(current: Callable[[], Session | None], check_servers: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Raises TensorFlow's errors as psrun's.

    Args:
      current: the session, once there is one.
      check_servers: raises TaskLostError if a parameter server was restarted, independently of TensorFlow's error.

    Raises:
      TaskLostError: a parameter server has gone.
      ConfigError: there are fewer files than workers that share them.
      PsrunError: one that was raised while a function was traced.
      NonFiniteLossError, DataExhaustedError, TrainingError: the reason behind the error.
    """
    heard, logger = _WorkersErrors(), logging.getLogger("tensorflow")
    logger.addHandler(heard)
    try:
        yield
    except tf.errors.OpError as error:
        session = current()
        if session is not None:
            with suppress(tf.errors.OpError):  # of a hook that met the same lost server
                session.check()
        check_servers()
        if strategy.task_lost(error):
            task = re.search(r"/job:(ps|worker)/replica:0/task:(\d+)", str(error))
            name = f"{task[1]}-{task[2]}" if task else "a task"
            raise TaskLostError(f"{name} was lost: {gist(str(error))}", task=name if task else None) from error
        cause = heard.cause(str(error))
        if "End of sequence" in gist(cause) and session is not None:
            raise DataExhaustedError.at(iterations(session.program), session.monitor.planned) from error
        if problem := autoshard.too_few_files(cause):
            raise ConfigError([problem]) from error
        if rows.NOT_FINITE in cause:
            message = f"{gist(cause)}; try a smaller optimizer.learning_rate, and check the data"
            raise NonFiniteLossError(message) from error
        raise TrainingError(f"a step failed: {type(error).__name__}: {gist(cause)}") from error
    except Exception as error:
        inner = error.__context__  # AutoGraph raises another error in place of one that was raised in a trace
        while inner is not None and not isinstance(inner, PsrunError):
            inner = inner.__context__
        if inner is None or isinstance(error, PsrunError):
            raise
        raise inner from error
    finally:
        logger.removeHandler(heard)


def gist(text: str) -> str:
    """The first informative line of a TensorFlow message; a cause if it holds several errors."""
    lines = [line for line in text.splitlines() if not _NOISE.search(line)]
    several = sorted((line for line in lines if _OF_SEVERAL.search(line)), key=_consequence)
    first = next(iter(several or lines), text)
    return re.sub(r"\{\{[^}]*\}\}\s*", "", first).strip()[:400]


def _consequence(line: str) -> int:
    """How likely an error is one that followed from another."""
    return 2 if _CANCELLED.search(line) else int("End of sequence" in line)
