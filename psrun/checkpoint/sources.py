"""The checkpoints that the evaluator task evaluates: those of psrun, of Keras or of TensorFlow."""

from __future__ import annotations

import glob
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf
import tf_keras

from psrun.checkpoint import load_model, manifest
from psrun.checkpoint.literal_paths import literal
from psrun.checkpoint.manifest import Manifest
from psrun.checkpoint.store import Store
from psrun.errors import CheckpointError, ConfigError, Problem
from psrun.program import stacks
from psrun.tf_internals.checkpoints import iterations_in_checkpoint
from psrun.tf_internals.variables import variables_of

_INDEX = ".index"
_NUMBER = re.compile(r"(\d+)$")


@dataclass(frozen=True)
class CheckpointInfo:
    """A checkpoint that was restored into a network.

    Attributes:
      step: steps applied when it was taken.
      digest: of its files.
      manifest: None if psrun did not write it.
    """

    step: int
    digest: str
    manifest: Manifest | None = None


class RunCheckpoints:
    """psrun's checkpoints, by step."""

    def __init__(self, store: Store) -> None:
        self.folder = store.folder
        self._store = store

    def names(self) -> list[Any]:
        """The names of all complete checkpoints, the oldest first."""
        return sorted(self._store.steps())

    def title(self, name: Any) -> str:
        """The name of a checkpoint in messages."""
        return f"the checkpoint of step {name}"

    def digest(self, name: Any) -> str:
        """Identifies the content of a checkpoint. Raises OSError or ValueError."""
        return manifest.digest(self._store.manifest(name).files)

    def restore(self, network: tf_keras.Model, name: Any, steps_per_epoch: int) -> CheckpointInfo:
        """Restores a network from a checkpoint.

        Args:
          steps_per_epoch: of the training, for files that do not hold the optimizer's iterations: the number at the end
            of their name is then the epoch.

        Raises:
          CheckpointError: the checkpoint is damaged, or was removed.
          ConfigError: the checkpoint has another model.
        """
        checkpoint = load_model.restore(network, str(name), self._store, lambda text: None)
        return CheckpointInfo(checkpoint.step, manifest.digest(checkpoint.files), checkpoint)


class KerasCheckpoints:
    """Checkpoints, by file name, of ModelCheckpoint with `save_weights_only` or of a tf.train.CheckpointManager.

    The same methods as those of `RunCheckpoints`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def names(self) -> list[str]:
        checkpoints = []
        for index in self.folder.glob(f"*{_INDEX}"):
            name = index.name.removesuffix(_INDEX)
            try:
                if not name.endswith("_temp") and any(self.folder.glob(f"{glob.escape(name)}.data-*")):
                    checkpoints.append((index.stat().st_mtime_ns, _number(name), name))
            except FileNotFoundError:  # removed by another process
                continue
        return [name for *_, name in sorted(checkpoints)]

    def title(self, name: str) -> str:
        return f"the checkpoint {name}"

    def digest(self, name: str) -> str:
        # The index holds a checksum of each tensor.
        return hashlib.sha256((self.folder / f"{name}{_INDEX}").read_bytes()).hexdigest()

    def restore(self, network: tf_keras.Model, name: str, steps_per_epoch: int) -> CheckpointInfo:
        path = str(self.folder / name)
        weights = [variable for variable in variables_of(network) if variable.dtype.is_floating]
        try:
            digest = self.digest(name)
            with literal(path) as readable:
                reader = tf.train.load_checkpoint(readable)
                iterations = iterations_in_checkpoint(reader)
                within = any(key.startswith("model/") for key in reader.get_variable_to_shape_map())
                for variable in weights:
                    variable.assign(tf.fill(variable.shape, tf.constant(float("nan"), variable.dtype)))
                root = tf.train.Checkpoint(model=network) if within else network
                (root.read(readable) if within else root.load_weights(readable)).expect_partial()
        except (tf.errors.OpError, OSError) as error:
            raise CheckpointError(f"{path} could not be restored: {error}") from error
        except ValueError as error:  # shapes differ
            raise _of_another_model(path, str(error)) from error
        # Keras silently keeps the value of a variable that is missing in the file.
        missing = [name for name, values in _by_name(network, weights) if bool(tf.reduce_all(tf.math.is_nan(values)))]
        if missing:
            raise _of_another_model(path, f"it has no value, or only NaN, for {', '.join(missing)}")
        step = iterations if iterations is not None else _number(name) * steps_per_epoch
        return CheckpointInfo(step, digest)


def _by_name(network: tf_keras.Model, weights: Iterable[tf.Variable]) -> Iterator[tuple[str, tf.Tensor]]:
    """The values of weights, of a stack table by table."""
    views = {id(stack.variable): stack.views(stack.variable, stack.variable_name) for stack in stacks.of(network)}
    for variable in weights:
        if id(variable) not in views:
            yield variable.name, variable
            continue
        for view in views[id(variable)].children.values():
            yield view.name, view.read()


def _of_another_model(path: str, reason: str) -> ConfigError:
    return ConfigError([Problem("model", f"{path} is a checkpoint of another model: {reason}")])


def _number(name: str) -> int:
    """The number at the end of a file name; 0 if there is none."""
    match = _NUMBER.search(name)
    return int(match[1]) if match else 0
