"""Files by name or pattern, on any file system that TensorFlow knows, and the lines of text files."""

from __future__ import annotations

import gzip
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import tensorflow as tf

from psrun.errors import DataError

T = TypeVar("T")
R = TypeVar("R")
_CHUNK = 1 << 22


def find(pattern: str) -> list[str]:
    """The files that a pattern names, in order.

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


def texts(name: str) -> Iterator[bytes]:
    """The lines of a text file, gzipped or not, many at a time: those of each piece have line feeds between them.

    TensorFlow would take a gzipped file that is cut short for one that ends there; this does not.

    Raises:
      tf.errors.OpError, OSError, EOFError, zlib.error: it cannot be read to its end.
    """
    with tf.io.gfile.GFile(name, "rb") as raw:
        stream: Any = gzip.GzipFile(fileobj=raw) if name.endswith((".gz", ".gzip")) else raw
        begun = b""
        while chunk := stream.read(_CHUNK):
            whole, ended, rest = chunk.rpartition(b"\n")
            if not ended:
                begun += chunk
                continue
            yield (begun + whole).replace(b"\r\n", b"\n").removesuffix(b"\r")
            begun = rest
        if begun:
            yield begun.removesuffix(b"\r")


def in_threads(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """`function` of each item, in order, several at a time: for functions that let go of Python's lock."""
    most = os.cpu_count() or 1
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(most, thread_name_prefix="psrun-data") as pool:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > most:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
