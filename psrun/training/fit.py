"""Training by Keras' Model.fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tf_keras

from psrun import config
from psrun.config import RunConfig
from psrun.program import Program
from psrun.training import callbacks
from psrun.training.monitor import iterations
from psrun.training.session import Session, data_ended


def trainer(run: RunConfig) -> Callable[[Program, Session], None]:
    """A function that trains a program with the callbacks and, if configured, the validation of `run`.

    Raises:
      ConfigError: a callback cannot be made or cannot be used here.
    """
    made = callbacks.make(run)

    def train(program: Program, session: Session) -> None:
        data: Any = program.train_dataset()
        if program.distribution.coordinator is not None:
            data = tf_keras.utils.experimental.DatasetCreator(program.train_dataset)
        validation: dict[str, Any] = {}
        if isinstance(run.evaluation, config.Validation):
            validation = {"validation_data": program.evaluation_dataset(), "validation_freq": run.evaluation.every}
        try:
            program.network.fit(
                data,
                epochs=run.trainer.epochs,
                steps_per_epoch=run.trainer.steps_per_epoch,
                callbacks=[callbacks.Epochs(session), *made],
                verbose=0,
                **validation,
            )
        except ValueError as error:
            # Keras' way to say that the data ended within the first execution of an epoch.
            if "Empty logs" in str(error):
                raise data_ended(iterations(program), session.monitor.planned) from error
            raise

    return train
