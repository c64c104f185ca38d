"""Which Keras callbacks cannot work, or do not do what they say, under parameter servers (tf-keras 2.21).

Plain data, checked before TensorFlow is imported; `psrun.training.callbacks` checks what only the class can tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from psrun.errors import Problem

# What they look at where nothing else is said.
MONITORS = {"EarlyStopping": "val_loss", "ReduceLROnPlateau": "val_loss", "ModelCheckpoint": "val_loss"}
Options = Mapping[str, Any]
BACKUPS = ("BackupAndRestore", "BackupAndRestoreExperimental")
TWO_RESTORES = (
    "BackupAndRestore would restore the variables again after psrun has restored its checkpoint, which counts other "
    "epochs and steps; leave it out, or choose checkpoint=none"
)


@dataclass(frozen=True)
class Setting:
    """What of the run the rules depend on: variables cut in shards, a learning rate schedule."""

    sharded: bool
    scheduled: bool


@dataclass(frozen=True)
class Rule:
    """A callback class, by name, that is refused where `applies`, with the reason and what to do instead."""

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
         "works batch by batch and cannot run here; psrun itself stops when the loss is NaN"),
    Rule("ProgbarLogger", _always, "works batch by batch and cannot run here; psrun shows the progress itself"),
    Rule("LambdaCallback", lambda options, _: any("batch" in name for name in options),
         "has a batch-level function; steps end on workers, not here: use an epoch-level one"),
    Rule("ModelCheckpoint", _counts_batches,
         "counts steps that were scheduled, not done, so what it saves is not what it names; use save_freq: epoch"),
    Rule("BackupAndRestore", _counts_batches, "saves nothing with save_freq as a number; use save_freq: epoch"),
    Rule("BackupAndRestore", lambda options, _: bool(options.get("save_before_preemption")),
         "save_before_preemption does nothing here; leave it out"),
    Rule("ModelCheckpoint", _one_file,
         "writes .keras and .h5 files of sharded variables that cannot be loaded; use a filepath without an ending"),
    Rule("LearningRateScheduler", lambda _, setting: setting.scheduled,
         "is ignored beside a schedule; give optimizer.learning_rate a number"),
)  # fmt: skip


def checkpoint_dir(callbacks: Iterable[Any]) -> str | None:
    """The folder in which a ModelCheckpoint writes weights that the evaluator task can read; None where none does."""
    for node in callbacks:
        path = str(node.get("filepath", ""))
        whole = str(node["_target_"]).rpartition(".")[2] == "ModelCheckpoint" and node.get("save_weights_only")
        if whole and not path.endswith((".keras", ".h5", ".hdf5")):
            return path.partition("{")[0].rpartition("/")[0] or "."
    return None


def backup_problems(callbacks: Iterable[Any], *, checkpoints: bool, one_step: bool) -> list[Problem]:
    """Problems of BackupAndRestore on any cluster.

    Args:
      checkpoints: whether psrun itself takes and restores checkpoints.
      one_step: whether an execution has one step.
    """
    found = []
    for index, node in enumerate(callbacks):
        if str(node["_target_"]).rpartition(".")[2] not in BACKUPS:
            continue
        key = f"trainer.callbacks[{index}]"
        if checkpoints:
            found.append(Problem(key, TWO_RESTORES))
        elif node.get("save_freq", "epoch") != "epoch" and not one_step:
            message = "BackupAndRestore with save_freq as a number resumes at the first step of the last execution; set"
            found.append(Problem(key, f"{message} trainer.steps_per_execution=1 or save_freq: epoch"))
    return found


def problems(callbacks: Iterable[Any], setting: Setting) -> list[Problem]:
    """A problem for each of the configured callbacks that parameter server training rules out."""
    found = []
    for index, node in enumerate(callbacks):
        name = str(node["_target_"]).rpartition(".")[2]
        options = {key: value for key, value in node.items() if key != "_target_"}
        for rule in RULES:
            if rule.name == name and rule.applies(options, setting):
                found.append(Problem(f"trainer.callbacks[{index}]", f"{name} under parameter servers {rule.reason}"))
    return found
