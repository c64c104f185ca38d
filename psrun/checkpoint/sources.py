"""Where the evaluator task finds the checkpoints that it evaluates: those that psrun takes, or others."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import tensorflow as tf
import tf_keras

from psrun.checkpoint import load_model, manifest
from psrun.checkpoint.manifest import Manifest
from psrun.checkpoint.store import Store
from psrun.errors import CheckpointError, ConfigError, Problem
from psrun.tf_internals.checkpoints import iterations_in_checkpoint

_INDEX, _NUMBER = ".index", re.compile(r"(\d+)$")


@dataclass(frozen=True)
class Restored:
    """The checkpoint that a network was given the values of.

    Attributes:
      step: steps applied when it was taken.
      digest: of its files.
      manifest: None where psrun did not take it.
    """

    step: int
    digest: str
    manifest: Manifest | None = None


class Source(Protocol):
    """The checkpoints in a folder, each by a name of the source's own."""

    folder: Path

    def names(self) -> list[Any]:
        """Of all that are complete, the oldest first."""
        ...

    def title(self, name: Any) -> str:
        """What a message calls a checkpoint."""
        ...

    def digest(self, name: Any) -> str:
        """Identifies a checkpoint among those of the same name. Raises OSError or ValueError."""
        ...

    def restore(self, network: tf_keras.Model, name: Any) -> Restored:
        """Gives a network the values of a checkpoint.

        Raises:
          CheckpointError: it is damaged, or was removed meanwhile.
          ConfigError: it is of another model.
        """
        ...


class RunCheckpoints:
    """Those that psrun takes, by their steps."""

    def __init__(self, store: Store) -> None:
        self._store, self.folder = store, store.folder

    def names(self) -> list[int]:
        return sorted(self._store.steps())

    def title(self, name: int) -> str:
        return f"the checkpoint of step {name}"

    def digest(self, name: int) -> str:
        return manifest.digest(self._store.manifest(name).files)

    def restore(self, network: tf_keras.Model, name: int) -> Restored:
        held = load_model.restore(network, str(name), self._store, lambda text: None)
        return Restored(held.step, manifest.digest(held.files), held)


class KerasCheckpoints:
    """Those of Keras' ModelCheckpoint with `save_weights_only`, or of a tf.train.CheckpointManager, by file names.

    Args:
      steps_per_epoch: of the training, for files that do not hold the optimizer's iterations: the number at the end of
        their name is then taken for an epoch.
    """

    def __init__(self, folder: Path, steps_per_epoch: int) -> None:
        self.folder, self._steps_per_epoch = folder, steps_per_epoch

    def names(self) -> list[str]:
        found = []
        for index in self.folder.glob(f"*{_INDEX}"):
            name = index.name.removesuffix(_INDEX)
            try:
                if not name.endswith("_temp") and any(self.folder.glob(f"{_escaped(name)}.data-*")):
                    found.append((index.stat().st_mtime_ns, _number(name), name))
            except FileNotFoundError:  # removed meanwhile
                continue
        return [name for *_, name in sorted(found)]

    def title(self, name: str) -> str:
        return f"the checkpoint {name}"

    def digest(self, name: str) -> str:
        # The index holds a checksum of each tensor.
        return hashlib.sha256((self.folder / f"{name}{_INDEX}").read_bytes()).hexdigest()

    def restore(self, network: tf_keras.Model, name: str) -> Restored:
        path = str(self.folder / name)
        try:
            digest, reader = self.digest(name), tf.train.load_checkpoint(path)
            iterations = iterations_in_checkpoint(reader)
            within = any(key.startswith("model/") for key in reader.get_variable_to_shape_map())
            weights = [variable for variable in network.weights if variable.dtype.is_floating]
            for variable in weights:
                variable.assign(tf.fill(variable.shape, tf.constant(float("nan"), variable.dtype)))
            root = tf.train.Checkpoint(model=network) if within else network
            (root.read(path) if within else root.load_weights(path)).expect_partial()
        except (tf.errors.OpError, OSError) as error:
            raise CheckpointError(f"{path} could not be restored: {error}") from error
        except ValueError as error:  # shapes differ
            raise _of_another_model(path, str(error)) from error
        # Keras silently keeps the value of a variable that is not in the file.
        missing = [each.name for each in weights if bool(tf.reduce_all(tf.math.is_nan(each)))]
        if missing:
            raise _of_another_model(path, f"it has no value, or only NaN, for {', '.join(missing)}")
        step = iterations if iterations is not None else _number(name) * self._steps_per_epoch
        return Restored(step, digest)


def _of_another_model(path: str, reason: str) -> ConfigError:
    return ConfigError([Problem("model", f"{path} is a checkpoint of another model: {reason}")])


def _number(name: str) -> int:
    """The number that a file's name ends with; 0 where there is none."""
    found = _NUMBER.search(name)
    return int(found[1]) if found else 0


def _escaped(name: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", name)
