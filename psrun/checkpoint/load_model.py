"""Loads the trained model of a run into this process, whatever its cluster and sharding."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tf_keras

from psrun import parts
from psrun.checkpoint.logical import LogicalCheckpoint, adapted
from psrun.checkpoint.manifest import Contents, Manifest
from psrun.checkpoint.store import Store
from psrun.cluster import placement
from psrun.config.run_config import RunConfig
from psrun.data import labels
from psrun.data.source import DataSource, task_of
from psrun.errors import CheckpointError, ConfigError, Problem
from psrun.models.model import Model
from psrun.program import objective, stacks
from psrun.program.make_model import make_model
from psrun.program.zeros import zeros
from psrun.tf_internals import messages
from psrun.tf_internals.variables import variables_of

DEVICE = "/CPU:0"


@dataclass(frozen=True)
class LoadedModel:
    """A model with the variables of a checkpoint, and its data.

    Attributes:
      checkpoint: the path of the checkpoint.
      class_names: of the classes 0, 1, ...; None without names.
      more_signatures: makes signatures that an export has besides that of predictions; None: it has no other.
    """

    model: Model
    source: DataSource
    checkpoint: Manifest
    class_names: tuple[str, ...] | None = None
    more_signatures: MoreSignatures | None = None


# Of the object that is saved, which gets the variables, and the model: functions with an input signature, by name.
MoreSignatures = Callable[[tf.Module, LoadedModel], Mapping[str, Any]]


def load(run: RunConfig, source: DataSource, store: Store, warn: Callable[[str], None]) -> LoadedModel:
    """Builds the model of the run and restores the configured checkpoint.

    Raises:
      ConfigError: the checkpoint does not exist, or has another model.
      CheckpointError: the checkpoint is damaged.
    """
    tf_keras.backend.reset_uids()  # gives layers their original names, whatever was built before
    with tf.device(DEVICE):
        with stacks.stored_alone():  # what is written names the tables
            model = make_model(run, source)
        specs = signature(source)
        predict(model, source, {name: zeros(spec) for name, spec in specs.items()})  # builds the rest
        checkpoint = restore(model.network, run.restore, store, warn)
    names = labels.class_names(source, run.data.label_vocabulary)
    return LoadedModel(model, source, checkpoint, names, _more_signatures(run))


def _more_signatures(run: RunConfig) -> MoreSignatures | None:
    """What the part that reads `export.top_k` adds to an export."""
    if run.export.top_k is None:
        return None
    name = parts.output("export.top_k")
    assert name is not None  # else the configuration is refused
    return functools.partial(parts.load(name), run)


def restore(network: tf_keras.Model, which: str, store: Store, warn: Callable[[str], None]) -> Manifest:
    """Restores the variables of a built network from a checkpoint; raises as `load`.

    Args:
      which: as in `Store.choose`.
    """
    values = LogicalCheckpoint(network)
    placed = stacks.by_table(placement.observed("model", variables_of(network)), network)
    here = Contents.of("", placed, values.keys, adapted(network))
    while True:
        checkpoint = store.choose(which, warn)
        if checkpoint is None:
            raise ConfigError([Problem("resume", f"there is no checkpoint in {store.folder} yet")])
        path = store.prefix(checkpoint.step)
        checkpoint.contents.check_model(path, here)
        try:
            values.restore(path, checkpoint.contents)
            return checkpoint
        except (tf.errors.OpError, AssertionError, KeyError) as error:
            if isinstance(error, tf.errors.OpError) and messages.task_lost(error):
                raise
            # A running run may have removed it after saving newer ones; try each checkpoint once.
            if checkpoint.step in store.steps() or which.isdigit():
                raise CheckpointError(f"{path} could not be restored: {error}") from error


def signature(source: DataSource) -> dict[str, tf.TensorSpec | tf.RaggedTensorSpec]:
    """A batch of raw features."""
    return {
        name: tf.RaggedTensorSpec([None, None], feature.dtype, ragged_rank=1)
        if feature.is_list
        else tf.TensorSpec([None, *feature.shape], feature.dtype, name)
        for name, feature in source.features.items()
    }


def predict(model: Model, source: DataSource, features: dict[str, tf.Tensor]) -> tf.Tensor | dict[str, tf.Tensor]:
    """Predictions for a batch of raw features: probabilities where labels are classes, also of a model with logits."""
    inputs = model.preprocessed(features)
    return objective.to_probabilities(model.network(inputs, training=False), model, task_of(source))
