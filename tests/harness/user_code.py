"""Callbacks, loops and hooks as a person writes them."""

from __future__ import annotations

import json
import shutil
import threading
import time
from typing import Any

import tensorflow as tf
import tf_keras
from bounds import BOUND_S

from psrun.optimizers.sparse import LazyAdam


class Dies(tf_keras.callbacks.Callback):
    """Stands for a chief that is killed when an epoch ends, from 1."""

    def __init__(self, epoch: int) -> None:
        super().__init__()
        self._epoch = epoch

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if epoch + 1 == self._epoch:
            raise KeyboardInterrupt


def plain(program: Any, session: Any) -> None:
    """The shortest loop: the network's own step, epochs as configured."""
    for _ in session.epochs():
        while session.steps_left:
            session.schedule()


def tutorial(program: Any, session: Any, clip: float | None = None) -> None:
    """A step, metrics and reports of the loop's own, as TensorFlow's tutorial has them."""
    network, optimizer = program.network, program.optimizer
    with program.distribution.strategy.scope():
        loss = tf_keras.metrics.Mean(name="loss")
        squares = tf_keras.metrics.Mean(name="squares")

    def step(batch: Any) -> None:
        features, label = batch
        with tf.GradientTape() as tape:
            step_loss = network.compute_loss(features, label, network(features, training=True))
        gradients = tape.gradient(step_loss, network.trainable_variables)
        optimizer.apply_gradients(zip(gradients, network.trainable_variables))
        loss.update_state(step_loss)

    def measure(batch: Any) -> None:
        squares.update_state(tf.reduce_mean(tf.square(batch[1])))

    for epoch in session.epochs():
        loss.reset_state()
        session.schedule(step, session.steps_left)
        while not session.done():
            time.sleep(0.01)
        if epoch == 1:
            assert session.step == 12
            session.schedule(measure, 2)
            session.join()
        metrics = session.end_epoch({"loss": loss.result(), "squares": squares.result()})
        assert session.should_stop or "val_loss" in metrics


def two_optimizers(program: Any, session: Any) -> None:
    """The layer `second` has an optimizer with another rule and learning rate."""
    network, optimizer = program.network, program.optimizer
    second = network.get_layer("second").trainable_variables
    with program.distribution.strategy.scope():
        other = LazyAdam(0.02)
        other.build(second)

    def step(batch: Any) -> None:
        features, label = batch
        with tf.GradientTape() as tape:
            loss = network.compute_loss(features, label, network(features, training=True))
        variables = network.trainable_variables
        pairs = list(zip(tape.gradient(loss, variables), variables))
        is_other = [any(variable is each for each in second) for variable in variables]
        optimizer.apply_gradients([pair for pair, apart in zip(pairs, is_other) if not apart])
        other.apply_gradients([pair for pair, apart in zip(pairs, is_other) if apart])

    for _ in session.epochs():
        session.schedule(step, session.steps_left)
        session.end_epoch()


def managing(program: Any, session: Any, folder: str) -> None:
    """Takes its checkpoints itself, of the model alone."""
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=program.network), folder, max_to_keep=3)
    for _ in session.epochs():
        session.schedule(num_steps=session.steps_left)
        session.join()
        manager.save()


def two_kinds(program: Any, session: Any) -> None:
    """Half of the steps of each epoch are the network's own, the others are functions."""

    def step(batch: Any) -> None:
        program.network.train_step(batch)

    for _ in session.epochs():
        session.schedule(num_steps=session.steps_left // 2)
        session.schedule(step, session.steps_left)


def held_back(program: Any, session: Any, late_by: int) -> None:
    """One step reads its weights, and gets its gradients when `late_by` steps of another worker are applied.

    What does not depend on the gradients is not held back.
    """
    network, optimizer = program.network, program.optimizer
    with program.distribution.strategy.scope():
        reading, released = (tf.Variable(0, trainable=False) for _ in range(2))

    def gradients(batch: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            loss = network.compute_loss(batch[0], batch[1], network(batch[0], training=True))
        return tape.gradient(loss, network.trainable_variables)

    def update(computed: list[Any]) -> None:
        optimizer.apply_gradients(zip(computed, network.trainable_variables))

    def slow(batch: Any) -> None:
        computed = gradients(batch)
        with tf.control_dependencies(computed):
            reading.assign(1)
            waited = tf.while_loop(lambda _: released < 1, lambda number: (number + 1,), (0,))
        with tf.control_dependencies(waited):
            late = [tf.identity(gradient) for gradient in computed]
        update(late)

    def quick(batch: Any) -> None:
        update(gradients(batch))

    def release(batch: Any) -> None:
        released.assign(1)

    session.schedule(slow, 1)
    deadline_s = time.monotonic() + BOUND_S
    while not int(reading):
        assert time.monotonic() < deadline_s, "the slow step did not begin"
        time.sleep(0.01)
    session.schedule(quick, late_by)
    session.schedule(release, 1)  # on the same worker, after them
    session.end_epoch()


def idle(program: Any, session: Any) -> None:
    """Schedules nothing."""


def fails(program: Any, session: Any) -> None:
    session.schedule()
    raise KeyError("x")


class Notes:
    """A hook that keeps what it is called with; waits, as a slow one, for a file to be there."""

    def __init__(self, name: str, wait_for: str | None = None) -> None:
        self._name, self._wait_for, self._noted = name, wait_for, []

    def __call__(self, context: Any) -> None:
        weights = sum(float(tf.reduce_sum(variable)) for variable in context.program.network.trainable_variables)
        deadline_s = time.monotonic() + BOUND_S
        while self._wait_for and not (context.run_folder / self._wait_for).exists():
            assert time.monotonic() < deadline_s, f"no {self._wait_for} within {BOUND_S} s"
            time.sleep(0.01)
        self._noted.append([context.step, context.epoch, {**context.metrics}, weights])
        (context.run_folder / self._name).write_text(json.dumps(self._noted))


def raises(context: Any, at: int = 1) -> None:
    if context.step >= at:
        raise ValueError("no such thing")


def removes_checkpoints(context: Any) -> None:
    shutil.rmtree(context.run_folder / "checkpoints")


class Batchwise(tf_keras.callbacks.Callback):
    """Requests what only workers could call."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        pass


class Tests(tf_keras.callbacks.Callback):
    """Writes down what an evaluation calls."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path, self._calls = path, []

    def _note(self, name: str, logs: dict[str, Any] | None) -> None:
        self._calls.append([name, int(self.model.optimizer.iterations), sorted(logs or {})])
        with open(self._path, "w") as file:
            json.dump(self._calls, file)

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._note("begin", logs)

    def on_test_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._note("batch", logs)

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        self._note("end", logs)


class Timing(tf_keras.callbacks.Callback):
    """Saves the model every so many seconds, in its own thread."""

    def __init__(self, save_dir: str, interval: float) -> None:
        super().__init__()
        self._save_dir, self._interval, self._over = save_dir, interval, threading.Event()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._thread = threading.Thread(target=self._save)
        self._thread.start()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._over.set()
        self._thread.join()

    def _save(self) -> None:
        while True:
            self.model.save(self._save_dir)
            if self._over.wait(self._interval):
                return
