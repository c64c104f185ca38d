"""Checkpoints by the names of variables and tables: saved, restored and compared.

They fit every way in which tables are stored. A program saves and restores its own when no step
runs. Two checkpoints are compared value by value, in pieces. TensorFlow reads the whole stored
shard for each piece of it: pieces are as large as memory allows.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from psrun.checkpoint import storage
from psrun.checkpoint.storage import PREFIX, Contents, Manifest, Position, Store, digest
from psrun.cluster.placement import Placed
from psrun.config import choices
from psrun.errors import CheckpointError, ConfigError, Problem
from psrun.files import is_pattern
from psrun.models.model import Model
from psrun.program import build, embeddings
from psrun.program.compiled_model import Program, check_monitored_metric
from psrun.results.events import LEARNING_RATES
from psrun.tf_internals import checkpoints, messages, names
from psrun.tf_internals.checkpoints import VALUE_SUFFIX, TableView, point_to, values_in_checkpoint
from psrun.tf_internals.keras import DENSE_OPTIMIZER, TABLE_OPTIMIZER, layers_within, parts_of, unscaled
from psrun.tf_internals.strategies import shards_of, variables_of

_LINK_NAME = "checkpoint"
# The learning rate of an optimizer, or the present one of a schedule: a run that goes on may replace one by the other.
_RATE = re.compile(rf"optimizer/(.+/)?(_learning_rate|_current_learning_rate){re.escape(VALUE_SUFFIX)}")
_PIECE_BYTES = 512 << 20


@contextlib.contextmanager
def literal(prefix: str) -> Iterator[str]:
    """A prefix for the checkpoint at `prefix` that is not a pattern. Read everything within the context.

    TensorFlow's readers search the files that match the prefix as a pattern, and then open the prefix itself: it cannot
    be escaped (TensorFlow 2.21). Links to the files are created in a folder beside the folder whose name is a pattern,
    so that servers on other hosts find them, too.

    Raises:
      ConfigError: links cannot be created there.
    """
    path = Path(os.path.abspath(prefix))
    if not is_pattern(path):
        yield prefix
        return
    beside = next(parent for parent in path.parents if not is_pattern(parent))
    try:
        folder = Path(tempfile.mkdtemp(prefix=".psrun-", dir=beside))
    except OSError as error:
        raise _unreadable(path, beside, error) from error
    try:
        for file in path.parent.iterdir():
            if file.name.startswith(f"{path.name}."):
                (folder / f"{_LINK_NAME}{file.name.removeprefix(path.name)}").symlink_to(file)
        yield str(folder / _LINK_NAME)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unreadable(path: Path, beside: Path, error: OSError) -> ConfigError:
    remedy = f"rename the folder (links to the files cannot be created in {beside}: {error.strerror})"
    message = f"TensorFlow takes {path} for a pattern, and cannot read checkpoints there: {remedy}"
    return ConfigError([Problem("hydra.run.dir", message)])


def logical_checkpoint(network: tf_keras.Model, optimizer: Any = None) -> LogicalCheckpoint:
    """Checkpoints of a network and its optimizer.

    Args:
      optimizer: None for the network alone; built otherwise.
    """
    objects = {"model": network}
    slots: list[Any] = []
    if optimizer is not None:
        objects["optimizer"] = optimizer
        slots = list(optimizer.variables())
    stacks = embeddings.stacks_of(network)
    views = {}
    for slot in slots:
        name = name_of(slot)
        for stack in stacks:
            if stack.holds(name, slot.shape):
                views[id(slot)] = stack.views(slot, name)
    plain = tf.train.Checkpoint(**objects)
    named = checkpoints.NamedCheckpoint(plain, views)
    values = _named_values(named.objects(), [*variables_of(network), *slots])
    return LogicalCheckpoint(plain, named, values, slots, whole=optimizer is not None, stacked=bool(stacks))


@dataclass(frozen=True)
class _Value:
    """A value in checkpoints.

    Attributes:
      key: in checkpoints that are written here.
      holder: the variable, whole or in shards, or the table.
      has_name: whether it goes by the name of the variable or table; else by its key, a learning rate of dense weights
        by the key that it has of one optimizer for all variables.
    """

    key: str
    holder: Any
    has_name: bool


def _named_values(holders: Mapping[str, Any], variables: Sequence[Any]) -> dict[str, _Value]:
    """The values of checkpoints by name: names of tables and of the variables, keys of all others.

    Args:
      holders: by key, all that holds values.
    """
    variable_ids = {id(shard) for shard in shards_of(variables)}
    values: dict[str, _Value] = {}
    for key, holder in holders.items():
        has_name = isinstance(holder, TableView) or all(id(each) in variable_ids for each in shards_of([holder]))
        name = name_of(holder) if has_name else key
        if _RATE.fullmatch(name):
            name = name.replace(f"/{DENSE_OPTIMIZER}/", "/")
        if name in values:
            name = key
        values[name] = _Value(key, holder, has_name)
    return values


class LogicalCheckpoint:
    """Writes and restores the variables of a network and its optimizer, stacks as the tables in them.

    Args:
      plain: of the network and its optimizer.
      named: the same, with tables in place of the stacks.
      values: by name.
      slots: of the optimizer, which `named` knows only by their ids.
      whole: whether there is an optimizer.
      stacked: whether the network has stacks.
    """

    def __init__(
        self,
        plain: tf.train.Checkpoint,
        named: checkpoints.NamedCheckpoint,
        values: Mapping[str, _Value],
        slots: Sequence[Any],
        *,
        whole: bool,
        stacked: bool,
    ) -> None:
        self._plain = plain
        self._named = named
        self._values = values
        self._slots = slots
        self._whole = whole
        self._stacked = stacked

    @property
    def keys(self) -> dict[str, str]:
        """The keys of all values in checkpoints that are written here, by name."""
        return {name: value.key for name, value in self._values.items()}

    def _is_optional(self, name: str) -> bool:
        """Whether a checkpoint may lack the value."""
        # A network alone tracks more besides, such as the optimizer of `compile`.
        besides = not self._whole and not self._values[name].has_name
        return besides or _RATE.fullmatch(name) is not None

    def saving(self) -> checkpoints.Saving:
        """What saves the values. It is traced here.

        Raises:
          ConfigError: an object of the model writes its own files.
        """
        return self._named.saving()

    def restore(self, prefix: str, contents: Contents, *, without: Collection[str] = ()) -> None:
        """Gives the variables the values of a checkpoint, whatever the layout that it was written in.

        A learning rate that the checkpoint lacks, where it has a schedule, stays as it is.

        Args:
          contents: of the checkpoint.
          without: the names of values that stay as they are.

        Raises:
          AssertionError, KeyError: it lacks a value.
          ConfigError: its path is a pattern, and it cannot be read under another one.
          tf.errors.OpError: it cannot be read.
        """
        with literal(prefix) as path:
            self._restore(path, contents, without)

    def _restore(self, prefix: str, contents: Contents, without: Collection[str]) -> None:
        # TensorFlow's way, by the places of objects, also finds what has no name; it does not know the tables in slots.
        there = contents.keys
        own = self.keys
        moved = [name for name, key in own.items() if there.get(name, key if _RATE.fullmatch(name) else None) != key]
        if not self._stacked and not moved and not without:
            self._restore_objects(prefix, there)
            return
        holders = {}
        missing = []
        for name, value in self._values.items():
            if name in without:
                continue
            if name in there:
                holders[there[name]] = value.holder
            elif not self._is_optional(name):
                missing.append(name)
        if missing:
            raise KeyError(f"no value for {', '.join(missing)}")
        checkpoints.restore(prefix, holders)

    def _restore_objects(self, prefix: str, there: Mapping[str, str]) -> None:
        """Restores by the places of objects.

        Args:
          there: the keys in the checkpoint by name; only keys of learning rates may differ from the keys here.
        """
        new_rates = [value.holder for name, value in self._values.items() if name not in there]
        status = self._named.read(prefix, without=new_rates) if new_rates else self._plain.read(prefix)
        others = [name for name in there if name not in self._values]
        old_rates = bool(others) and all(map(_RATE.fullmatch, others))
        if self._whole and not old_rates:
            status.assert_consumed()
        else:
            status.assert_existing_objects_matched().expect_partial()


def adapted(network: tf_keras.Model) -> dict[str, str]:
    """The digests of the vocabularies and bins that `adapt` found in data, by the names of the layers.

    They are found anew wherever the network is made, and are no part of the values in checkpoints. Means and variances
    are no part of this: their last digits depend on the machine.
    """
    vocabularies: dict[str, str] = {}
    bins: dict[str, str] = {}
    for layer in layers_within(network):
        if not getattr(layer, "is_adapted", False):
            continue
        if hasattr(layer, "get_vocabulary"):
            vocabularies[layer.name] = digest([str(word) for word in layer.get_vocabulary()])
        if hasattr(layer, "bin_boundaries"):
            bins[layer.name] = digest([f"{bound:.4g}" for bound in layer.bin_boundaries])
    return vocabularies | bins


def name_of(holder: Any) -> str:
    """The name of a variable, whole or in shards, or of a table."""
    return holder.name if isinstance(holder, TableView) else names.name_of(holder)


def checkpoints_of(
    program: Program, store: Store, keep: choices.EpochCheckpoints, warn: Callable[[str], None]
) -> Checkpoints:
    """The checkpoints of a program in a store. The optimizer must be built already.

    Args:
      keep: the configured retention.
      warn: prints warnings.

    Raises:
      ConfigError: the program has no metric `best_metric`, or an object of the model writes its own files.
    """
    checkpoint = logical_checkpoint(program.network, program.optimizer)
    program_contents = contents(program, checkpoint.keys)
    if keep.best_metric is not None:
        check_monitored_metric("checkpoint.best_metric", keep.best_metric, program)
    # Traced once, before the training. TensorFlow's managers trace for every checkpoint; each trace is sent to all
    # workers under Python's GIL: a hung worker would stop every thread of this process.
    saving = checkpoint.saving()
    return Checkpoints(program, store, keep, warn, checkpoint=checkpoint, contents=program_contents, saving=saving)


class Checkpoints:
    """The checkpoints of a program in a store, as `checkpoints_of` makes them."""

    def __init__(
        self,
        program: Program,
        store: Store,
        keep: choices.EpochCheckpoints,
        warn: Callable[[str], None],
        *,
        checkpoint: LogicalCheckpoint,
        contents: Contents,
        saving: checkpoints.Saving,
    ) -> None:
        self.store = store
        self._program = program
        self._keep = keep
        self._warn = warn
        self._checkpoint = checkpoint
        self._contents = contents
        self._saving = saving
        self._optimizers = parts_of(program.optimizer)
        self._has_vocabularies = False  # in the folder

    @property
    def held_bytes(self) -> dict[str, int]:
        """Bytes of the values by the task that holds them."""
        held: Counter[str] = Counter()
        for shard in self._contents.shards:
            held[shard["task"]] += shard["bytes"]
        return dict(held)

    def take(self, step: int, position: Position, *, copies: bool) -> Callable[[], list[int]]:
        """Takes the values of a checkpoint named after `step`. Call after a join: steps would change them meanwhile.

        Args:
          copies: whether steps may run before the values are written: each task then copies what it holds.

        Returns:
          A function that writes them: see `_save`. Call it once, in any thread, before the next `take`.

        Raises:
          tf.errors.OpError: a task was lost.
        """
        config_sha256 = storage.digest(self._program.config.raw)
        rates = learning_rates(self._program)
        new_manifest = Manifest(step, position, self._contents, config_sha256, "", **rates)
        self._saving.stage(copies=copies)
        return functools.partial(self._save, new_manifest)

    def _save(self, new_manifest: Manifest) -> list[int]:
        """Writes the values that were taken.

        The checkpoint becomes the latest one, and older ones are removed, when all of it is on disk.

        Returns:
          The steps of the existing checkpoints, the newest first.

        Raises:
          CheckpointError: the disk is full or the folder cannot be written to; earlier checkpoints remain complete.
          tf.errors.OpError: a task was lost.
        """
        store = self.store
        step = new_manifest.step
        try:
            store.make_room(step)
            if not self._has_vocabularies:
                store.write_vocabularies(embeddings.vocabularies(self._program.model.ids))
                self._has_vocabularies = True
            self._saving.write(store.prefix(step))
            store.complete(new_manifest)
        except (tf.errors.OpError, OSError) as error:
            if isinstance(error, tf.errors.OpError) and messages.task_lost(error):
                raise  # not an error of the disk
            store.discard(step)  # frees the disk space
            reason = messages.gist(str(error))
            raise CheckpointError(f"no checkpoint could be written at step {step}: {reason}") from error
        try:
            self._point_to(step, store.steps())
            self._point_to(step, store.prune(step, self._keep.max_to_keep))
        except (tf.errors.OpError, OSError) as error:
            self._warn(f"the checkpoint of step {step} is complete, but older ones could not be removed: {error}")
        return store.steps()

    def _point_to(self, newest: int, steps: list[int]) -> None:
        """Makes `newest` the latest checkpoint also for TensorFlow's tools."""
        names = [f"{PREFIX}-{step}" for step in (newest, *(step for step in steps if step != newest))]
        # Only names, so that the folder may be moved.
        point_to(str(self.store.folder.resolve()), names[0], names[::-1])

    def restore(self, store: Store) -> Manifest | None:
        """Restores the newest good checkpoint in `store`; None if there never was one.

        It reads all of a checkpoint before it assigns any variable, and skips a damaged one with a warning.

        Raises:
          CheckpointError: all checkpoints are damaged.
          ConfigError: the newest good checkpoint has another model or optimizer.
        """
        checkpoint = store.choose("latest", self._warn)
        if checkpoint is not None:
            path = store.prefix(checkpoint.step)
            checkpoint.contents.check(path, self._contents)
            anew = checkpoint.contents.slots_anew(self._contents)
            if anew and isinstance(self._optimizers[-1], tf_keras.optimizers.Ftrl):
                message = f"would lose the tables of {path}: FTRL computes a row from its slots, which start anew"
                raise ConfigError([Problem("table_optimizer", f"{message}; choose another one, or start a new run")])
            rates: set[str] = set()
            if checkpoint.contents.table_optimizer != self._contents.table_optimizer:
                # As configured: the rate in the checkpoint is of another optimizer.
                rates = {
                    name for name in self._checkpoint.keys if f"/{TABLE_OPTIMIZER}/" in name and _RATE.fullmatch(name)
                }
            try:
                self._checkpoint.restore(path, checkpoint.contents, without=anew | rates)
            except (tf.errors.NotFoundError, tf.errors.DataLossError, tf.errors.OutOfRangeError) as error:
                raise CheckpointError(
                    f"the chief can read {path}, but another task cannot ({error}); mount the same run folder in all "
                    "tasks"
                ) from error
            except (AssertionError, KeyError) as error:
                message = f"does not match the checkpoint {path}: {str(error).splitlines()[0]}"
                raise ConfigError([Problem("optimizer", message)]) from error
            for optimizer, (name, configured) in zip(self._optimizers, learning_rates(self._program).items()):
                if configured not in (None, getattr(checkpoint, name)):
                    # Keras keeps it in a variable, which was just restored; the current configuration takes precedence.
                    optimizer.learning_rate = configured
            if anew:
                was, now = checkpoint.contents.optimizers, self._contents.optimizers
                text = f"the optimizer is {now}, but the checkpoint {path} has {was}: the slots of tables start anew"
                self._warn(f"{text}, those of dense weights and the step go on")
        return checkpoint

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Records the metrics of a checkpoint; returns whether it is the best so far by `best_metric`.

        Raises:
          CheckpointError: the disk is full or the folder cannot be written to.
        """
        metric = self._keep.best_metric
        mode = self._keep.best_mode
        if metric is None or mode is None or metric not in metrics or step not in self.store.steps():
            return False
        try:
            return self.store.compare(step, metric, metrics[metric], mode=mode)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"the best checkpoint could not be recorded: {error}") from error


def learning_rates(program: Program) -> dict[str, Any]:
    """The configured learning rates of `parts_of` the optimizer, as a `Manifest` has them.

    None for a schedule, which has no variable, or for the default of the optimizer.
    """
    rates: dict[str, Any] = {}
    for name, target in zip(LEARNING_RATES, program.config.optimizers):
        configured = target.options.get("learning_rate")
        rates[name] = float(configured) if isinstance(configured, int | float) else None
    return rates


def contents(program: Program, keys: Mapping[str, str]) -> Contents:
    """The content of checkpoints of the program, with its keys."""
    placed = [each for each in build.placement_of(program) if each.kind in ("model", "optimizer")]
    optimizer = program.optimizer
    others = _described(optimizer)
    if program.config.table_optimizer is not None:
        dense, tables = parts_of(optimizer)
        optimizer = dense if optimizer is unscaled(optimizer) else optimizer
        others |= {
            "table_optimizer": type(tables).__name__,
            "updated_tables": embeddings.table_names(program.network),
        }
    others["tables"] = embeddings.described(program.network, program.model.ids)
    return contents_of(type(optimizer).__name__, placed, keys, program.model, **others)


def _described(optimizer: Any) -> dict[str, Any]:
    """The constants and modules of the optimizers, as `Contents` has them."""
    constants = {}
    modules = {}
    for name, part in zip(("optimizer", "table_optimizer"), parts_of(optimizer)):
        constants[name] = _constants(part)
        modules[name] = type(part).__module__
    if "table_optimizer" in constants:
        for name in names.CLIPS:  # of all gradients together
            if name in constants["optimizer"]:
                constants["table_optimizer"][name] = constants["optimizer"][name]
    return {"constants": constants, "modules": modules}


def _constants(optimizer: Any) -> dict[str, Any]:
    """The numbers of the configuration of an optimizer, and of a schedule the configuration, as JSON has them."""
    try:
        configuration = optimizer.get_config()
    except NotImplementedError:  # a class of the user without a configuration
        return {}
    numbers = {}
    for name, value in configuration.items():
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, int | float) or name == "learning_rate":
            numbers[name] = value
    return json.loads(json.dumps(numbers, default=str))


def contents_of(optimizer: str, placed: list[Placed], keys: Mapping[str, str], model: Model, **others: Any) -> Contents:
    """The content of checkpoints of a model.

    Args:
      optimizer: the name of its class; empty without one.
      placed: the shards of all variables.
      keys: by name, the key of each value.
      others: of the attributes of `Contents`.
    """
    digests = adapted(model.network)
    return Contents.of(optimizer, placed, keys, adapted=digests, hashed_integers=model.hashed_integers, **others)


@dataclass(frozen=True)
class Comparison:
    """One variable in two checkpoints.

    Attributes:
      shape: in the first checkpoint, or in the only one with this variable.
      differs: a description of the difference; empty if all bits are equal.
    """

    name: str
    shape: str
    differs: str

    @property
    def equal(self) -> bool:
        return not self.differs


def compare(one: str, other: str) -> list[Comparison]:
    """Compares all variables of the checkpoints with these prefixes, whatever their shards.

    Raises:
      tf.errors.OpError: a checkpoint cannot be read.
    """
    with literal(one) as first, literal(other) as second:
        contents = [_recorded_contents(one), _recorded_contents(other)]
        if None in contents:  # only TensorFlow's own names are common to both
            contents = [None, None]
        checkpoints = [_StoredValues(prefix, each) for prefix, each in zip((first, second), contents)]
        left, right = checkpoints
        rows = []
        for name in sorted({*left.keys, *right.keys}):
            kinds = [checkpoint.kind(name) for checkpoint in checkpoints]
            if None in kinds:
                differs = f"only in {one if kinds[0] else other}"
            elif kinds[0] != kinds[1]:
                differs = f"is {kinds[1]} in {other}"
            else:
                differs = _difference(left, right, name)
            rows.append(Comparison(name, kinds[0] or kinds[1] or "", differs))
        return rows


def _recorded_contents(prefix: str) -> Contents | None:
    """The recorded contents of a checkpoint; None if psrun did not write it."""
    try:
        return storage.read_manifest(prefix).contents
    except (OSError, ValueError):
        return None


class _StoredValues:
    """The values in one checkpoint, by name.

    Args:
      prefix: where TensorFlow can read it.
      contents: None to use TensorFlow's names.
    """

    def __init__(self, prefix: str, contents: Contents | None) -> None:
        self.prefix = prefix
        reader = tf.train.load_checkpoint(prefix)
        self.shapes = reader.get_variable_to_shape_map()
        self.dtypes = reader.get_variable_to_dtype_map()
        names = values_in_checkpoint(reader)
        if contents is not None:
            names |= {key: name for name, key in contents.keys.items() if key in names}
        self.keys = {name: key for key, name in names.items()}

    def kind(self, name: str) -> str | None:
        """Shape and type of a value; None if there is no such value."""
        if name not in self.keys:
            return None
        key = self.keys[name]
        return f"{'x'.join(map(str, self.shapes[key])) or 'scalar'} {self.dtypes[key].name}"

    def read(self, name: str, piece: str) -> np.ndarray:
        key = self.keys[name]
        (value,) = tf.raw_ops.RestoreV2(
            prefix=self.prefix, tensor_names=[key], shape_and_slices=[piece], dtypes=[self.dtypes[key]]
        )
        return np.asarray(value.numpy())


def _difference(one: _StoredValues, other: _StoredValues, name: str) -> str:
    """How two values of the same shape and type differ; empty if they do not."""
    shape = one.shapes[one.keys[name]]
    dtype = one.dtypes[one.keys[name]]
    count = 0
    largest = 0.0
    for piece in _pieces(shape, dtype):
        left = one.read(name, piece)
        right = other.read(name, piece)
        if dtype == tf.string:  # arrays of objects, whose bytes are addresses
            count += int(np.sum(left != right))
            continue
        if left.tobytes() == right.tobytes():
            continue
        count += int(np.sum(left != right)) or 1  # NaN, or zeros with another sign
        if dtype.is_floating or dtype.is_integer:
            distance = np.abs(left.astype(np.float64) - right.astype(np.float64))
            largest = max(largest, float(np.max(distance, initial=0.0)))
    return f"{count:,} of {math.prod(shape):,} values, by up to {largest:.3g}" if count else ""


def _pieces(shape: list[int], dtype: tf.DType) -> Iterator[str]:
    """Slices along the first axis, as for `RestoreV2`: 'full shape' and 'start,length' per axis."""
    if not shape or dtype == tf.string:
        yield ""
        return
    row_bytes = max(1, math.prod(shape[1:]) * dtype.size)
    rows = max(1, _PIECE_BYTES // row_bytes)
    full = " ".join(map(str, shape))
    rest = [f"0,{length}" for length in shape[1:]]
    for start in range(0, shape[0], rows):
        yield f"{full} {':'.join([f'{start},{min(rows, shape[0] - start)}', *rest])}"
