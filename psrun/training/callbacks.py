"""Keras callbacks of the configuration, and the one through which `fit` tells psrun of its epochs."""

from __future__ import annotations

from typing import Any

import tf_keras

from psrun import targets
from psrun.choices import Fit
from psrun.config import RunConfig
from psrun.errors import ConfigError, Problem
from psrun.training.lockstep import Lockstep
from psrun.training.packing import Packing
from psrun.training.session import Session

_BATCH_METHODS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
_SEEN = "examples_seen"


def make(run: RunConfig) -> list[tf_keras.callbacks.Callback]:
    """The callbacks that the configuration names.

    Raises:
      ConfigError: one is no Keras callback, or works batch by batch where steps end on workers.
    """
    assert isinstance(run.trainer, Fit)
    made, problems = [], []
    for index, node in enumerate(run.trainer.callbacks):
        key = f"trainer.callbacks[{index}]"
        options = {name: value for name, value in node.items() if name != "_target_"}
        callback = targets.call(targets.Target(node["_target_"], options, key))
        made.append(callback)
        base = tf_keras.callbacks.Callback
        if not isinstance(callback, base):
            problems.append(Problem(key, f"{node['_target_']} made a {type(callback).__name__}, no Keras callback"))
        elif run.parameter_servers and not getattr(callback, "_supports_tf_logs", False):
            overridden = [name for name in _BATCH_METHODS if getattr(type(callback), name) is not getattr(base, name)]
            if overridden:
                problems.append(
                    Problem(key, f"{node['_target_']} has {', '.join(overridden)}; under parameter servers steps end "
                            "on workers, so only epoch-level methods are called")
                )  # fmt: skip
    if problems:
        raise ConfigError(problems)
    return made


class Epochs(tf_keras.callbacks.Callback):
    """Tells the session of each epoch. Put first: what it adds to the logs is there for the callbacks after it.

    Args:
      packing: what schedules the steps on workers; None where they are done when Keras says so.
    """

    def __init__(self, session: Session, packing: Packing | None) -> None:
        super().__init__()
        self._supports_tf_logs = True  # takes results as they are: reading them would wait for the step
        self._session = session
        self._joined = False
        self._scheduled = 0
        self._packing = packing

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._joined, self._scheduled = False, 0
        if self._packing is not None:
            # Keras puts back what it had before the last execution of an epoch, which may be shorter.
            self.model._steps_per_execution.assign(self._packing.num_steps)
        self._session.epoch_begins()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        num_steps = batch + 1 - self._scheduled
        self._scheduled = batch + 1  # under parameter servers they are not done yet
        if self._packing is not None:
            self._session.check_loss()
        if self._session.steps_scheduled(num_steps):
            if self._packing is not None:
                self._packing.join()
            self._session.save()
        if self._session.stop.requested.is_set() and self._session.lockstep is None:
            self.model.stop_training = True  # the request may have come before `fit`, which forgets it

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._join()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._join()
        logs = {} if logs is None else logs
        logs.pop(_SEEN, None)
        validation = {name[4:]: float(value) for name, value in logs.items() if name.startswith("val_")}
        metrics = {name: float(value) for name, value in logs.items() if not name.startswith("val_")}
        seen = int(validation.pop(_SEEN, 0))
        logs |= self._session.epoch_ends(metrics, (seen, validation) if validation else None)
        if self._session.ends_early:
            self.model.stop_training = True

    def _join(self) -> None:
        """The steps of the epoch end where Keras' validation begins, or where the epoch itself does."""
        if not self._joined:
            self._joined = True
            if self._packing is not None:
                self._packing.join()
            self._session.steps_joined()


class StopTogether(tf_keras.callbacks.Callback):
    """Stops this process after the same execution as the others that train in lockstep with it."""

    def __init__(self, session: Session, lockstep: Lockstep) -> None:
        super().__init__()
        self._supports_tf_logs = True
        self._session, self._lockstep = session, lockstep
        self._done = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._done += 1
        last = self._lockstep.last()
        if last == self._done:
            self._lockstep.agreed = True
            self._session.stop.follow()
            self.model.stop_training = True
        elif last is None and self._lockstep.leads and self._session.stop.requested.is_set():
            self._lockstep.agree_on(self._done + 1)
