"""Files by name or pattern, on this machine and on object stores, and digests of their bytes.

They are read through pyarrow's file systems. Results that were stored for a file serve again only for the same bytes.
`data.hashes` in run.json says which files a run reads, and what identifies their content.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import json
import os
import re
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pyarrow import fs

from psrun.config.schema import file_meant
from psrun.errors import DataError
from psrun.files import user_cache, write_atomic

SHARD = re.compile(r"-\d+-of-\d+$")  # numbered parts of a file: after the extension
_PARTITION = re.compile(r"[A-Za-z_][^=/]*=[^/]*")  # a folder of a dataset that is partitioned by values
_MISSING_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_LOCAL = fs.LocalFileSystem()
_CHUNK_BYTES = 1 << 20
_TOLD_BYTES = 1 << 26
_SETTLED_S = 5.0  # file systems have times of up to 2 s: what changes within one leaves no trace in them
_VERSIONS = ("etag", "versionid", "generation")  # by which stores name the content of an object
# SHA-256 takes 0.5 s per GB where the processor has instructions for it, 3 s elsewhere.
_MOST_BYTES = 2**32  # that are read of all files of a run
_END_BYTES = 2**24
_MOST_FILES = 10_000


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
      pattern: a file, a folder (all its files, also in folders such as year=2026, except those that begin with .
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
        empty = [name for name in names if num_bytes_of(name) == 0]
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
    """The folder for what is known of data, for all runs of the user."""
    return user_cache() / "data"


def stamp_of(name: str) -> list[Any]:
    """The canonical name of a file, its size, and more that changes with the file; last, the time of that in ns.

    Of a local file, inode and times are there; of others, only the time of modification. Raises DataError.
    """
    with data_errors(name):
        at, inside = system(name)
        if isinstance(at, fs.LocalFileSystem):
            stat = os.stat(inside)
            return [canonical_name(name), stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns]
        info = at.get_file_info(inside)
        return [canonical_name(name), info.size, info.mtime_ns or time.time_ns()]


def num_bytes_of(name: str) -> int:
    at, inside = system(name)
    return at.get_file_info(inside).size


def canonical_name(name: str) -> str:
    """The canonical name of a file."""
    return name if "://" in name else os.path.realpath(name)


@contextlib.contextmanager
def data_errors(name: str, problem: str = "cannot be read to its end", *others: type[Exception]) -> Iterator[None]:
    """Converts errors of reading a file, and errors of the types `others`, to a DataError that names it."""
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


@dataclass(frozen=True)
class Digest:
    """What identifies the content of a file.

    Attributes:
      kind: what `value` is: the SHA-256 of all bytes; the SHA-256 of the first and the last 16 MiB; or the version that
        a store gives the object, as JSON.
    """

    kind: Literal["sha256", "sha256 of ends", "version"]
    value: str

    def entry(self, num_bytes: int) -> dict[str, Any]:
        """The entry of the file in `data.hashes` of run.json."""
        if self.kind == "version":
            return {"version": json.loads(self.value), "bytes": num_bytes}
        if self.kind == "sha256":
            return {"sha256": self.value, "bytes": num_bytes}
        return {"sha256": self.value, "bytes": num_bytes, "of": "first and last 16 MiB"}


_known: dict[tuple[Any, ...], Digest] = {}  # of this process, by stamp


def digests(
    names: Sequence[str], folder: Path, tell: Callable[[str], None] = lambda text: None
) -> list[tuple[str, str]]:
    """The canonical name of each file, and a digest: the SHA-256 of its bytes, or the version that a store gives them.

    A file is read, unless it is known: a local one with the inode, the size and the times of modification and of change
    that `folder` has a digest for. Users can set the time of modification, but not the time of change (ctime).

    Args:
      folder: keeps the digests of local files; it need not be writable.
      tell: called repeatedly with the progress.

    Raises:
      DataError: a file cannot be read.
    """
    return [(canonical_name(name), _digest_of(name, folder, tell).value) for name in names]


def _digest_of(name: str, folder: Path, tell: Callable[[str], None] = lambda text: None) -> Digest:
    digest = _known_digest(name, folder)
    if digest is not None:
        return digest
    with data_errors(name):
        stamp = stamp_of(name)
        began_s = time.time()
        digest = _sha256(name, stamp[1], tell)
        if stamp_of(name) != stamp or began_s - stamp[-1] / 1e9 < _SETTLED_S:  # it may have changed meanwhile
            return digest
        if isinstance(system(name)[0], fs.LocalFileSystem):
            record = _record(folder, stamp)
            with contextlib.suppress(OSError):
                record.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(record, json.dumps({"stamp": stamp, "sha256": digest.value}) + "\n")
        _known[tuple(stamp)] = digest
        return digest


def _known_digest(name: str, folder: Path) -> Digest | None:
    """The digest of a file if `digests` need not read it; else None. Raises DataError."""
    with data_errors(name):
        at, inside = system(name)
        is_local = isinstance(at, fs.LocalFileSystem)
        if not is_local and (version := _version(at, inside)):
            return version
        stamp = stamp_of(name)
        known = _known.get(tuple(stamp))
        if known is not None or not is_local:
            return known
        return _recorded(_record(folder, stamp), stamp)


def _record(folder: Path, stamp: list[Any]) -> Path:
    """The file that keeps the digest of a local file."""
    return folder / "digests" / f"{hashlib.sha256(stamp[0].encode()).hexdigest()[:32]}.json"


def _version(at: fs.FileSystem, inside: str) -> Digest | None:
    """The version of an object; None if the store has none, or one that does not name the bytes."""
    if isinstance(at, fs.PyFileSystem) and isinstance(at.handler, fs.FSSpecHandler):
        at.handler.fs.invalidate_cache(inside)
        facts: Mapping[Any, Any] = at.handler.fs.info(inside)
    else:
        with at.open_input_file(inside) as stream:
            facts = stream.metadata() or {}
    by_name = {_text(key).lower().replace("-", "").replace("_", ""): _text(value) for key, value in facts.items()}
    versions = [by_name[name] for name in _VERSIONS if by_name.get(name)]
    is_weak = any(each.startswith("W/") for each in versions)
    return None if is_weak or not versions else Digest("version", json.dumps(versions))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")


def _sha256(name: str, num_bytes: int, tell: Callable[[str], None]) -> Digest:
    at, inside = system(name)
    digest = hashlib.sha256()
    num_read = 0
    with at.open_input_stream(inside, compression=None) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
            num_read += len(chunk)
            if num_read % _TOLD_BYTES == 0:
                tell(f"comparing {name} with earlier runs: {num_read / 1e9:.1f} of {num_bytes / 1e9:.1f} GB")
    return Digest("sha256", digest.hexdigest())


def _recorded(record: Path, stamp: list[Any]) -> Digest | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        known = json.loads(record.read_text(encoding="utf-8"))
        if known["stamp"] == stamp:
            return Digest("sha256", str(known["sha256"]))
    return None


def files_of_source(source: object, options: Mapping[str, Any]) -> list[str]:
    """The files that a data source reads.

    They are its attribute `files`. Without one, they are the files and patterns among the options, and the files in the
    folders that options named `path` or ..._path name.
    """
    own = getattr(source, "files", None)
    if own is not None:
        return [str(each) for each in own][:_MOST_FILES]
    found: dict[str, None] = {}
    for key, value in options.items():
        for name in _files_named(key, value):
            found |= dict.fromkeys(name for name in find(name) if Path(name).is_file())
    return list(found)[:_MOST_FILES]


def _files_named(key: str, value: Any) -> Iterator[str]:
    """The files and patterns of this machine in an option that exist."""
    for text in value if isinstance(value, list) else [value]:
        if not isinstance(text, str) or "://" in text or not {"/", "."} & {*text}:
            continue
        path = Path(text).expanduser()
        is_folder = key == "path" or key.endswith("_path")
        try:
            if path.is_file() or (path.is_dir() and is_folder) or (not path.is_dir() and any(find(text))):
                yield text
        except (DataError, OSError, ValueError):
            continue


def content_hashes(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What identifies the content of each file: `sha256` and `bytes`.

    Of large files that no run has read as a whole, `sha256` is the digest of the first and the last 16 MiB, and `of`
    says so. Of objects in a store with versions, `version` stands instead of `sha256`.

    Raises:
      DataError: a file cannot be read.
    """
    room = _MOST_BYTES
    found = {}
    for name in names:
        num_bytes = num_bytes_of(name)
        digest = _known_digest(name, cache())
        if digest is None and num_bytes > room:
            digest = _sha256_of_ends(name, num_bytes)
        elif digest is None:
            room -= num_bytes
            digest = _digest_of(name, cache())
        found[name] = digest.entry(num_bytes)
    return found


def content_hashes_again(recorded: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any] | None]:
    """As `content_hashes` of the recorded files, as they are now and in the recorded way; None: the file is gone."""
    now: dict[str, dict[str, Any] | None] = {}
    for name, entry in recorded.items():
        try:
            num_bytes = num_bytes_of(name)
            digest = _sha256_of_ends(name, num_bytes) if "of" in entry else _digest_of(name, cache())
            now[name] = digest.entry(num_bytes)
        except (DataError, OSError):
            now[name] = None
    return now


def _sha256_of_ends(name: str, num_bytes: int) -> Digest:
    digest = hashlib.sha256()
    with data_errors(name):
        at, inside = system(name)
        with at.open_input_file(inside) as file:
            digest.update(file.read(min(_END_BYTES, num_bytes)))
            file.seek(max(0, num_bytes - _END_BYTES))
            digest.update(file.read(_END_BYTES))
    return Digest("sha256 of ends", digest.hexdigest())
