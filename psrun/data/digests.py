"""What the bytes of files are: results that were stored for a file serve again only for the same bytes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyarrow import fs

from psrun.data import files
from psrun.files import write_atomic

_CHUNK_BYTES = 1 << 20
_TOLD_BYTES = 1 << 26
_SETTLED_S = 5.0  # file systems have times of up to 2 s: what changes within one leaves no trace in them
_VERSIONS = ("etag", "versionid", "generation")  # by which stores name the content of an object

_known: dict[tuple[Any, ...], str] = {}  # of this process, by stamp


def compute(
    names: Sequence[str], folder: Path, tell: Callable[[str], None] = lambda text: None
) -> list[tuple[str, str]]:
    """The canonical name of each file, and a digest: the SHA-256 of its bytes, or the version that a store gives them.

    A file is read, unless it is known: a local one with the inode, the size and the times of modification and of change
    that `folder` has a digest for. Users can set the time of modification, but not that of change (ctime).

    Args:
      folder: keeps the digests of local files; it need not be writable.
      tell: called repeatedly with the progress.

    Raises:
      DataError: a file cannot be read.
    """
    return [(files.path(name), _of_file(name, folder, tell)) for name in names]


def known(name: str, folder: Path) -> str | None:
    """The digest of a file if it need not be read for that, as of `compute`; else None. Raises DataError."""
    with files.data_errors(name):
        at, inside = files.system(name)
        is_local = isinstance(at, fs.LocalFileSystem)
        if not is_local and (version := _version(at, inside)):
            return version
        stamp = files.stamp(name)
        return _known.get(tuple(stamp)) or (_recorded(_record(folder, stamp), stamp) if is_local else None)


def _of_file(name: str, folder: Path, tell: Callable[[str], None]) -> str:
    digest = known(name, folder)
    if digest is not None:
        return digest
    with files.data_errors(name):
        stamp = files.stamp(name)
        began_s = time.time()
        digest = _sha256(name, stamp[1], tell)
        if files.stamp(name) != stamp or began_s - stamp[-1] / 1e9 < _SETTLED_S:  # it may have changed meanwhile
            return digest
        if isinstance(files.system(name)[0], fs.LocalFileSystem):
            record = _record(folder, stamp)
            with contextlib.suppress(OSError):
                record.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(record, json.dumps({"stamp": stamp, "sha256": digest}) + "\n")
        _known[tuple(stamp)] = digest
        return digest


def _record(folder: Path, stamp: list[Any]) -> Path:
    """The file that keeps the digest of a local file."""
    return folder / "digests" / f"{hashlib.sha256(stamp[0].encode()).hexdigest()[:32]}.json"


def _version(at: fs.FileSystem, inside: str) -> str | None:
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
    return None if is_weak or not versions else json.dumps(versions)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")


def _sha256(name: str, num_bytes: int, tell: Callable[[str], None]) -> str:
    at, inside = files.system(name)
    digest = hashlib.sha256()
    num_read = 0
    with at.open_input_stream(inside, compression=None) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
            num_read += len(chunk)
            if num_read % _TOLD_BYTES == 0:
                tell(f"comparing {name} with earlier runs: {num_read / 1e9:.1f} of {num_bytes / 1e9:.1f} GB")
    return digest.hexdigest()


def _recorded(record: Path, stamp: list[Any]) -> str | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        known = json.loads(record.read_text(encoding="utf-8"))
        if known["stamp"] == stamp:
            return str(known["sha256"])
    return None
