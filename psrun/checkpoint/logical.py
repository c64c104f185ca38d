"""Checkpoints by the names of variables and tables: they fit every way in which tables are stored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tf_keras

from psrun.checkpoint.literal_paths import literal
from psrun.checkpoint.manifest import Contents, digest
from psrun.program import stacks
from psrun.tf_internals import names, table_views
from psrun.tf_internals.keras import layers_within
from psrun.tf_internals.table_views import TableView
from psrun.tf_internals.variables import shards_of, variables_of

# The learning rate of an optimizer, or the present one of a schedule: a run that goes on may replace one by the other.
_RATE = re.compile(r"optimizer/(.+/)?(_learning_rate|_current_learning_rate)/\.ATTRIBUTES/VARIABLE_VALUE")


class LogicalCheckpoint:
    """Writes and restores the variables of a network and its optimizer, stacks as the tables in them.

    Args:
      optimizer: None for the network alone; built otherwise.
    """

    def __init__(self, network: tf_keras.Model, optimizer: Any = None) -> None:
        objects = {"model": network} if optimizer is None else {"model": network, "optimizer": optimizer}
        self._whole = optimizer is not None
        slots = [] if optimizer is None else list(optimizer.variables())
        replaced = {}
        for slot in slots:
            name = name_of(slot)
            for stack in stacks.of(network):
                if stack.holds(name, slot.shape):
                    replaced[id(slot)] = stack.views(slot, name)
        self._slots = slots  # `replaced` holds only their ids
        self._stacked = bool(stacks.of(network))
        self._plain = tf.train.Checkpoint(**objects)
        self._checkpoint = table_views.NamedCheckpoint(self._plain, replaced)
        variable_ids = {id(shard) for shard in shards_of([*variables_of(network), *slots])}
        self._objects: dict[str, tuple[str, Any]] = {}
        self._optional: set[str] = set()  # what a network alone tracks besides, such as the optimizer of `compile`
        for key, holder in self._checkpoint.objects().items():
            has_name = isinstance(holder, TableView) or all(id(each) in variable_ids for each in shards_of([holder]))
            name = name_of(holder) if has_name else key
            name = key if name in self._objects else name
            self._objects[name] = (key, holder)
            if not (has_name or self._whole):
                self._optional.add(name)

    @property
    def keys(self) -> dict[str, str]:
        """The keys of all values in checkpoints that are written here, by name."""
        return {name: key for name, (key, _) in self._objects.items()}

    def write(self, prefix: tf.Tensor) -> Any:
        """As `tf.train.Checkpoint.write`."""
        return self._checkpoint.write(prefix)

    def restore(self, prefix: str, contents: Contents) -> None:
        """Gives the variables the values of a checkpoint, whatever the layout that it was written in.

        A learning rate that the checkpoint lacks, where it has a schedule, stays as it is.

        Args:
          contents: of the checkpoint.

        Raises:
          AssertionError, KeyError: it lacks a value.
          ConfigError: its path is a pattern, and it cannot be read under another one.
          tf.errors.OpError: it cannot be read.
        """
        with literal(prefix) as path:
            self._restore(path, contents)

    def _restore(self, prefix: str, contents: Contents) -> None:
        # TensorFlow's way, by the places of objects, also finds what has no name; it does not know the tables in slots.
        there = contents.keys
        own = self.keys
        moved = [name for name, key in own.items() if there.get(name) != key and not _RATE.fullmatch(name)]
        if not self._stacked and not moved:
            self._restore_objects(prefix, there)
            return
        optional = self._optional.union(filter(_RATE.fullmatch, self._objects))
        if missing := [name for name in self._objects if name not in there and name not in optional]:
            raise KeyError(f"no value for {', '.join(missing)}")
        holders = {there[name]: holder for name, (_, holder) in self._objects.items() if name in there}
        table_views.restore(prefix, holders)

    def _restore_objects(self, prefix: str, there: Mapping[str, str]) -> None:
        """Restores by the places of objects.

        Args:
          there: the keys in the checkpoint by name, those of this one but for learning rates.
        """
        new_rates = [holder for name, (_, holder) in self._objects.items() if name not in there]
        status = self._checkpoint.read(prefix, without=new_rates) if new_rates else self._plain.read(prefix)
        others = [name for name in there if name not in self._objects]
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
    layers = [layer for layer in layers_within(network) if getattr(layer, "is_adapted", False)]
    vocabularies = {
        each.name: list(map(str, each.get_vocabulary())) for each in layers if hasattr(each, "get_vocabulary")
    }
    bins = {each.name: [f"{x:.4g}" for x in each.bin_boundaries] for each in layers if hasattr(each, "bin_boundaries")}
    return {name: digest(values) for name, values in {**vocabularies, **bins}.items()}


def name_of(holder: Any) -> str:
    """The name of a variable, whole or in shards, or of a table."""
    return holder.name if isinstance(holder, TableView) else names.name_of(holder)
