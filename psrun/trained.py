"""A model as a run left it, whole and in this process, whatever cluster and sharding it was trained with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf
import tf_keras

from psrun import placement, program
from psrun.checkpoint.manifest import Contents, Manifest
from psrun.checkpoint.store import Store
from psrun.config import RunConfig
from psrun.data.source import DataSource
from psrun.errors import CheckpointError, ConfigError, Problem
from psrun.models.model import Model

DEVICE = "/CPU:0"


@dataclass(frozen=True)
class Trained:
    """A model whose variables are those of a checkpoint, with the data that it is made for.

    Attributes:
      checkpoint: where it came from.
    """

    model: Model
    source: DataSource
    checkpoint: Manifest

    def predict(self, features: dict[str, tf.Tensor]) -> tf.Tensor:
        """Predictions for a batch of raw features."""
        preprocessing = self.model.preprocessing
        prepared = features if preprocessing is None else preprocessing(features)
        return self.model.network(prepared, training=False)

    def signature(self) -> dict[str, tf.TensorSpec]:
        """A batch of raw features."""
        return {
            name: tf.TensorSpec([None, *feature.shape], feature.dtype, name)
            for name, feature in self.source.features.items()
        }


def load(run: RunConfig, source: DataSource, store: Store, warn: Callable[[str], None]) -> Trained:
    """Builds the model of the run and restores the checkpoint that the configuration names.

    Raises:
      ConfigError: there is no such checkpoint, or it is of another model.
      CheckpointError: it is damaged.
    """
    found = store.choose(run.restore, warn)
    if found is None:
        raise ConfigError([Problem("resume", f"there is no checkpoint in {store.folder} yet")])
    tf_keras.backend.reset_uids()  # layers get the names that they had, whatever was built before in this process
    with tf.device(DEVICE):
        trained = Trained(program.make_model(run, source), source, found)
        specs = trained.signature()
        trained.predict({name: program.zeros(spec) for name, spec in specs.items()})  # builds what is not built yet
        network, path = trained.model.network, store.prefix(found.step)
        found.contents.check_model(path, Contents.of("", placement.observed("model", network.variables)))
        try:
            tf.train.Checkpoint(model=network).read(path).assert_existing_objects_matched().expect_partial()
        except (tf.errors.OpError, AssertionError) as error:
            raise CheckpointError(f"{path} could not be restored: {error}") from error
    return trained
