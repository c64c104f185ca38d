"""Which files a run reads, and what identifies their content: `data.hashes` in run.json."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from psrun.data import digests, files
from psrun.errors import DataError

# SHA-256 takes 0.5 s per GB where the processor has instructions for it, 3 s elsewhere.
_MOST_BYTES = 2**32  # that are read of all files of a run
_END_BYTES = 2**24
_MOST_FILES = 10_000


def files_of(source: object, options: Mapping[str, Any]) -> list[str]:
    """The files that a data source reads.

    They are its attribute `files`. Without one, they are the files and patterns among the options, and the files in the
    folders that options named `path` or ..._path name.
    """
    own = getattr(source, "files", None)
    if own is not None:
        return [str(each) for each in own][:_MOST_FILES]
    found: dict[str, None] = {}
    for key, value in options.items():
        for name in _named(key, value):
            found |= dict.fromkeys(name for name in files.find(name) if Path(name).is_file())
    return list(found)[:_MOST_FILES]


def _named(key: str, value: Any) -> Iterator[str]:
    """The files and patterns of this machine in an option that exist."""
    for text in value if isinstance(value, list) else [value]:
        if not isinstance(text, str) or "://" in text or not {"/", "."} & {*text}:
            continue
        path = Path(text).expanduser()
        is_folder = key == "path" or key.endswith("_path")
        try:
            if path.is_file() or (path.is_dir() and is_folder) or (not path.is_dir() and any(files.find(text))):
                yield text
        except (DataError, OSError, ValueError):
            continue


def compute(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What identifies the content of each file: `sha256` and `bytes`.

    Of large files that no run has read as a whole, `sha256` is that of the first and the last 16 MiB, and `of` says so.
    Of objects in a store with versions, `version` stands instead of `sha256`.

    Raises:
      DataError: a file cannot be read.
    """
    room = _MOST_BYTES
    found = {}
    for name in names:
        num_bytes = files.num_bytes(name)
        digest = digests.known(name, files.cache())
        if digest is None and num_bytes > room:
            found[name] = _of_ends(name)
            continue
        if digest is None:
            room -= num_bytes
            ((_, digest),) = digests.compute([name], files.cache())
        found[name] = _entry(digest, num_bytes)
    return found


def again(recorded: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any] | None]:
    """As `compute` for the recorded files, as they are now and in the recorded way; None for a file that is gone."""
    now: dict[str, dict[str, Any] | None] = {}
    for name, entry in recorded.items():
        try:
            if "of" in entry:
                now[name] = _of_ends(name)
            else:
                ((_, digest),) = digests.compute([name], files.cache())
                now[name] = _entry(digest, files.num_bytes(name))
        except (DataError, OSError):
            now[name] = None
    return now


def _entry(digest: str, num_bytes: int) -> dict[str, Any]:
    is_version = digest.startswith("[")
    return {("version" if is_version else "sha256"): json.loads(digest) if is_version else digest, "bytes": num_bytes}


def _of_ends(name: str) -> dict[str, Any]:
    num_bytes = files.num_bytes(name)
    digest = hashlib.sha256()
    with files.data_errors(name):
        at, inside = files.system(name)
        with at.open_input_file(inside) as file:
            digest.update(file.read(min(_END_BYTES, num_bytes)))
            file.seek(max(0, num_bytes - _END_BYTES))
            digest.update(file.read(_END_BYTES))
    return {"sha256": digest.hexdigest(), "bytes": num_bytes, "of": "first and last 16 MiB"}
