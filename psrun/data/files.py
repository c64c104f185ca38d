"""Files by name or pattern, on this machine and on object stores, through pyarrow's file systems."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from psrun.config.schema import file_meant
from psrun.errors import DataError

SHARD = re.compile(r"-\d+-of-\d+$")  # numbered parts of a file: after the extension
_PARTITION = re.compile(r"[A-Za-z_][^=/]*=[^/]*")  # a folder of a dataset that is partitioned by values
_MISSING_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_LOCAL = fs.LocalFileSystem()


def system(name: str) -> tuple[fs.FileSystem, str]:
    """The file system of a file, and the path of the file in it: pyarrow's own, or else one of fsspec.

    Raises:
      OSError: there is none for the scheme of the name.
    """
    if "://" not in name:
        return _LOCAL, os.path.abspath(name)
    with contextlib.suppress(pa.ArrowInvalid):  # a scheme that pyarrow does not know
        return fs.FileSystem.from_uri(name)
    try:
        from fsspec.core import url_to_fs  # an optional package, for all other stores

        found, path = url_to_fs(name)
    except (ImportError, ValueError) as error:
        scheme = name.partition("://")[0]
        message = f"{scheme}:// is unknown to pyarrow and to fsspec (pip install fsspec and the package of the store)"
        raise OSError(message) from error
    return fs.PyFileSystem(fs.FSSpecHandler(found)), path


def find(pattern: str) -> list[str]:
    """The files that match a pattern, sorted.

    Args:
      pattern: a file, a folder (all its files and those of folders such as year=2026, except those that begin with .
        or _) or a pattern with * ? and [].

    Raises:
      DataError: no file matches, or a file is empty.
    """
    pattern = os.path.expanduser(pattern)
    with data_errors(pattern, "cannot be read"):
        at, path = system(pattern)
        prefix = pattern[: len(pattern) - len(path)] if pattern.endswith(path) else ""
        kind = at.get_file_info(path).type
        if kind == fs.FileType.File:
            names = [pattern]
        else:
            found = _in_folder(at, path) if kind == fs.FileType.Directory else _matching(at, path)
            local = isinstance(at, fs.LocalFileSystem) and not os.path.isabs(pattern)
            names = sorted(os.path.relpath(each) if local else f"{prefix}{each}" for each in found)
        empty = [name for name in names if num_bytes(name) == 0]
    if not names:
        is_folder = kind == fs.FileType.Directory
        if is_folder:
            raise DataError(f"{pattern}: no such file, the folder is empty")
        raise DataError(f"{pattern}: no such file.{file_meant(pattern)}".removesuffix("."))
    if empty:
        raise DataError(f"{empty[0]} is empty; remove it or replace it")
    return names


def _in_folder(at: fs.FileSystem, folder: str) -> list[str]:
    paths: list[str] = []
    for info in at.get_file_info(fs.FileSelector(folder)):
        if info.base_name.startswith((".", "_")):
            continue
        if info.type == fs.FileType.Directory and _PARTITION.fullmatch(info.base_name):
            paths += _in_folder(at, info.path)
        elif info.type == fs.FileType.File:
            paths.append(info.path)
    return paths


def _matching(at: fs.FileSystem, pattern: str) -> list[str]:
    """The files whose paths match; a wildcard does not match across folders."""
    fixed = re.split(r"[*?\[]", pattern, maxsplit=1)[0].rpartition("/")[0]
    depth = pattern.count("/")
    selector = fs.FileSelector(fixed, allow_not_found=True, recursive=pattern.count("/") > fixed.count("/") + 1)
    infos = at.get_file_info(selector)
    files = [info.path for info in infos if info.type == fs.FileType.File and info.path.count("/") == depth]
    pieces = pattern.split("/")
    return [path for path in files if all(map(_matches, path.split("/"), pieces))]


def _matches(name: str, pattern: str) -> bool:
    hidden = name.startswith(".") and not pattern.startswith(".")
    return fnmatch.fnmatchcase(name, pattern) and not hidden


def partition(name: str, folders: Sequence[str]) -> dict[str, str | None]:
    """The columns that the folders of a partitioned dataset add to a file: year=2026/month=11/part-0.parquet.

    Args:
      folders: of datasets; folders above these are not columns.
    """
    for folder in folders:
        above = f"{folder.rstrip('/') if '://' in folder else os.path.normpath(os.path.expanduser(folder))}/"
        if name.startswith(above):
            inside = name[len(above) :].split("/")[:-1]
            pairs = (each.partition("=") for each in inside if _PARTITION.fullmatch(each))
            values = {key: urllib.parse.unquote(value) for key, _, value in pairs}
            return {key: None if value == _MISSING_PARTITION else value for key, value in values.items()}
    return {}


def cache() -> Path:
    """The user's cache folder, for all runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "psrun" / "data"


def stamp(name: str) -> list[Any]:
    """The canonical name of a file, its size, and more that changes with the file; last, the time of that in ns.

    Of a local file, inode and times are there; of others, only the time of modification. Raises DataError.
    """
    with data_errors(name):
        at, inside = system(name)
        if isinstance(at, fs.LocalFileSystem):
            stat = os.stat(inside)
            return [path(name), stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns]
        info = at.get_file_info(inside)
        return [path(name), info.size, info.mtime_ns or time.time_ns()]


def num_bytes(name: str) -> int:
    at, inside = system(name)
    return at.get_file_info(inside).size


def path(name: str) -> str:
    """The canonical name of a file."""
    return name if "://" in name else os.path.realpath(name)


@contextlib.contextmanager
def data_errors(name: str, problem: str = "cannot be read to its end", *others: type[Exception]) -> Iterator[None]:
    """Converts errors of reading a file, and those of the types `others`, to a DataError that names it."""
    kinds: tuple[type[Exception], ...] = (EOFError, OSError, pa.ArrowException, *others)
    try:
        yield
    except kinds as error:
        raise DataError(f"{name} {problem}: {getattr(error, 'strerror', None) or error}") from error


def opened(name: str) -> pa.NativeFile:
    """Opens a file for reading from its start to its end, and decompresses gzipped files.

    Reading a gzipped file that is cut short raises OSError.
    """
    at, inside = system(name)
    return at.open_input_stream(inside, compression="gzip" if zipped(name) else None)


def opened_anywhere(name: str) -> pa.NativeFile:
    """Opens a file for reading at any position; gzipped files are decompressed in memory."""
    if zipped(name):
        with opened(name) as stream:
            return pa.BufferReader(stream.read())
    at, inside = system(name)
    return at.open_input_file(inside)


def zipped(name: str) -> bool:
    return SHARD.sub("", name).endswith((".gz", ".gzip"))
