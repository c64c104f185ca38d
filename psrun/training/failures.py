"""Translates TensorFlow's errors into psrun's: one line with the cause."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import tensorflow as tf

from psrun.config import targets
from psrun.data import loading
from psrun.errors import (
    ConfigError,
    DataError,
    DataExhaustedError,
    NonFiniteLossError,
    PsrunError,
    TaskLostError,
    TrainingError,
)
from psrun.optimizers import sparse
from psrun.program import batch_checks, embeddings
from psrun.program.compiled_model import Program
from psrun.tf_internals.messages import (
    LOGGER,
    cancelled,
    data_ended,
    gave_up_for,
    gist,
    python_error,
    task_in,
    task_lost,
)
from psrun.training.loop import TrainingRun


class _WorkersErrors(logging.Handler):
    """Remembers what the coordinator logs about failed steps.

    One error cancels all other steps, and any of their errors may be raised; a dataset that failed raises OutOfRange
    at the next read. The log has the original cause.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: deque[str] = deque(maxlen=64)

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())

    def cause(self, raised: str) -> str:
        """The earliest known cause: of the coordinator's cancellation, of its exception, or from the workers."""
        gave_up = [first for first in map(gave_up_for, self.messages) if first is not None]
        causes = [*gave_up[-1:], raised, *self.messages]
        return next((cause for cause in causes if not cancelled(gist(cause))), raised)


@contextmanager
def named(
    current: Callable[[], TrainingRun | None],
    check_servers: Callable[[], None] = lambda: None,
    built: Callable[[], Program | None] = lambda: None,
) -> Iterator[None]:
    """Raises TensorFlow's errors as psrun's.

    Args:
      current: the training, once there is one.
      check_servers: raises TaskLostError if a parameter server was restarted, independently of TensorFlow's error.
      built: the program, once there is one.

    Raises:
      TaskLostError: a parameter server was lost.
      ConfigError: there are fewer files than workers that share them.
      PsrunError: raised while a function was traced.
      DataError: a batch has wrong labels or features.
      NonFiniteLossError, DataExhaustedError, TrainingError: the reason behind the error.
    """
    logged = _WorkersErrors()
    logger = logging.getLogger(LOGGER)
    logger.addHandler(logged)
    try:
        yield
    except tf.errors.OpError as error:
        run = current()
        if run is not None:
            with suppress(tf.errors.OpError):  # raised by a hook that met the same lost server
                run.check()
        check_servers()
        if task_lost(error):
            task = task_in(str(error))
            raise TaskLostError(f"{task or 'a task'} was lost: {gist(str(error))}", task=task) from error
        cause = logged.cause(str(error))
        raise _reason(error, cause, run, built()) from error
    except Exception as error:
        inner = error.__context__  # AutoGraph raises another error in place of one that was raised in a trace
        while inner is not None and not isinstance(inner, PsrunError):
            inner = inner.__context__
        if inner is None or isinstance(error, PsrunError):
            raise
        raise inner from error
    finally:
        logger.removeHandler(logged)


def _reason(error: tf.errors.OpError, cause: str, run: TrainingRun | None, program: Program | None) -> PsrunError:
    """psrun's error for one of a step, whose first cause has the text `cause`."""
    if data_ended(gist(cause)) and run is not None:
        return DataExhaustedError.at(run.program.iterations, run.monitor.planned)
    wrong_data = batch_checks.wrong_data_in(cause)
    if wrong_data is not None:
        return DataError(wrong_data)
    problem = loading.too_few_files(cause)
    if problem is not None:
        return ConfigError([problem])
    raised = python_error(cause)
    if raised is not None:
        frames, exception = raised
        return TrainingError(f"a step failed: {targets.placed(exception, frames)}")
    if sparse.NOT_FINITE in cause:
        message = f"{gist(cause)}; try a smaller optimizer.learning_rate, and check the data"
        return NonFiniteLossError(message)
    if program is not None:
        outside = embeddings.outside_id_in(cause, program.network, program.source.features)
        if outside is not None:
            return TrainingError(f"a step failed: {outside}")
    return TrainingError(f"a step failed: {type(error).__name__}: {gist(cause)}")
