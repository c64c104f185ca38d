"""Files by name or pattern, on any file system that TensorFlow knows, and the lines of text files."""

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
RECORD_BYTES = 16  # of a TFRecord beside its content: length and checksums
SHARD = re.compile(r"-\d+-of-\d+$")  # as some name the parts of a file: after its ending


def system(name: str) -> FileSystem:
    """The file system of a file: this machine's, which takes no TensorFlow, or one that TensorFlow knows."""
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
        found = sorted(at.glob(f"{pattern.rstrip('/')}/*" if folder else pattern))
        files = [name for name in found if not at.is_folder(name)]
        files = [name for name in files if not (folder and name.rpartition("/")[2].startswith((".", "_")))]
        empty = [name for name in files if at.num_bytes(name) == 0]
    if not files:
        raise DataError(f"{pattern}: no such file" + (", the folder is empty" if folder else ""))
    if empty:
        raise DataError(f"{empty[0]} is empty; remove it or replace it")
    return files


def cache() -> Path:
    """The folder for what can be made again, of all runs of a person."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "psrun" / "data"


def stamp(name: str) -> list[Any]:
    """Another one once the file changes. Raises DataError."""
    with data_errors(name):
        at = system(name)
        return [path(name), at.num_bytes(name), at.modified_ns(name)]


def path(name: str) -> str:
    """The same for each way to name a file."""
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
    """A file to read, what is gzipped as it was before.

    TensorFlow would take a gzipped file that is cut short for one that ends there; this does not: reading raises
    OSError, EOFError or zlib.error where it cannot be read to its end.
    """
    with io.BufferedReader(system(name).open(name), _CHUNK) as raw:
        stream: Any = gzip.GzipFile(fileobj=raw) if zipped(name) else raw
        yield stream


def zipped(name: str) -> bool:
    return SHARD.sub("", name).endswith((".gz", ".gzip"))


def texts(name: str) -> Iterator[bytes]:
    """The lines of a text file, gzipped or not, many at a time: those of each piece have line feeds between them.

    Raises:
      OSError, EOFError, zlib.error: it cannot be read to its end.
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
