"""Checkpoints that are written while the training goes on: their values, their order, and what becomes of errors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from bounds import BOUND_S
from support import write_values
from tensorflow.python.saved_model import registration

from psrun.checkpoint.checkpoints import logical_checkpoint
from psrun.checkpoint.storage import Position, Store
from psrun.config.choices import EpochCheckpoints
from psrun.errors import CheckpointError, ConfigError
from psrun.optimizers import sparse
from psrun.training import failures
from psrun.training.checkpointing import CheckpointSchedule, Machine, lack_of_memory

pytestmark = pytest.mark.tensorflow

OPTIMIZERS = {
    "dense": lambda: tf_keras.optimizers.Adam(0.1),
    "rows of tables": lambda: sparse.LazyAdam(0.1),
    "rows, in TensorFlow's own kernels": lambda: tf_keras.optimizers.legacy.Adagrad(0.1),
}


def network() -> tf_keras.Model:
    """A table of ids, a vocabulary, and a dense layer with other kinds of numbers beside its weights."""
    words = tf_keras.Input([1], dtype=tf.string, name="word")
    ids = tf_keras.layers.StringLookup(vocabulary=["a", "b", "c"])(words)
    rows = tf_keras.layers.Embedding(4, 3)(ids)
    normalized = tf_keras.layers.BatchNormalization()(tf_keras.layers.Flatten()(rows))
    return tf_keras.Model(words, tf_keras.layers.Dense(1)(normalized))


def trained(made: tf_keras.Model, optimizer: Any) -> Callable[[], None]:
    """A step that changes every variable."""

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((made(tf.constant([["a"], ["b"], ["c"], ["d"]]), training=True) - 1.0) ** 2)
        variables = made.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    step()
    return step


def files(prefix: Path) -> dict[str, bytes]:
    """The files of a checkpoint by their suffix."""
    return {file.name.removeprefix(prefix.name): file.read_bytes() for file in prefix.parent.glob(f"{prefix.name}.*")}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_checkpoint_holds_the_values_of_the_pause_whatever_steps_do_before_it_is_written(tmp_path, kind):
    """Its files have the same bytes as those of TensorFlow's own checkpoint at that moment."""
    made = network()
    optimizer = OPTIMIZERS[kind]()
    step = trained(made, optimizer)
    checkpoint = logical_checkpoint(made, optimizer)
    saving = checkpoint.saving()
    own = tf.function(tf.train.Checkpoint(model=made, optimizer=optimizer).write)
    for number in range(2):
        saving.stage(copies=True)
        own(tf.constant(str(tmp_path / f"own-{number}")))
        before = [variable.numpy() for variable in made.variables]
        for _ in range(3):
            step()
        assert not any(np.array_equal(old, new) for old, new in zip(before, made.variables))
        saving.write(str(tmp_path / f"behind-{number}"))
        assert files(tmp_path / f"behind-{number}") == files(tmp_path / f"own-{number}")


def test_values_that_were_not_written_are_replaced(tmp_path):
    """As after a save that failed."""
    made = network()
    step = trained(made, tf_keras.optimizers.SGD(0.1))
    checkpoint = logical_checkpoint(made)
    saving = checkpoint.saving()
    saving.stage(copies=True)
    step()
    saving.stage(copies=False)
    saving.write(str(tmp_path / "second"))
    write_values(checkpoint, str(tmp_path / "present"))
    assert files(tmp_path / "second") == files(tmp_path / "present")


class OwnFiles(tf_keras.layers.Layer):
    """Writes its own files."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return inputs


def test_an_object_that_writes_its_own_files_is_refused():
    registration.register_tf_checkpoint_saver(
        name="OwnFiles",
        predicate=lambda each: isinstance(each, OwnFiles),
        save_fn=lambda trackables, prefix: [],
        restore_fn=lambda trackables, prefix: None,
    )
    inputs = tf_keras.Input([1])
    made = tf_keras.Model(inputs, OwnFiles()(tf_keras.layers.Dense(1)(inputs)))
    message = r"^checkpoint: does not support objects .*OwnFiles; set checkpoint="
    with pytest.raises(ConfigError, match=message), failures.named(lambda: None, lambda: None, lambda: None):
        logical_checkpoint(made).saving()


# -- the schedule


class Slow:
    """Stands for checkpoints; `may_end` lets the one that is written end.

    Attributes:
      error: raised by the writing.
      moments: what was done, in order.
    """

    held_bytes = {"ps-0": 600, "ps-1": 400}

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder)
        self.may_end = threading.Event()
        self.error: Exception | None = None
        self.moments: list[str] = []

    def take(self, step: int, position: Position, *, copies: bool) -> Callable[[], list[int]]:
        self.moments.append(f"took {step}" if copies else f"held {step}")

        def write() -> list[int]:
            assert self.may_end.wait(BOUND_S)
            self.moments.append(f"wrote {step}")
            if self.error is not None:
                raise self.error
            return [step]

        return write

    def evaluated(self, step: int, metrics: Any) -> bool:
        self.moments.append(f"compared {step}")
        return False


@pytest.fixture
def slow(tmp_path):
    return Slow(tmp_path)


def schedule_of(slow: Slow, *, free_bytes: int = 4000, best_metric: str | None = None) -> CheckpointSchedule:
    """A schedule of checkpoints; it adds warnings and events to the moments."""
    when = EpochCheckpoints(
        kind="epoch",
        best_metric=best_metric,
        best_mode="max",
        every_epochs=1,
        every_steps=None,
        every_s=None,
        max_to_keep=2,
    )

    def emit(kind: str, **data: Any) -> None:
        slow.moments.append(f"{kind} {data['step']}")

    reporter: Any = SimpleNamespace(emit=emit, warn=lambda text: slow.moments.append(f"warning: {text}"))
    folder: Any = SimpleNamespace(stored=dict, emit=lambda kind, **data: None)
    checkpoints: Any = slow
    return CheckpointSchedule(checkpoints, when, reporter, folder, lambda task: Machine("here", free_bytes))


def ends(slow: Slow) -> None:
    """Lets the checkpoint end, once the training waits for it."""
    threading.Timer(0.05, slow.may_end.set).start()


def test_the_training_goes_on_while_a_checkpoint_is_written_and_the_next_one_waits_for_it(slow):
    schedule = schedule_of(slow)
    schedule.save(5, Position())
    schedule.save(5, Position())  # nothing is saved twice
    schedule.check()
    assert slow.moments == ["took 5"]
    ends(slow)
    schedule.save(10, Position())
    assert slow.moments[:4] == ["took 5", "wrote 5", "checkpoint 5", "took 10"]
    schedule.wait()
    assert slow.moments[4:] == ["wrote 10", "checkpoint 10"]


@pytest.mark.parametrize("metrics", [{"auc": 0.5}, {"loss": 0.5}])
def test_a_checkpoint_is_compared_when_it_is_on_disk(slow, metrics):
    schedule = schedule_of(slow, best_metric="auc")
    schedule.save(5, Position())
    if "auc" in metrics:
        ends(slow)
    schedule.evaluated(5, metrics)
    compared = ["took 5", "wrote 5", "checkpoint 5", "compared 5"]
    assert slow.moments == (compared if "auc" in metrics else ["took 5", "compared 5"])
    slow.may_end.set()
    schedule.close()


@pytest.mark.parametrize("moment", ["save", "check", "wait"])
def test_an_error_of_the_writing_is_raised_in_the_training_once(slow, moment):
    schedule = schedule_of(slow)
    slow.error = CheckpointError("no checkpoint could be written at step 5: No space left on device")
    slow.may_end.set()
    schedule.save(5, Position())
    schedule._thread.submit(int).result(BOUND_S)  # the writing before it is over
    with pytest.raises(CheckpointError, match="at step 5: No space left"):
        schedule.save(10, Position()) if moment == "save" else getattr(schedule, moment)()
    schedule.check()
    schedule.close()
    assert slow.moments == ["took 5", "wrote 5"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (None, ["wrote 5", "checkpoint 5"]),
        (CheckpointError("full"), ["wrote 5", "warning: full"]),
        (tf.errors.UnavailableError(None, None, "a server was lost"), ["wrote 5"]),
    ],
)
def test_a_training_that_fails_waits_for_its_checkpoint(slow, error, said):
    """The error that has ended the training is not replaced."""
    schedule = schedule_of(slow)
    slow.error = error
    schedule.save(5, Position())
    ends(slow)
    schedule.close()
    assert slow.moments == ["took 5", *said]


def test_without_memory_for_a_copy_the_training_pauses_and_says_so_once(slow):
    schedule = schedule_of(slow, free_bytes=1999)
    slow.may_end.set()
    for step in (5, 10):
        schedule.save(step, Position())
        assert slow.moments[-1] == f"checkpoint {step}"
    assert slow.moments == [
        "warning: a copy of the 1.0 kB that a checkpoint takes from here would need more than half of the free memory "
        "there, 2.0 kB; the training pauses until each checkpoint is on disk",
        "held 5", "wrote 5", "checkpoint 5", "held 10", "wrote 10", "checkpoint 10",
    ]  # fmt: skip


def test_the_memory_for_copies_counts_by_machine():
    machines = {"ps-0": Machine("a", 2000), "ps-1": Machine("a", 2000), "ps-2": Machine("b", 10)}
    assert lack_of_memory({"ps-0": 600, "ps-1": 400, "ps-2": 5}, machines.get) is None
    assert "from a would need more" in (lack_of_memory({"ps-0": 600, "ps-1": 401}, machines.get) or "")
    assert "from b would need more" in (lack_of_memory({"ps-0": 600, "ps-2": 6}, machines.get) or "")
    unknown = lack_of_memory({"ps-0": 1}, lambda task: Machine("a", None))
    assert "is not known" in (unknown or "")
