"""Reads the values of a checkpoint in slices, without TensorFlow.

TensorFlow reads a whole shard for each slice of it (2.21): a table needs the memory of its largest shard. Here only the
slice is read.

The format is TensorFlow's `TensorBundle` (tensorflow/core/util/tensor_bundle/tensor_bundle.h). The file `.index` is a
LevelDB table without compression. It has a `BundleEntryProto` (tensorflow/core/protobuf/tensor_bundle.proto) for each
value, and for each slice of a value that is stored in slices. The files `.data-*` have the values.
"""

from __future__ import annotations

import bisect
import itertools
import math
import os
import struct
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

_MAGIC = 0xDB4775248B80FB57
_FOOTER_BYTES = 48
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # types of fields in protocol buffers
_DTYPES = {  # of tensorflow/core/framework/types.proto; NumPy has no bfloat16
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 9: "int64", 10: "bool", 17: "uint16",
    19: "float16", 22: "uint32", 23: "uint64",
}  # fmt: skip


@dataclass(frozen=True)
class Part:
    """The part of a value that lies in one place.

    Attributes:
      start, length: along each axis.
      offset, size: in bytes, in the file of that number.
    """

    start: tuple[int, ...]
    length: tuple[int, ...]
    file: int
    offset: int
    size: int


@dataclass
class Stored:
    """A value in a checkpoint.

    Attributes:
      code: of its type, as TensorFlow has it.
      dtype: as NumPy calls it; empty for others, such as strings.
      parts: one of the whole value, or several.
    """

    code: int
    dtype: str
    shape: tuple[int, ...]
    parts: list[Part] = field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class Bundle:
    """The values of the checkpoint at a prefix.

    Args:
      prefix: the path of its files, without their endings.

    Attributes:
      values: by key.

    Raises:
      OSError: a file cannot be read.
      ValueError: the index is damaged, or of another format.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.values: dict[str, Stored] = {}
        self._num_files = 0
        self._open: dict[int, int] = {}  # descriptors by the number of the file
        weakref.finalize(self, _close, self._open)
        try:
            self._read_index(Path(f"{prefix}.index").read_bytes())
        except (IndexError, struct.error, KeyError, UnicodeDecodeError) as error:
            raise ValueError(f"{prefix}.index is damaged: {type(error).__name__}: {error}") from error

    def _read_index(self, index: bytes) -> None:
        if len(index) < _FOOTER_BYTES or struct.unpack("<Q", index[-8:])[0] != _MAGIC:
            raise ValueError(f"{self._prefix}.index is no index of a checkpoint")
        slices = []
        for key, entry in _entries(index):
            fields = _fields(entry)
            if not key:
                self._num_files = fields[1][0]
            elif key.startswith(b"\0"):
                slices.append((key, fields))
            else:
                stored = Stored(_one(fields, 1), _DTYPES.get(_one(fields, 1), ""), _shape(fields))
                self.values[key.decode()] = stored
                if 7 not in fields:
                    start = (0,) * len(stored.shape)
                    stored.parts.append(Part(start, stored.shape, *_place(fields)))
        for key, fields in slices:
            name, extents = _slice_of(key)
            stored = self.values[name]
            start, length = zip(*extents)
            whole = zip(length, stored.shape)
            length = tuple(size if each < 0 else each for each, size in whole)
            stored.parts.append(Part(start, length, *_place(fields)))
        for stored in self.values.values():
            stored.parts.sort(key=lambda part: part.start)

    def rows(self, key: str, first: int, count: int, into: np.ndarray | None = None) -> np.ndarray:
        """Rows of a value: a part of its first axis.

        Args:
          into: the array to fill, contiguous; None for a new one.

        Raises:
          OSError: a file cannot be read.
          ValueError: the value is cut along another axis, or its parts do not hold all rows.
        """
        stored = self.values[key]
        row_shape = stored.shape[1:]
        found: np.ndarray = np.empty((count, *row_shape), stored.dtype) if into is None else into
        num_found = 0
        before = bisect.bisect_right(stored.parts, first, key=lambda part: part.start[0]) - 1
        for part in stored.parts[max(0, before) :]:
            if part.length[1:] != row_shape:
                raise ValueError(f"{key} is cut along another axis than its first")
            begin = max(first, part.start[0])
            end = min(first + count, part.start[0] + part.length[0])
            if begin >= end:
                break
            self._read(part, begin - part.start[0], found[begin - first : end - first])
            num_found += end - begin
        if num_found != count:
            raise ValueError(f"{key} has {num_found} of the rows {first} to {first + count}")
        return found

    def whole(self, key: str) -> np.ndarray:
        """All of a value, also of one without axes; raises as `rows`."""
        stored = self.values[key]
        if stored.shape:
            return self.rows(key, 0, stored.shape[0])
        return np.frombuffer(self.raw(key), stored.dtype).reshape(())

    def raw(self, key: str) -> bytes:
        """The bytes of a value of any type, as the file has them.

        Raises:
          OSError: a file cannot be read.
          ValueError: the value is cut.
        """
        if len(self.values[key].parts) != 1:
            raise ValueError(f"{key} is cut")
        (part,) = self.values[key].parts
        held: np.ndarray = np.empty((part.size,), np.uint8)
        self._read(part, 0, held)
        return held.tobytes()

    def _read(self, part: Part, first: int, into: np.ndarray) -> None:
        """Reads values of a part, from its row `first` on."""
        path = f"{self._prefix}.data-{part.file:05d}-of-{self._num_files:05d}"
        if part.file not in self._open:
            self._open[part.file] = os.open(path, os.O_RDONLY)
        offset = part.offset + first * math.prod(into.shape[1:]) * into.itemsize
        if into.size and os.preadv(self._open[part.file], [into.data.cast("B")], offset) != into.nbytes:
            raise ValueError(f"{path} ends before its values do")


def _close(descriptors: dict[int, int]) -> None:
    for descriptor in descriptors.values():
        os.close(descriptor)


def strings(raw: bytes, count: int) -> list[bytes]:
    """The texts of a value of so many, from its bytes: their lengths, four bytes of a checksum, the texts."""
    place = 0
    lengths = []
    for _ in range(count):
        length, place = _varint(raw, place)
        lengths.append(length)
    place += 4
    texts = []
    for length in lengths:
        texts.append(raw[place : place + length])
        place += length
    return texts


# -- the index


def _entries(index: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a table as LevelDB has it."""
    place = len(index) - _FOOTER_BYTES
    for _ in range(2):  # where the block of other data is, and its size
        _, place = _varint(index, place)
    for _, handle in _block(index, *_handle(index, place)):
        yield from _block(index, *_handle(handle, 0))


def _handle(data: bytes, place: int) -> tuple[int, int]:
    offset, place = _varint(data, place)
    size, _ = _varint(data, place)
    return offset, size


def _block(index: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a block, in which a key has only what differs from the one before."""
    if index[offset + size] != 0:
        raise ValueError("the index is compressed")
    block = index[offset : offset + size]
    num_restarts = struct.unpack("<I", block[-4:])[0]
    end = len(block) - 4 * (1 + num_restarts)
    place = 0
    key = b""
    while place < end:
        num_shared, place = _varint(block, place)
        num_own, place = _varint(block, place)
        num_value, place = _varint(block, place)
        key = key[:num_shared] + block[place : place + num_own]
        place += num_own
        yield key, block[place : place + num_value]
        place += num_value


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """A number, and the place behind it."""
    value = 0
    for shift in itertools.count(0, 7):
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise AssertionError


def _fields(message: bytes) -> dict[int, list[Any]]:
    """The values of the fields of a protocol buffer by number."""
    fields: dict[int, list[Any]] = {}
    place = 0
    value: Any
    while place < len(message):
        tag, place = _varint(message, place)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, place = _varint(message, place)
        elif kind == _BYTES:
            size, place = _varint(message, place)
            value = message[place : place + size]
            place += size
        else:
            size = {_FIXED64: 8, _FIXED32: 4}[kind]
            value = message[place : place + size]
            place += size
        fields.setdefault(number, []).append(value)
    return fields


def _one(fields: dict[int, list[Any]], number: int) -> int:
    """The value of a field of numbers, which is not written if it is 0."""
    return fields.get(number, [0])[0]


def _place(fields: dict[int, list[Any]]) -> tuple[int, int, int]:
    """The file, the offset and the size of a value."""
    return _one(fields, 3), _one(fields, 4), _one(fields, 5)


def _shape(fields: dict[int, list[Any]]) -> tuple[int, ...]:
    shape = _fields(fields.get(2, [b""])[0])
    return tuple(_one(_fields(axis), 1) for axis in shape.get(2, []))


def _slice_of(key: bytes) -> tuple[str, list[tuple[int, int]]]:
    """Reads the key of a slice: the key of its value, and along each axis its start and its length.

    A length of -1 is the whole axis. `EncodeTensorNameSlice` writes a zero, the key of the value with its end, the
    number of axes, and start and length along each axis (tensorflow/core/util/saved_tensor_slice_util.cc).
    """
    name, _, rest = key[1:].partition(b"\0\1")
    place = 1 + rest[0]
    numbers = []
    while place < len(rest):
        number, place = _signed(rest, place)
        numbers.append(number)
    return name.decode(), list(zip(numbers[::2], numbers[1::2]))


def _signed(data: bytes, place: int) -> tuple[int, int]:
    """Reads a number, and returns it with the place behind it.

    The code is TensorFlow's `OrderedCode`. The first byte begins with as many ones as the number has bytes.
    """
    first = data[place]
    if first == 0x7F:
        return -1, place + 1
    size = 8 - (~first & 0xFF).bit_length()
    if not 0 < size < 8:
        raise ValueError(f"a slice begins or ends at a number that begins with the byte {first:#x}")
    value = int.from_bytes(data[place : place + size], "big")
    return value & ((1 << (7 * size - 1)) - 1), place + size
