"""Files by name or pattern, on any file system that TensorFlow supports, and the lines of text files."""

from __future__ import annotations

import contextlib
import gzip
import importlib
import io
import os
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from psrun.data.file_system import LOCAL, FileSystem
from psrun.errors import DataError

T = TypeVar("T")
R = TypeVar("R")
_CHUNK = 1 << 22
RECORD_BYTES = 16  # of a TFRecord without its content: length and checksums
SHARD = re.compile(r"-\d+-of-\d+$")  # numbered parts of a file: after the extension


def system(name: str) -> FileSystem:
    """The file system of a file: that of this machine, which needs no TensorFlow, or one of TensorFlow's."""
    if "://" not in name:
        return LOCAL
    remote: FileSystem = importlib.import_module("psrun.data.remote").TENSORFLOW
    return remote


def find(pattern: str) -> list[str]:
    """The files that match a pattern, sorted.

    Args:
      pattern: a file, a folder (all its files except those that begin with . or _) or a pattern with * ? and [].

    Raises:
      DataError: no file matches, or a file is empty.
    """
    pattern = os.path.expanduser(pattern)
    with data_errors(pattern, "cannot be read"):
        at = system(pattern)
        folder = at.is_folder(pattern)
        matches = sorted(at.glob(f"{pattern.rstrip('/')}/*" if folder else pattern))
        files = [name for name in matches if not at.is_folder(name)]
        files = [name for name in files if not (folder and name.rpartition("/")[2].startswith((".", "_")))]
        empty = [name for name in files if at.num_bytes(name) == 0]
    if not files:
        raise DataError(f"{pattern}: no such file" + (", the folder is empty" if folder else ""))
    if empty:
        raise DataError(f"{empty[0]} is empty; remove it or replace it")
    return files


def cache() -> Path:
    """The user's cache folder, for all runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "psrun" / "data"


def stamp(name: str) -> list[Any]:
    """Identifies the content of a file: changes with the file. Raises DataError."""
    with data_errors(name):
        at = system(name)
        return [path(name), at.num_bytes(name), at.modified_ns(name)]


def path(name: str) -> str:
    """The canonical name of a file."""
    return name if "://" in name else os.path.realpath(name)


@contextlib.contextmanager
def data_errors(name: str, problem: str = "cannot be read to its end", *others: type[Exception]) -> Iterator[None]:
    """Converts errors of reading a file, and those of the types `others`, to a DataError that names it."""
    kinds: tuple[type[Exception], ...] = (EOFError, OSError, zlib.error, *others)
    try:
        yield
    except kinds as error:
        raise DataError(f"{name} {problem}: {getattr(error, 'strerror', None) or error}") from error


@contextlib.contextmanager
def opened(name: str) -> Iterator[BinaryIO]:
    """Opens a file for reading, and decompresses gzipped files.

    TensorFlow reads a truncated gzipped file without an error; here reading raises OSError, EOFError or zlib.error if
    it does not reach the end.
    """
    with io.BufferedReader(system(name).open(name), _CHUNK) as raw:
        stream: Any = gzip.GzipFile(fileobj=raw) if zipped(name) else raw
        yield stream


def zipped(name: str) -> bool:
    return SHARD.sub("", name).endswith((".gz", ".gzip"))


def texts(name: str) -> Iterator[bytes]:
    """The lines of a text file, gzipped or not, in pieces of many lines, separated by line feeds.

    Raises:
      OSError, EOFError, zlib.error: the file cannot be read to its end.
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
    """`function` of each item, in order, several in parallel: for functions that release Python's GIL."""
    most = os.cpu_count() or 1
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(most, thread_name_prefix="psrun-data") as pool:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > most:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
