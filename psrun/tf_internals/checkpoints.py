"""The keys and the graph of objects of TensorFlow's checkpoints."""

from __future__ import annotations

from typing import Any

from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph
from tensorflow.python.checkpoint import checkpoint_management

__all__ = ["iterations_in_checkpoint", "point_to", "values_in_checkpoint"]

# Writes the file `checkpoint` of a folder, which names its checkpoints. Public is the same with a warning, since users
# should take a `tf.train.CheckpointManager`, which also decides which checkpoints are kept.
point_to = checkpoint_management.update_checkpoint_state_internal

_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_SHARDED = "ShardedVariable"
_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


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
        key: names.get(key, key.removesuffix(_VALUE)) for key in reader.get_variable_to_shape_map() if key != _GRAPH
    }


def iterations_in_checkpoint(reader: Any) -> int | None:
    """The steps that an optimizer in a checkpoint had applied; None where the checkpoint holds no optimizer.

    A checkpoint names values by the attributes of their objects: `_iterations` of an optimizer of tf-keras 2.21, `iter`
    of a legacy optimizer, with which another program may have trained.
    """
    shapes = reader.get_variable_to_shape_map()
    for name in ("optimizer/_iterations", "optimizer/iter", "model/optimizer/_iterations", "model/optimizer/iter"):
        key = f"{name}{_VALUE}"
        if key in shapes:
            return int(reader.get_tensor(key))
    return None
