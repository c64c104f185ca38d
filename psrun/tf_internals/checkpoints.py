"""TensorFlow's checkpoints: their keys and objects, tables within variables, restoring by name.

Checkpoints hold whole variables, by their place in the graph of objects. Here a table within a
larger variable is held as if it were a variable. Which objects there are is asked of an
`ObjectGraphView`, and what an object holds of its `SaveableObject`s: neither has a public name
(TensorFlow 2.21).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph
from tensorflow.python.checkpoint import checkpoint_management
from tensorflow.python.checkpoint.checkpoint import TrackableSaver
from tensorflow.python.checkpoint.functional_saver import MultiDeviceSaver
from tensorflow.python.checkpoint.graph_view import ObjectGraphView
from tensorflow.python.trackable.base import VARIABLE_VALUE_KEY, Trackable, TrackableReference
from tensorflow.python.trackable.trackable_utils import checkpoint_key, object_path_to_string
from tensorflow.python.training.saving.saveable_object import SaveableObject, SaveSpec
from tensorflow.python.training.saving.saveable_object_util import ResourceVariableSaveable, set_cpu0

from psrun.errors import ConfigError, Problem
from psrun.tf_internals.names import require
from psrun.tf_internals.tracing import unconverted

# Writes the file `checkpoint` of a folder, which names its checkpoints. Public is the same with a warning, since users
# should take a `tf.train.CheckpointManager`, which also decides which checkpoints are kept.
point_to = checkpoint_management.update_checkpoint_state_internal

VALUE_SUFFIX = f"/.ATTRIBUTES/{VARIABLE_VALUE_KEY}"  # of the key of a value in a checkpoint
_SHARDED = "ShardedVariable"
_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
# Operations whose results share no memory with a variable.
_OWN_MEMORY = frozenset({"Const", "GatherV2", "LookupTableExportV2", "ResourceGather"})
# Operations whose results may share the memory of their first input.
_PASSING_ON = frozenset({"Identity", "SplitV"})


def values_in_checkpoint(reader: Any) -> dict[str, str]:
    """The keys of all values, and the names that their variables had; shards of a variable have only keys.

    `tf.train.list_variables` gives the keys alone, and among them the graph of objects, which differs where shards do
    (TensorFlow 2.21).

    Raises:
      tf.errors.NotFoundError: the checkpoint was not written by `tf.train.Checkpoint`.
    """
    graph = TrackableObjectGraph.FromString(reader.get_tensor(_GRAPH))
    tensors = [tensor for node in graph.nodes for tensor in node.attributes]
    names = {each.checkpoint_key: each.full_name for each in tensors if each.full_name not in ("", _SHARDED)}
    return {
        key: names.get(key, key.removesuffix(VALUE_SUFFIX))
        for key in reader.get_variable_to_shape_map()
        if key != _GRAPH
    }


def iterations_in_checkpoint(reader: Any) -> int | None:
    """The steps that an optimizer in a checkpoint had applied; None where the checkpoint holds no optimizer.

    A checkpoint names values by the attributes of their objects: `_iterations` of an optimizer of tf-keras 2.21, `iter`
    of a legacy optimizer, with which another program may have trained.
    """
    shapes = reader.get_variable_to_shape_map()
    for name in ("optimizer/_iterations", "optimizer/iter", "model/optimizer/_iterations", "model/optimizer/iter"):
        key = f"{name}{VALUE_SUFFIX}"
        if key in shapes:
            return int(reader.get_tensor(key))
    return None


@dataclass(frozen=True)
class Part:
    """Contiguous rows of a table in one variable.

    Attributes:
      variable: (rows, ...), one shard of the larger variable.
      first: the first row, counted within the table.
      num_rows: how many there are.
      offset: where they are in the variable.
      together: reads the part with other parts of the variable; None: it is read by itself.
    """

    variable: Any
    first: int
    num_rows: int
    offset: int
    together: TogetherRead | None = None


class TogetherRead:
    """Reads parts of a small variable together while a function is traced, in two operations for any number of parts.

    The values are copied twice where the rows of a part do not fill whole cache lines.

    Args:
      variable: (rows, ...).
      parts: the first row and the number of rows of each part, which do not overlap.
    """

    def __init__(self, variable: Any, parts: Sequence[tuple[int, int]]) -> None:
        self._variable = _copies(variable)[0]
        self._sizes: list[int] = []
        self._numbers: dict[int, int] = {}  # by the first row of a part, its place among the sizes
        end = 0
        for first, num_rows in sorted(parts):
            if first > end:
                self._sizes.append(first - end)
            self._numbers[first] = len(self._sizes)
            self._sizes.append(num_rows)
            end = first + num_rows
        if variable.shape[0] > end:
            self._sizes.append(variable.shape[0] - end)
        self._graph: Any = None
        self._read: Sequence[tf.Tensor] = ()

    def rows(self, first: int) -> tf.Tensor:
        """The rows of the part that begins with this row."""
        graph = tf.compat.v1.get_default_graph()
        if self._graph is not graph:
            whole = tf.gather(self._variable, tf.range(self._variable.shape[0]))
            self._read = tf.split(whole, self._sizes)
            self._graph = graph
        return self._read[self._numbers[first]]


class TableView(Trackable):
    """The rows of a table within larger variables. A checkpoint holds it as a variable of this name."""

    def __init__(self, name: str, parts: Sequence[Part]) -> None:
        self.name, self._parts = name, tuple(parts)
        num_rows = sum(part.num_rows for part in parts)
        self.shape = tf.TensorShape([num_rows, *parts[0].variable.shape[1:]])
        self.dtype = parts[0].variable.dtype

    def read(self) -> tf.Tensor:
        """The rows, copied."""
        full = self.shape.as_list()
        return tf.concat([_PartSaveable(part, full, self.name).read() for part in self._parts], 0)

    def _gather_saveables_for_checkpoint(self) -> dict[str, Any]:
        full = self.shape.as_list()

        def saveables(name: str = self.name) -> list[SaveableObject]:
            return [_PartSaveable(part, full, name) for part in self._parts]

        return {VARIABLE_VALUE_KEY: saveables}


def _copies(variable: Any) -> Sequence[Any]:
    """The copies of a variable on several devices, or the only one."""
    return getattr(variable, "values", None) or [variable]


class _PartSaveable(SaveableObject):
    """Reads and writes the rows of a part only."""

    def __init__(self, part: Part, full_shape: list[int], name: str) -> None:
        self._part = part
        self._copies = _copies(part.variable)
        first, variable = self._copies[0], part.variable
        extent = [f"{part.first},{part.num_rows}", *(f"0,{size}" for size in full_shape[1:])]
        spec = f"{' '.join(map(str, full_shape))} {':'.join(extent)}"
        # Without a variable: TensorFlow would refuse several tables of one as the same value with two names.
        super().__init__(None, [SaveSpec(self.read, spec, name, variable.dtype, first.device)], name)

    def read(self) -> tf.Tensor:
        together = self._part.together
        # `variable[a:b]` would copy the whole variable for each table.
        with tf.device(self._copies[0].device):
            if together is None or tf.executing_eagerly():
                rows = tf.gather(self._copies[0], self._rows())
            else:
                rows = together.rows(self._part.offset)
        memory = set_cpu0(self._copies[0].device)
        if memory == self._copies[0].device:
            return rows
        with tf.device(memory):
            return tf.identity(rows)

    def _rows(self) -> tf.Tensor:
        return tf.range(self._part.offset, self._part.offset + self._part.num_rows)

    def restore(self, restored_tensors: Sequence[tf.Tensor], restored_shapes: Any) -> Any:
        for copy in self._copies:
            with tf.device(copy.device):
                tf.raw_ops.ResourceScatterUpdate(
                    resource=copy.handle, indices=self._rows(), updates=tf.identity(restored_tensors[0])
                )
        return tf.no_op() if not tf.executing_eagerly() else None


class _View(ObjectGraphView):
    """The graph of objects with some variables replaced, and without some."""

    def __init__(self, root: Any, replaced: Mapping[int, Any], without: Sequence[Any] = ()) -> None:
        super().__init__(root)
        self._replaced, self._without = replaced, {id(each) for each in without}

    def list_children(self, obj: Any, save_type: str = "checkpoint", **options: Any) -> list[TrackableReference]:
        children = super().list_children(obj, save_type, **options)
        kept = [each for each in children if id(each.ref) not in self._without]
        return [TrackableReference(name, self._replaced.get(id(child), child)) for name, child in kept]


class Views(Trackable):
    """Takes the place of a variable in the graph of objects.

    Args:
      children: by table, the object that holds it.
    """

    def __init__(self, children: Mapping[str, Any]) -> None:
        self.children = dict(children)

    def _trackable_children(self, save_type: str = "checkpoint", **options: Any) -> dict[str, Any]:
        return self.children


class Saving:
    """Saves checkpoints in two parts: `stage` takes the values, `write` writes them.

    Staged values stay in the memory of the task that holds the variables. No other task receives them: what a traced
    function returns would be sent to the chief and back (TensorFlow 2.21).

    Args:
      stage: a traced function of whether to copy.
      write: a traced function of the prefix.
    """

    def __init__(self, stage: Callable[[tf.Tensor], Any], write: Callable[[tf.Tensor], Any]) -> None:
        self._stage = stage
        self._write = write

    def stage(self, *, copies: bool) -> None:
        """Takes the present values in place of values that were not written.

        Args:
          copies: whether variables may change before `write`. Without a copy, values share the memory of variables.

        Raises:
          tf.errors.OpError: a task was lost.
        """
        self._stage(tf.constant(copies))

    def write(self, prefix: str) -> None:
        """Writes the staged values as `tf.train.Checkpoint.write` does, and releases their memory. Call once.

        Raises:
          tf.errors.OpError: a task was lost, or a file cannot be written.
        """
        self._write(tf.constant(prefix))


@dataclass(frozen=True)
class _Staged:
    """The values that a task stages, in order.

    Attributes:
      task: the device that holds them.
      name: of the staging area.
      slices: the key in the checkpoint and the slice specification of each value.
      dtypes: of each value.
    """

    task: str
    name: str
    slices: Sequence[tuple[str, str]]
    dtypes: Sequence[tf.DType]


def traced_saving(saver: TrackableSaver) -> Saving:
    """Traces the two parts of a save.

    Raises:
      ConfigError: an object writes its own files, whenever it is asked to.
    """
    name = f"psrun-{secrets.token_hex(8)}"  # staging areas belong to a process, not to a program
    staged: list[_Staged] = []

    def stage_values(copies: tf.Tensor) -> None:
        for number, (task, slices, tensors) in enumerate(_values_by_task(saver)):
            area = _Staged(task, f"{name}-{number}", slices, [tensor.dtype for tensor in tensors])
            staged.append(area)
            with tf.device(task):
                values = _copied(tensors, copies)
                cleared = tf.raw_ops.StageClear(dtypes=area.dtypes, shared_name=area.name)
                with tf.control_dependencies([cleared]):
                    tf.raw_ops.Stage(values=values, shared_name=area.name)

    def write_values(prefix: tf.Tensor) -> tf.Tensor:
        values: dict[str, dict[str, SaveSpec]] = {}
        for area in staged:
            with tf.device(area.task):
                tensors = tf.raw_ops.Unstage(dtypes=area.dtypes, shared_name=area.name)
            for (key, spec), tensor in zip(area.slices, tensors):
                values.setdefault(key, {})[spec] = SaveSpec(tensor, spec, key, tensor.dtype, area.task)
        written = MultiDeviceSaver({None: values}).save(prefix)
        with tf.device("cpu:0"), tf.control_dependencies([written]):
            return tf.identity(prefix)

    stage = unconverted(stage_values).get_concrete_function(tf.TensorSpec([], tf.bool))
    return Saving(stage, unconverted(write_values).get_concrete_function(tf.TensorSpec([], tf.string)))


def _values_by_task(saver: TrackableSaver) -> Iterator[tuple[str, list[tuple[str, str]], list[tf.Tensor]]]:
    """The device of each task, the keys and slice specifications of its values, and the values."""
    serialized, _, own_savers, _ = saver._gather_serialized_tensors()
    if own_savers:
        message = f"does not support objects with a saver of their own: {', '.join(own_savers)}; set checkpoint=none"
        raise ConfigError([Problem("checkpoint", message)])
    callback = tf.train.CheckpointOptions().experimental_sharding_callback
    for task, shards in MultiDeviceSaver(serialized)._get_shards_by_task(callback):
        slices = []
        tensors = []
        for shard in shards:
            for key, values in shard.items():
                for spec, tensor in values.items():
                    if tensor is None:  # only the graph of objects has it
                        continue
                    slices.append((key, spec))
                    tensors.append(tensor)
        yield task.to_string(), slices, tensors


def _copied(tensors: Sequence[tf.Tensor], copies: tf.Tensor) -> list[tf.Tensor]:
    """The tensors; if `copies`, copies of those that may share the memory of a variable."""
    shared = [tensor for tensor in tensors if _shares_memory(tensor)]
    if not shared:
        return list(tensors)
    values = tf.cond(
        copies,
        lambda: [tf.raw_ops.DeepCopy(x=tensor) for tensor in shared],
        lambda: [tf.identity(tensor) for tensor in shared],
    )
    replaced = {id(tensor): value for tensor, value in zip(shared, values)}
    return [replaced.get(id(tensor), tensor) for tensor in tensors]


def _shares_memory(tensor: tf.Tensor) -> bool:
    """Whether the tensor may share the memory of a variable: a variable that is read is not copied."""
    operation = tensor.op
    while operation.type in _PASSING_ON:
        operation = operation.inputs[0].op
    return operation.type not in _OWN_MEMORY


class NamedCheckpoint:
    """A checkpoint of objects, some of whose variables are held as tables.

    Args:
      checkpoint: of the objects.
      replaced: by the id of a variable, the tables that it holds.
    """

    def __init__(self, checkpoint: tf.train.Checkpoint, replaced: Mapping[int, Views]) -> None:
        require(checkpoint, "_saver")
        self._checkpoint, self._view = checkpoint, _View(checkpoint, replaced)
        self._saver = TrackableSaver(self._view)

    def saving(self) -> Saving:
        """What saves the checkpoint. Its functions are traced here."""
        return traced_saving(self._saver)

    def read(self, path: str, *, without: Sequence[Any]) -> Any:
        """As `tf.train.Checkpoint.read`, without tables and without some of the objects."""
        return TrackableSaver(_View(self._checkpoint, {}, without)).restore(path)

    def objects(self) -> dict[str, Any]:
        """All that holds values, by its key in checkpoints: variables, variables in shards, tables."""
        # As while a save is traced: tf-keras 2.21 shows a loss scale to eager code only, so that no file has it.
        with tf.Graph().as_default():
            objects, paths = self._view._descendants_with_paths()
        holders = {}
        for each in objects:
            if VARIABLE_VALUE_KEY in each._gather_saveables_for_checkpoint():
                holders[checkpoint_key(object_path_to_string(paths[each]), VARIABLE_VALUE_KEY)] = each
        return holders


def restore(path: str, keys: Mapping[str, Any]) -> None:
    """Gives objects that hold values the values of a checkpoint.

    Args:
      path: the checkpoint's prefix.
      keys: variables, variables in shards or tables, by their keys in this checkpoint.

    Raises:
      tf.errors.OpError: the checkpoint lacks a key, or cannot be read.
    """
    for key, holder in keys.items():
        for saveable in _saveables(holder, key):
            (spec,) = saveable.specs
            with tf.device(set_cpu0(spec.device)):
                tensors = tf.raw_ops.RestoreV2(
                    prefix=path, tensor_names=[key], shape_and_slices=[spec.slice_spec], dtypes=[spec.dtype]
                )
            saveable.restore(tensors, None)


def _saveables(holder: Any, key: str) -> list[SaveableObject]:
    factory = holder._gather_saveables_for_checkpoint()[VARIABLE_VALUE_KEY]
    saveables = factory(key) if callable(factory) else ResourceVariableSaveable(factory, "", key)
    return list(saveables) if isinstance(saveables, list | tuple) else [saveables]
