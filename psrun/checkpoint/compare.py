"""Compares two checkpoints value by value, in pieces.

TensorFlow reads the whole stored shard for each piece of it: pieces are as large as memory allows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from psrun.checkpoint import keys as keys_of
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
        return _compared((one, other), (first, second))


def _compared(prefixes: tuple[str, str], readable: tuple[str, str]) -> list[Comparison]:
    """As `compare`. Args: readable: where TensorFlow can read the checkpoints."""
    one, other = prefixes
    readers = [tf.train.load_checkpoint(prefix) for prefix in readable]
    shapes = [reader.get_variable_to_shape_map() for reader in readers]
    dtypes = [reader.get_variable_to_dtype_map() for reader in readers]
    keys = _by_name(prefixes, readers)
    rows = []
    for name in sorted({*keys[0], *keys[1]}):
        places = [(prefix, each[name]) for prefix, each in zip(readable, keys) if name in each]
        kinds = [f"{_shape(shape[each[name]])} {dtype[each[name]].name}" if name in each else None
                 for each, shape, dtype in zip(keys, shapes, dtypes)]  # fmt: skip
        if None in kinds:
            rows.append(Comparison(name, kinds[0] or kinds[1] or "", f"only in {one if kinds[0] else other}"))
        elif kinds[0] != kinds[1]:
            rows.append(Comparison(name, kinds[0] or "", f"is {kinds[1]} in {other}"))
        else:
            differs = _values(places, shapes[0][keys[0][name]], dtypes[0][keys[0][name]])
            rows.append(Comparison(name, kinds[0] or "", differs))
    return rows


def _by_name(prefixes: tuple[str, str], readers: list[Any]) -> list[dict[str, str]]:
    """The keys of all values in two checkpoints by names that both use."""
    recorded = [_contents(prefix) for prefix in prefixes]
    comparable = all(each is not None for each in recorded)
    return [_names(contents if comparable else None, reader) for contents, reader in zip(recorded, readers)]


def _contents(prefix: str) -> Contents | None:
    """The recorded contents of a checkpoint; None if psrun did not write it."""
    try:
        return manifest.read(prefix).contents
    except (OSError, ValueError):
        return None


def _names(contents: Contents | None, reader: Any) -> dict[str, str]:
    names = {name: key for key, name in values_in_checkpoint(reader).items()}
    if contents is None:
        return names
    try:
        recorded = contents.keys or keys_of.of_earlier(contents, reader.get_variable_to_shape_map())
    except KeyError:  # not a functional model
        return names
    by_key = {key: name for name, key in recorded.items()}
    return {by_key.get(key, name): key for name, key in names.items()}


def _shape(shape: list[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _values(places: list[tuple[str, str]], shape: list[int], dtype: tf.DType) -> str:
    """How two values differ, each given by the prefix of its checkpoint and its key."""
    count, largest = 0, 0.0
    for spec in _pieces(shape, dtype):
        left, right = (
            tf.raw_ops.RestoreV2(prefix=prefix, tensor_names=[key], shape_and_slices=[spec], dtypes=[dtype])[0].numpy()
            for prefix, key in places
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
