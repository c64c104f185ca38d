"""Keras callbacks that do not work, or not as documented, with parameter servers (tf-keras 2.21).

Plain data, checked before TensorFlow is imported; `psrun.training.callbacks` checks what requires the class.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from psrun.errors import Problem
from psrun.files import is_pattern

# The default of `monitor`.
MONITORS = {"EarlyStopping": "val_loss", "ReduceLROnPlateau": "val_loss", "ModelCheckpoint": "val_loss"}
BACKUPS = ("BackupAndRestore", "BackupAndRestoreExperimental")
TWO_RESTORES = (
    "BackupAndRestore would overwrite the variables that psrun restores from its checkpoint; remove it, or choose "
    "checkpoint=none"
)
_WHOLE_FILES = (".keras", ".h5", ".hdf5")
_BY_BATCH = "needs batch-level calls, which workers do not make; remove it: psrun"


def checkpoint_dir(callbacks: Iterable[Any]) -> str | None:
    """The folder of a ModelCheckpoint whose weights the evaluator task can read; None if there is none."""
    for node in callbacks:
        path = str(node.get("filepath", ""))
        saves_weights = name_of(node) == "ModelCheckpoint" and node.get("save_weights_only")
        if saves_weights and not path.endswith(_WHOLE_FILES):
            return path.partition("{")[0].rpartition("/")[0] or "."
    return None


def name_of(node: Mapping[str, Any]) -> str:
    """The name of the class of a callback."""
    return str(node["_target_"]).rpartition(".")[2]


def backup_problems(callbacks: Iterable[Any], *, checkpoints: bool, one_step: bool) -> Iterator[Problem]:
    """Problems of BackupAndRestore on any cluster.

    Args:
      checkpoints: whether psrun saves and restores checkpoints itself.
      one_step: whether an execution has one step.
    """
    for index, node in enumerate(callbacks):
        if name_of(node) not in BACKUPS:
            continue
        key = f"trainer.callbacks[{index}]"
        folder = Path(str(node.get("backup_dir", ""))).absolute()
        if is_pattern(folder):
            message = f"BackupAndRestore would not find its backup: TensorFlow takes {folder} for a pattern; choose"
            yield Problem(f"{key}.backup_dir", f"{message} a folder without the characters * ? [ ] \\")
        if checkpoints:
            yield Problem(key, TWO_RESTORES)
        elif node.get("save_freq", "epoch") != "epoch" and not one_step:
            message = "BackupAndRestore with save_freq as a number resumes at the first step of the last execution; set"
            yield Problem(key, f"{message} trainer.steps_per_execution=1 or save_freq: epoch")


def problems(callbacks: Iterable[Any], *, sharded: bool, scheduled: bool) -> Iterator[Problem]:
    """The problems of callbacks that do not work with parameter servers.

    Args:
      sharded: whether variables are sharded.
      scheduled: whether the learning rate is a schedule.
    """
    for index, node in enumerate(callbacks):
        for reason in _reasons(name_of(node), node, sharded, scheduled):
            yield Problem(f"trainer.callbacks[{index}]", f"with parameter servers {name_of(node)} {reason}")


def _reasons(name: str, options: Mapping[str, Any], sharded: bool, scheduled: bool) -> Iterator[str]:
    """Why a callback is rejected, each with an alternative."""
    counts_steps = options.get("save_freq", "epoch") != "epoch"
    if name == "TerminateOnNaN":
        yield f"{_BY_BATCH} stops when the loss is NaN"
    if name == "ProgbarLogger":
        yield f"{_BY_BATCH} shows the progress"
    if name == "LambdaCallback" and any("batch" in option for option in options):
        yield "has a batch-level function, which workers do not call; use an epoch-level function"
    if name == "ModelCheckpoint" and counts_steps:
        yield "counts scheduled steps, not completed ones, so its file names are wrong; use save_freq: epoch"
    if name == "ModelCheckpoint" and sharded and str(options.get("filepath", "")).endswith(_WHOLE_FILES):
        yield "writes .keras and .h5 files of sharded variables that cannot be loaded; use a filepath without extension"
    if name == "BackupAndRestore" and counts_steps:
        yield "saves nothing with save_freq as a number; use save_freq: epoch"
    if name == "BackupAndRestore" and options.get("save_before_preemption"):
        yield "ignores save_before_preemption; remove the option"
    if name == "LearningRateScheduler" and scheduled:
        yield "has no effect with a schedule; set optimizer.learning_rate to a number"
