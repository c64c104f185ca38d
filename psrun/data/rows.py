"""Rows of text files: which files there are, and their lines in batches that know where each line stands."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from psrun.errors import DataError

# Lines that are read, dealt out to workers and shuffled together: so many that single ones cost nothing.
BLOCK = 1024
_SHUFFLED_BLOCKS = 32
_FILES_AT_ONCE = 4
_CHUNK = 1 << 20

Rows = Mapping[str, tf.Tensor]  # file (int32, an index), row (int64, from 1 on) and line (string) of each, shape (n,)


def find(pattern: str) -> list[str]:
    """The files that a pattern names, on any file system that TensorFlow knows, in order.

    Args:
      pattern: a file, a folder (all in it but what begins with a dot or a low line) or a pattern with * ? and [].

    Raises:
      DataError: there is none, or one of them is empty.
    """
    pattern = os.path.expanduser(pattern)
    try:
        folder = tf.io.gfile.isdir(pattern)
        found = sorted(tf.io.gfile.glob(f"{pattern.rstrip('/')}/*" if folder else pattern))
        files = [name for name in found if not tf.io.gfile.isdir(name)]
        files = [name for name in files if not (folder and name.rpartition("/")[2].startswith((".", "_")))]
        empty = [name for name in files if tf.io.gfile.stat(name).length == 0]
    except tf.errors.OpError as error:
        raise DataError(f"{pattern} cannot be read: {error.message}") from error
    if not files:
        raise DataError(f"{pattern}: no such file" + (", the folder is empty" if folder else ""))
    if empty:
        raise DataError(f"{empty[0]} is empty")
    return files


def count(files: Sequence[str]) -> int:
    """How many lines there are; reads all files.

    Raises:
      DataError: one of them cannot be read to its end.
    """
    return sum(_count(file) for file in files)


def _count(file: str) -> int:
    """With Python's own means: TensorFlow takes a gzipped file that is cut short for one that ends there."""
    lines, last = 0, b""
    try:
        with tf.io.gfile.GFile(file, "rb") as raw:
            stream: Any = gzip.GzipFile(fileobj=raw) if compression(file) else raw
            while chunk := stream.read(_CHUNK):
                lines, last = lines + chunk.count(b"\n"), chunk[-1:]
    except (tf.errors.OpError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"{file} cannot be read to its end: {error}") from error
    return lines + (last not in (b"", b"\n"))


def in_order(files: Sequence[str], shard: tuple[tf.Tensor, int] | None = None) -> tf.data.Dataset:
    """All rows once, in blocks; of a shard (its index and how many there are) every so many blocks."""
    blocks = tf.data.Dataset.range(len(files)).flat_map(lambda file: _blocks(files, file))
    return blocks if shard is None else blocks.shard(shard[1], shard[0])


def shuffled(
    files: Sequence[str], batch_size: int, seed: tf.Tensor, shard: tuple[tf.Tensor, int] | None = None
) -> tf.data.Dataset:
    """Endless full batches of rows, pass after pass, each in another order: see `one_pass`."""
    passes = tf.data.Dataset.counter().flat_map(lambda number: one_pass(files, seed, number, shard))
    return passes.prefetch(1).rebatch(batch_size, drop_remainder=True)


def one_pass(
    files: Sequence[str], seed: tf.Tensor, number: tf.Tensor, shard: tuple[tf.Tensor, int] | None = None
) -> tf.data.Dataset:
    """Each row once, in blocks: files in a random order, a few at a time, and rows shuffled among some 30,000.

    Args:
      seed, number: of the run and of the pass, int64 scalars; the order follows from them.
      shard: its index and how many there are: of each file every so many rows. Each row is in one of them.
    """
    order = tf.random.experimental.stateless_shuffle(tf.range(len(files)), _key(seed, number))
    blocks = tf.data.Dataset.from_tensor_slices(order).interleave(
        lambda file: _blocks(files, file),
        cycle_length=min(_FILES_AT_ONCE, len(files)),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
    if shard is not None:
        index, count = shard
        # Single rows and not blocks, of which there may be fewer than workers: one without any would wait for ever.
        blocks = blocks.map(
            lambda rows: {
                name: values[(index - rows["row"][0] - tf.cast(rows["file"][0], tf.int64)) % count :: count]
                for name, values in rows.items()
            }
        )

    def mixed(window: tf.Tensor, rows: Rows) -> Rows:
        places = tf.range(tf.size(rows["row"]))
        places = tf.random.experimental.stateless_shuffle(places, _key(seed + window, number))
        return {name: tf.gather(values, places) for name, values in rows.items()}

    return blocks.rebatch(BLOCK * _SHUFFLED_BLOCKS).enumerate().map(mixed)


def _key(seed: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    return tf.stack([seed % 2**31, number % 2**31])


def _blocks(files: Sequence[str], index: tf.Tensor) -> tf.data.Dataset:
    """The rows of one file."""
    names = tf.constant(list(files))
    zipped = tf.constant([compression(file) for file in files])

    def located(number: tf.Tensor, lines: tf.Tensor) -> Rows:
        size = tf.size(lines, tf.int64)
        return {
            "file": tf.repeat(tf.cast(index, tf.int32), size),
            "row": number * BLOCK + tf.range(1, size + 1),
            "line": lines,
        }

    lines = tf.data.TextLineDataset(names[index], compression_type=zipped[index], buffer_size=_CHUNK)
    return lines.batch(BLOCK).enumerate().map(located)


def compression(file: str) -> str:
    """As TensorFlow names it; '' where there is none."""
    return "GZIP" if file.endswith((".gz", ".gzip")) else ""
