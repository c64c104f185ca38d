"""Files by name or pattern, on any file system that TensorFlow knows, and the lines of text files."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO, TypeVar, cast

import tensorflow as tf

from psrun.errors import DataError

T = TypeVar("T")
R = TypeVar("R")
_CHUNK = 1 << 22
RECORD_BYTES = 16  # of a TFRecord beside its content: length and checksums
SHARD = re.compile(r"-\d+-of-\d+$")  # as some name the parts of a file: after its ending


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


def path(name: str) -> str:
    """The same for each way to name a file."""
    return name if "://" in name else os.path.realpath(name)


@contextlib.contextmanager
def told(name: str, problem: str = "cannot be read to its end", *others: type[Exception]) -> Iterator[None]:
    """Raises what goes wrong with a file, and errors of `others`, as a DataError that names it."""
    try:
        yield
    except (tf.errors.OpError, EOFError, OSError, zlib.error, *others) as error:
        said = error.message if isinstance(error, tf.errors.OpError) else error
        raise DataError(f"{name} {problem}: {said}") from error


@contextlib.contextmanager
def opened(name: str) -> Iterator[BinaryIO]:
    """A file to read, what is gzipped as it was before.

    TensorFlow would take a gzipped file that is cut short for one that ends there; this does not: reading raises
    tf.errors.OpError, OSError, EOFError or zlib.error where it cannot be read to its end.
    """
    with io.BufferedReader(cast(io.RawIOBase, _Raw(name)), _CHUNK) as raw:
        yield cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if zipped(name) else raw


def zipped(name: str) -> bool:
    return SHARD.sub("", name).endswith((".gz", ".gzip"))


class _Raw(io.RawIOBase):
    """A file of TensorFlow's file systems, as Python's own readers want it."""

    def __init__(self, name: str) -> None:
        self._file = tf.io.gfile.GFile(name, "rb")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        held = self._file.read(len(buffer))
        buffer[: len(held)] = held
        return len(held)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._file.seek(offset, whence)
        return self.tell()

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()
        super().close()


def texts(name: str) -> Iterator[bytes]:
    """The lines of a text file, gzipped or not, many at a time: those of each piece have line feeds between them.

    Raises:
      tf.errors.OpError, OSError, EOFError, zlib.error: it cannot be read to its end.
    """
    with opened(name) as stream:
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
