"""Checkpoints by the names of variables and tables: they fit every way in which tables are stored."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras

from psrun.checkpoint import keys
from psrun.checkpoint.manifest import Contents
from psrun.cluster import placement
from psrun.layers import stacks
from psrun.tf_internals import table_views
from psrun.tf_internals.table_views import TableView
from psrun.tf_internals.variables import shards_of, variables_of


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
        self._stacked, self._collected = bool(stacks.of(network)), bool(stacks.collections(network))
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

        Args:
          contents: of the checkpoint.

        Raises:
          AssertionError, KeyError: it lacks a value.
          tf.errors.OpError: it cannot be read.
        """
        # TensorFlow's way, by the places of objects, also finds what has no name; it does not know the tables in slots.
        there = contents.keys
        same = {name: there[name] for name in self.keys if name in there} == self.keys
        if not self._stacked and (same or not (there or self._collected)):
            status = self._plain.read(prefix)
            status.assert_consumed() if self._whole else status.assert_existing_objects_matched().expect_partial()
            return
        if not there:
            stored = tf.train.load_checkpoint(prefix).get_variable_to_shape_map()
            there = keys.of_earlier(contents, stored, slots=self._whole)
        if missing := [name for name in self._objects if name not in there and name not in self._optional]:
            raise KeyError(f"no value for {', '.join(missing)}")
        holders = {there[name]: holder for name, (_, holder) in self._objects.items() if name in there}
        table_views.restore(prefix, holders)


def name_of(holder: Any) -> str:
    """The name of a variable, whole or in shards, or of a table."""
    return holder.name if isinstance(holder, TableView) else placement.name_of(holder)
