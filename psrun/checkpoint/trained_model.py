"""The trained model of a run in this process, whatever its cluster and sharding.

It is restored from a checkpoint of psrun, of Keras or of TensorFlow, makes predictions, and is
written as a SavedModel that takes raw features and does not need psrun.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf
import tf_keras

from psrun import files, parts
from psrun.checkpoint import apart, storage
from psrun.checkpoint.checkpoints import contents_of, literal, logical_checkpoint
from psrun.checkpoint.storage import Manifest, Store
from psrun.cluster import placement
from psrun.config.run_config import RunConfig
from psrun.data import loading
from psrun.data.lists import length_name
from psrun.data.source import DataSource, task_of
from psrun.errors import CheckpointError, ConfigError, ExportError, Problem
from psrun.layers import collection
from psrun.models.model import Model
from psrun.program import embeddings, objective
from psrun.program.batch_checks import zeros
from psrun.program.build import make_model
from psrun.tf_internals import messages
from psrun.tf_internals.checkpoints import iterations_in_checkpoint
from psrun.tf_internals.strategies import variables_of

DEVICE = "/CPU:0"
_INDEX = ".index"
_NUMBER = re.compile(r"(\d+)$")
_ABOUT = "psrun.json"


@dataclass(frozen=True)
class LoadedModel:
    """A model with the variables of a checkpoint, and its data.

    Attributes:
      checkpoint: the path of the checkpoint.
      class_names: of the classes 0, 1, ...; None without names.
      more_signatures: makes signatures that an export has besides the signature of predictions; None: it has no other.
      tables_in: the checkpoints with the tables of a network that has no values of them; None: it has them.
    """

    model: Model
    source: DataSource
    checkpoint: Manifest
    class_names: tuple[str, ...] | None = None
    more_signatures: MoreSignatures | None = None
    tables_in: Store | None = None


# Of the object that is saved, which gets the variables, and the model: functions with an input signature, by name.
MoreSignatures = Callable[[tf.Module, LoadedModel], Mapping[str, Any]]


def load(
    run: RunConfig, source: DataSource, store: Store, warn: Callable[[str], None], *, tables: str = "whole"
) -> LoadedModel:
    """Builds the model of the run and restores the configured checkpoint.

    Args:
      tables: as `export.tables`. With 'apart' the tables take no memory, and the model can only be exported.

    Raises:
      ConfigError: the checkpoint does not exist, or has another model.
      CheckpointError: the checkpoint is damaged.
    """
    tf_keras.backend.reset_uids()  # gives layers their original names, whatever was built before
    is_apart = tables == "apart"
    without_memory = apart.without_memory() if is_apart else contextlib.nullcontext()
    with tf.device(DEVICE), without_memory:
        with collection.stored_alone():  # what is written names the tables
            model = make_model(run, source)
        batch = {name: zeros(spec) for name, spec in signature(source).items()}
        without: Collection[str] = ()
        if is_apart:
            tf.function(lambda: predict(model, source, batch)).get_concrete_function()
            without = apart.tables_of(model.network)
        else:
            predict(model, source, batch)  # builds the rest
        checkpoint = restore(model, run.restore, store, warn, without=without)
    names = loading.class_names(source, run.data.label_vocabulary)
    return LoadedModel(model, source, checkpoint, names, _more_signatures(run), store if is_apart else None)


def _more_signatures(run: RunConfig) -> MoreSignatures | None:
    """What the part that reads `export.top_k` adds to an export."""
    if run.export.top_k is None:
        return None
    name = parts.output("export.top_k")
    assert name is not None  # else the configuration is refused
    return functools.partial(parts.load(name), run)


def restore(
    model: Model, which: str, store: Store, warn: Callable[[str], None], *, without: Collection[str] = ()
) -> Manifest:
    """Restores the variables of a model with a built network from a checkpoint; raises as `load`.

    Args:
      which: as in `Store.choose`.
      without: the names of variables that keep their values.
    """
    network = model.network
    values = logical_checkpoint(network)
    placed = embeddings.by_table(placement.observed("model", variables_of(network)), network)
    here = contents_of("", placed, values.keys, model)
    while True:
        checkpoint = store.choose(which, warn)
        if checkpoint is None:
            raise ConfigError([Problem("resume", f"there is no checkpoint in {store.folder} yet")])
        path = store.prefix(checkpoint.step)
        checkpoint.contents.check_model(path, here)
        try:
            values.restore(path, checkpoint.contents, without=without)
            return checkpoint
        except (tf.errors.OpError, AssertionError, KeyError) as error:
            if isinstance(error, tf.errors.OpError) and messages.task_lost(error):
                raise
            # A running run may have removed it after saving newer ones; try each checkpoint once.
            if checkpoint.step in store.steps() or which.isdigit():
                raise CheckpointError(f"{path} could not be restored: {error}") from error


def signature(source: DataSource) -> dict[str, tf.TensorSpec | tf.RaggedTensorSpec]:
    """A batch of raw features."""
    specs: dict[str, tf.TensorSpec | tf.RaggedTensorSpec] = {}
    for name, feature in source.features.items():
        if feature.is_list:
            specs[name] = tf.RaggedTensorSpec([None, None], feature.dtype, ragged_rank=1)
        else:
            specs[name] = tf.TensorSpec([None, *feature.shape], feature.dtype, name)
    return specs


def predict(model: Model, source: DataSource, features: dict[str, tf.Tensor]) -> tf.Tensor | dict[str, tf.Tensor]:
    """Predictions for a batch of raw features: probabilities where labels are classes, also of a model with logits."""
    inputs = model.preprocessed(features)
    return objective.to_probabilities(model.network(inputs, training=False), model, task_of(source))


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
        return storage.digest(self._store.manifest(name).files)

    def restore(self, model: Model, name: Any, steps_per_epoch: int) -> CheckpointInfo:
        """Restores a network from a checkpoint.

        Args:
          steps_per_epoch: of the training, for files that do not hold the optimizer's iterations: the number at the end
            of their name is then the epoch.

        Raises:
          CheckpointError: the checkpoint is damaged, or was removed.
          ConfigError: the checkpoint has another model.
        """
        checkpoint = restore(model, str(name), self._store, lambda text: None)
        return CheckpointInfo(checkpoint.step, storage.digest(checkpoint.files), checkpoint)


class KerasCheckpoints:
    """Checkpoints, by file name, of ModelCheckpoint with `save_weights_only` or of a tf.train.CheckpointManager.

    It has the methods of `RunCheckpoints`.
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

    def restore(self, model: Model, name: str, steps_per_epoch: int) -> CheckpointInfo:
        network = model.network
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
    views = {}
    for stack in embeddings.stacks_of(network):
        views[id(stack.variable)] = stack.views(stack.variable, stack.variable_name)
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


def export(trained: LoadedModel, folder: Path, warn: Callable[[str], None]) -> Path:
    """Writes `folder`/STEP, the layout for TensorFlow Serving; replaces an export of the same step.

    The signature `serving_default` takes a batch of raw features by name, strings included, and returns `prediction`
    (or the names of the model's outputs). If classes have names and the prediction is one probability per class, it
    also returns `class`, the name of the most probable one. assets.extra/psrun.json has all names, in order. A list is
    a padded matrix, (batch, any width), and an input NAME_length with the number of its values, (batch,). Longer lists
    than `max_values` are truncated.

    With `tables_in`, it takes vectors in place of the values that the network looks up: for each of the "look_ups" in
    assets.extra/psrun.json, of the shape of the values and, as the last axis, the width of the table; and of the
    features those that are used otherwise. The signature `rows` takes a batch of raw features and returns, by the same
    names, the numbers of the rows to look up. The tables are in the folder `tables`; psrun.json has their files.

    With `export.top_k`, a part adds signatures (`psrun.parts.Part.outputs`). Its function takes the `RunConfig`, the
    object that is saved, which has to hold all variables, and the model; it returns functions by name.

    Args:
      warn: prints a warning.

    Raises:
      ConfigError: the model or the data has no such signature.
      ExportError: TensorFlow cannot save the model, or the disk is full or cannot be written to.
    """
    root = tf.Module()

    def serve(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        outputs = predict(trained.model, trained.source, without_padding(trained.source, features))
        if isinstance(outputs, dict):
            return outputs
        names = trained.class_names
        if names is None or outputs.shape.as_list()[1:] != [len(names)]:
            return {"prediction": outputs}
        return {"prediction": outputs, "class": tf.gather(tf.constant(names), tf.argmax(outputs, axis=1))}

    specs = padded(trained.source)
    look_ups: Mapping[str, apart.LookUp] = {}
    if trained.tables_in is None:
        signatures = {"serving_default": tf.function(serve, input_signature=[specs])}
        root.network = trained.model.network
    else:
        lengths = {length_name(name) for name in _lists(trained.source).values()}
        split = apart.split(trained.model.network, serve, specs, lengths)
        signatures = {"serving_default": split.dense, "rows": split.rows}
        root.resources = split.resources
        look_ups = split.look_ups
    if isinstance(trained.model.preprocessing, tf.Module):
        # Its objects, such as lookup tables, are saved only if the root refers to them.
        root.preprocessing = trained.model.preprocessing
    if trained.more_signatures is not None:
        signatures |= trained.more_signatures(root, trained)
    for name, function in signatures.items():
        setattr(root, name, function)
    final = folder / str(trained.checkpoint.step)
    try:
        with _replacing(final) as part:
            with tf.device(DEVICE):
                tf.saved_model.save(root, str(part), signatures=signatures)
            about = _about(trained) | _write_tables(trained, look_ups, part)
            extra = part / "assets.extra"
            extra.mkdir()
            (extra / _ABOUT).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    except (tf.errors.OpError, OSError, AssertionError, ValueError) as error:
        raise ExportError(f"the model could not be exported to {final}: {error}") from error
    if files.is_pattern(final.absolute()):
        warn(f"TensorFlow takes {final} for a pattern and cannot load the model there: copy it to another folder")
    return final


def _write_tables(trained: LoadedModel, look_ups: Mapping[str, apart.LookUp], folder: Path) -> dict[str, object]:
    """Writes the tables beside a SavedModel without them, and returns what its description says of them."""
    if trained.tables_in is None:
        return {}
    from psrun.checkpoint import exchange  # imports Arrow, which other exports do not need

    tables = {each.table: each.column_bits for each in look_ups.values()}
    return {
        "look_ups": {name: {"table": each.table} for name, each in look_ups.items()},
        "tables": exchange.write_rows(trained.tables_in, trained.checkpoint.step, tables, folder),
    }


def padded(source: DataSource) -> dict[str, tf.TensorSpec]:
    """The signature of a batch of raw features without RaggedTensors, which have no names in a SavedModel."""
    specs = {name: tf.TensorSpec(spec.shape, spec.dtype, name) for name, spec in signature(source).items()}
    for name in _lists(source).values():
        length = length_name(name)
        specs[length] = tf.TensorSpec([None], tf.int64, length)
    return specs


def without_padding(source: DataSource, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor | tf.RaggedTensor]:
    """A batch of raw features as the data has them, from a batch of the signature `padded`."""
    unpadded: dict[str, tf.Tensor | tf.RaggedTensor] = {}
    owners = _lists(source)
    for name in source.features:
        if name not in features:  # of a signature that takes some of the features
            continue
        if name not in owners:
            unpadded[name] = features[name]
            continue
        owner = owners[name]
        feature = source.features[owner]
        assert feature.max_values is not None
        whole = tf.RaggedTensor.from_tensor(features[name], lengths=features[length_name(owner)])
        # Longer lists are truncated, as in training.
        if feature.keep == "last":
            unpadded[name] = whole[:, -feature.max_values :]
        else:
            unpadded[name] = whole[:, : feature.max_values]
    return unpadded


def _lists(source: DataSource) -> dict[str, str]:
    """The lists by name, each with the list whose lengths it has: weights have the lengths of their values."""
    owners: dict[str, str] = {}
    for name, feature in source.features.items():
        if feature.weights is not None:
            owners[feature.weights] = name
    return {name: owners.get(name, name) for name, feature in source.features.items() if feature.is_list}


def _about(trained: LoadedModel) -> dict[str, object]:
    manifest = trained.checkpoint
    names = trained.class_names
    about: dict[str, object] = {
        "step": manifest.step,
        "config_sha256": manifest.config_sha256,
        "psrun": manifest.psrun,
        "saved_at": manifest.saved_at,
    }
    if names:
        about["label_vocabulary"] = list(names)
    return about


@contextlib.contextmanager
def _replacing(final: Path) -> Iterator[Path]:
    """As `files.put_whole`, also in place of a folder with content; for a moment, readers see neither."""
    old = final.with_name(f".{final.name}.{os.getpid()}.old")
    with files.put_whole(final) as part:
        yield part
        if final.exists():
            final.rename(old)
    shutil.rmtree(old, ignore_errors=True)
