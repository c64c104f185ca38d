"""A model, data and a hook of a person's, which send a signal to the run's process in a phase of the run.

The variables PHASE and SIGNAL name them. On a cluster of processes, the signal goes to the supervisor, as that of a
terminal does. The work that it interrupts then takes long; a library in between may discard exceptions.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras

from psrun.data.source import Feature

LONG_S = 60.0
SHORT_S = 0.5
_state = {"sent": False, "built": False, "trains": False}


def reach(phase: str, *, for_s: float = LONG_S) -> None:
    """Sends the signal if this is its phase, and works on for a while."""
    if phase != os.environ["PHASE"] or _state["sent"]:
        return
    _state["sent"] = True
    supervisor = os.environ.get("PSRUN_SUPERVISOR_PID")
    os.kill(int(supervisor or os.getpid()), getattr(signal, os.environ["SIGNAL"]))
    ends_s = time.monotonic() + for_s
    while time.monotonic() < ends_s:
        time.sleep(0.05)


reach("import")


class Numbers:
    """Pairs of a number and its double."""

    features = {"x": Feature((1,), tf.float32)}
    task, num_classes, facts = "regression", 1, {}
    num_train_examples = num_eval_examples = 64

    def __init__(self) -> None:
        reach("data")
        from psrun.roles import chief

        chief.start_afresh = _before(chief.start_afresh, "connect")

    def evaluation(self, *, batch_size: int) -> tf.data.Dataset:
        reach("predict")
        x = tf.reshape(tf.range(64, dtype=tf.float32) / 64, (64, 1))
        return tf.data.Dataset.from_tensor_slices(({"x": x}, 2 * x)).batch(batch_size)

    def train(self, *, batch_size: int, seed: int) -> tf.data.Dataset:
        return self.evaluation(batch_size=batch_size).repeat()


class Layer(tf_keras.layers.Layer):
    """Passes its input on."""

    def call(self, x: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        if not _state["built"]:
            reach("build")
        elif training:
            _state["trains"] = True
            reach("trace", for_s=SHORT_S)
        elif _state["trains"]:
            reach("evaluation", for_s=SHORT_S)
        return x


def model(source: Any) -> tf_keras.Model:
    x = tf_keras.Input((1,), name="x")
    network = tf_keras.Model({"x": x}, tf_keras.layers.Dense(1)(Layer()(x)))
    with contextlib.suppress(BaseException):  # as libraries do
        reach("discarded")
    _state["built"] = True
    from psrun.checkpoint import trained_model
    from psrun.checkpoint.storage import Store

    trained_model.export = _before(trained_model.export, "export")
    Store.make_room = _before(Store.make_room, "save", for_s=SHORT_S)
    return network


def _before(function: Callable[..., Any], phase: str, *, for_s: float = LONG_S) -> Callable[..., Any]:
    """The function, in front of which the phase is reached."""

    def reached(*arguments: Any, **keywords: Any) -> Any:
        reach(phase, for_s=for_s)
        return function(*arguments, **keywords)

    return reached


def hook(context: Any) -> None:
    """Called while steps run."""
    reach("step", for_s=SHORT_S)
