"""Custom training loops: `trainer._target_` names a callable of the program and a `LoopSession`."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from psrun.config import choices, targets
from psrun.config.run_config import RunConfig
from psrun.errors import PsrunError, TrainingError
from psrun.program.compiled_model import Program
from psrun.training.loop import Trainer, TrainingRun
from psrun.training.loop_session import LoopSession

__all__ = ["LoopSession", "trainer"]


def trainer(run: RunConfig) -> Trainer:
    """A trainer that calls the configured loop.

    Raises:
      ConfigError: the callable does not exist, or does not take its options.
    """
    assert isinstance(run.trainer, choices.OwnLoop)
    target = run.trainer.target
    return Trainer(functools.partial(_train, target, targets.bound(target, choices.OwnLoop.PARAMETERS)))


def _train(target: targets.Target, loop: Any, program: Program, run: TrainingRun) -> None:
    session = LoopSession(program, run)
    try:
        loop(program=program, session=session)
        session.finish()
    except (PsrunError, OSError, MemoryError, tf.errors.OpError):
        raise
    except Exception as error:
        message = f"{target.name} failed: {type(error).__name__}: {error}"
        raise TrainingError(f"{target.key}._target_: {message}") from error
    if not run.scheduled and run.left and not session.should_stop:
        message = f"{target.name} returned without scheduling a step; call session.schedule(...)"
        raise TrainingError(f"{target.key}._target_: {message}")
