"""Compares two checkpoints value by value, in pieces.

TensorFlow reads the whole stored shard for each piece of it: pieces are as large as memory allows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from psrun.checkpoint import manifest
from psrun.checkpoint.literal_paths import literal
from psrun.checkpoint.manifest import Contents
from psrun.tf_internals.checkpoints import values_in_checkpoint

_PIECE_BYTES = 512 << 20


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
        contents = [_contents(one), _contents(other)]
        if None in contents:  # only TensorFlow's own names are common to both
            contents = [None, None]
        checkpoints = [_Checkpoint(prefix, each) for prefix, each in zip((first, second), contents)]
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


def _contents(prefix: str) -> Contents | None:
    """The recorded contents of a checkpoint; None if psrun did not write it."""
    try:
        return manifest.read(prefix).contents
    except (OSError, ValueError):
        return None


class _Checkpoint:
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


def _difference(one: _Checkpoint, other: _Checkpoint, name: str) -> str:
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
