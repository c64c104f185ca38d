"""Compares two checkpoints value by value, in pieces.

TensorFlow reads the whole stored shard for each piece of it: pieces are as large as memory allows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

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
    readers = [tf.train.load_checkpoint(prefix) for prefix in (one, other)]
    shapes = [reader.get_variable_to_shape_map() for reader in readers]
    dtypes = [reader.get_variable_to_dtype_map() for reader in readers]
    names = {**values_in_checkpoint(readers[1]), **values_in_checkpoint(readers[0])}
    rows = []
    for key, name in sorted(names.items(), key=lambda item: item[1]):
        kinds = [f"{_shape(shape[key])} {dtype[key].name}" if key in shape else None
                 for shape, dtype in zip(shapes, dtypes)]  # fmt: skip
        if None in kinds:
            rows.append(Comparison(name, kinds[0] or kinds[1] or "", f"only in {one if kinds[0] else other}"))
        elif kinds[0] != kinds[1]:
            rows.append(Comparison(name, kinds[0] or "", f"is {kinds[1]} in {other}"))
        else:
            differs = _values(one, other, key, shapes[0][key], dtypes[0][key])
            rows.append(Comparison(name, kinds[0] or "", differs))
    return rows


def _shape(shape: list[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _values(one: str, other: str, key: str, shape: list[int], dtype: tf.DType) -> str:
    count, largest = 0, 0.0
    for spec in _pieces(shape, dtype):
        left, right = (
            tf.raw_ops.RestoreV2(prefix=prefix, tensor_names=[key], shape_and_slices=[spec], dtypes=[dtype])[0].numpy()
            for prefix in (one, other)
        )
        if np.asarray(left).tobytes() == np.asarray(right).tobytes():
            continue
        unequal = np.asarray(left != right)
        count += int(np.sum(unequal)) or 1  # NaN, or zeros with another sign
        if dtype.is_floating or dtype.is_integer:
            distance = np.abs(np.asarray(left, np.float64) - np.asarray(right, np.float64))
            largest = max(largest, float(np.max(distance, initial=0.0)))
    return f"{count:,} of {math.prod(shape):,} values, by up to {largest:.3g}" if count else ""


def _pieces(shape: list[int], dtype: tf.DType) -> Iterator[str]:
    """Slices along the first axis, as for `RestoreV2`: 'full shape' and 'start,length' per axis."""
    if not shape or dtype == tf.string:
        yield ""
        return
    row_bytes = max(1, math.prod(shape[1:]) * dtype.size)
    rows = max(1, _PIECE_BYTES // row_bytes)
    full, rest = " ".join(map(str, shape)), [f"0,{length}" for length in shape[1:]]
    for start in range(0, shape[0], rows):
        yield f"{full} {':'.join([f'{start},{min(rows, shape[0] - start)}', *rest])}"
