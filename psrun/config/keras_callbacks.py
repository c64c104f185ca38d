"""Keras callbacks that do not work, or not as documented, with parameter servers (tf-keras 2.21).

Plain data, checked before TensorFlow is imported; `psrun.training.callbacks` checks what requires the class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psrun.errors import Problem
from psrun.files import is_pattern

# The default of `monitor`.
MONITORS = {"EarlyStopping": "val_loss", "ReduceLROnPlateau": "val_loss", "ModelCheckpoint": "val_loss"}
Options = Mapping[str, Any]
BACKUPS = ("BackupAndRestore", "BackupAndRestoreExperimental")
TWO_RESTORES = (
    "BackupAndRestore would overwrite the variables that psrun restores from its checkpoint; remove it, or choose "
    "checkpoint=none"
)


@dataclass(frozen=True)
class Setting:
    """Properties of the run that the rules depend on: sharded variables, a learning rate schedule."""

    sharded: bool
    scheduled: bool


@dataclass(frozen=True)
class Rule:
    """A callback class, by name, that is rejected if `applies`, with the reason and an alternative."""

    name: str
    applies: Callable[[Options, Setting], bool]
    reason: str


def _always(options: Options, setting: Setting) -> bool:
    return True


def _counts_batches(options: Options, setting: Setting) -> bool:
    return options.get("save_freq", "epoch") != "epoch"


def _one_file(options: Options, setting: Setting) -> bool:
    return setting.sharded and str(options.get("filepath", "")).endswith((".keras", ".h5", ".hdf5"))


RULES = (
    Rule("TerminateOnNaN", _always,
         "needs batch-level calls, which workers do not make; remove it: psrun stops when the loss is NaN"),
    Rule("ProgbarLogger", _always,
         "needs batch-level calls, which workers do not make; remove it: psrun shows the progress"),
    Rule("LambdaCallback", lambda options, _: any("batch" in name for name in options),
         "has a batch-level function, which workers do not call; use an epoch-level function"),
    Rule("ModelCheckpoint", _counts_batches,
         "counts scheduled steps, not completed ones, so its file names are wrong; use save_freq: epoch"),
    Rule("BackupAndRestore", _counts_batches, "saves nothing with save_freq as a number; use save_freq: epoch"),
    Rule("BackupAndRestore", lambda options, _: bool(options.get("save_before_preemption")),
         "ignores save_before_preemption; remove the option"),
    Rule("ModelCheckpoint", _one_file,
         "writes .keras and .h5 files of sharded variables that cannot be loaded; use a filepath without extension"),
    Rule("LearningRateScheduler", lambda _, setting: setting.scheduled,
         "has no effect with a schedule; set optimizer.learning_rate to a number"),
)  # fmt: skip


def checkpoint_dir(callbacks: Iterable[Any]) -> str | None:
    """The folder of a ModelCheckpoint whose weights the evaluator task can read; None if there is none."""
    for node in callbacks:
        path = str(node.get("filepath", ""))
        whole = str(node["_target_"]).rpartition(".")[2] == "ModelCheckpoint" and node.get("save_weights_only")
        if whole and not path.endswith((".keras", ".h5", ".hdf5")):
            return path.partition("{")[0].rpartition("/")[0] or "."
    return None


def backup_problems(callbacks: Iterable[Any], *, checkpoints: bool, one_step: bool) -> list[Problem]:
    """Problems of BackupAndRestore on any cluster.

    Args:
      checkpoints: whether psrun saves and restores checkpoints itself.
      one_step: whether an execution has one step.
    """
    problems = []
    for index, node in enumerate(callbacks):
        if str(node["_target_"]).rpartition(".")[2] not in BACKUPS:
            continue
        key = f"trainer.callbacks[{index}]"
        folder = Path(str(node.get("backup_dir", ""))).absolute()
        if is_pattern(folder):
            message = f"BackupAndRestore would not find its backup: TensorFlow takes {folder} for a pattern; choose"
            problems.append(Problem(f"{key}.backup_dir", f"{message} a folder without the characters * ? [ ] \\"))
        if checkpoints:
            problems.append(Problem(key, TWO_RESTORES))
        elif node.get("save_freq", "epoch") != "epoch" and not one_step:
            message = "BackupAndRestore with save_freq as a number resumes at the first step of the last execution; set"
            problems.append(Problem(key, f"{message} trainer.steps_per_execution=1 or save_freq: epoch"))
    return problems


def problems(callbacks: Iterable[Any], setting: Setting) -> list[Problem]:
    """The problems of callbacks that do not work with parameter servers."""
    rejected = []
    for index, node in enumerate(callbacks):
        name = str(node["_target_"]).rpartition(".")[2]
        options = {key: value for key, value in node.items() if key != "_target_"}
        for rule in RULES:
            if rule.name == name and rule.applies(options, setting):
                message = f"with parameter servers {name} {rule.reason}"
                rejected.append(Problem(f"trainer.callbacks[{index}]", message))
    return rejected
