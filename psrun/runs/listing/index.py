"""The index of a folder of runs: what is known of the runs that are over, so that thousands are listed in a second.

It is a file beside the runs, ROOT/.psrun-index, and holds nothing that the run folders do not: it may be removed or
damaged at any time. An entry is used while no file of its run has changed. Processes that write it at once replace it
as a whole; what one of them does not know is read again.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psrun
from psrun import files
from psrun.results.found import walk
from psrun.results.journal import METRICS
from psrun.results.run_folder import CONFIG, RESULT
from psrun.results.run_name import FILE as NAME
from psrun.runs.listing import entries
from psrun.runs.listing.entries import Entry, SweepEntry

FILE = ".psrun-index"
_VERSION = 1  # of its content
_LOOKED_AT = ("", RESULT, METRICS, CONFIG, NAME)  # the folder itself changes when a file in it is replaced

Stamp = list[list[int]]


@dataclass
class Listing:
    """The runs and sweeps below a folder at one moment, in the order of their folders.

    Attributes:
      runs: those that belong to no sweep.
    """

    runs: list[Entry]
    sweeps: list[SweepEntry]


def read(root: Path, on_read: Callable[[int], None] = lambda number: None, *, writes: bool = True) -> Listing:
    """What is below `root`, by its index and by what has changed since.

    Args:
      writes: whether to write the index, where that is possible.
      on_read: called for each run folder that is read, with the number of those before.
    """
    known = _loaded(root)
    base = str(root)
    found: dict[str, tuple[Stamp, Entry]] = {}
    jobs: dict[str, list[Entry]] = {}
    sweep = None
    num_read = 0
    holds_many = True
    for path, is_sweep in walk(base, known={os.path.join(base, name) for name in known}):
        if sweep is not None and not path.startswith(sweep + os.sep):
            sweep = None
        holds_many &= path != base
        if is_sweep:
            sweep = path
            jobs[path] = []
            continue
        name = path[len(base) + 1 :]
        stamp = _stamp(path)
        line = known.get(name)
        if line is not None and line.stamp == stamp:
            entry = Entry(path, line.row, line.text, True)
        elif stamp[0]:
            on_read(num_read)
            num_read += 1
            entry = entries.of_run(path)
        else:  # it was removed meanwhile
            continue
        if entry.is_lasting:
            found[name] = (stamp, entry)
        jobs.setdefault(sweep or "", []).append(entry)
    if writes and holds_many and (num_read or found.keys() != known.keys()):
        _save(root, known, found)
    alone = jobs.pop("", [])
    return Listing(alone, [entries.of_sweep(path, inside) for path, inside in jobs.items()])


@dataclass(frozen=True)
class _Line:
    """A run in the index; its `text` is parsed only where a condition needs it."""

    stamp: Stamp
    row: dict[str, Any]
    text: str


def _stamp(path: str) -> Stamp:
    """What changes with the files of a run: times and sizes; empty lists for what does not exist."""
    stamp: Stamp = []
    for name in _LOOKED_AT:
        try:
            stat = os.stat(f"{path}/{name}")
        except OSError:
            stamp.append([])
        else:
            stamp.append([stat.st_mtime_ns, stat.st_size, stat.st_ino])
    return stamp


def _loaded(root: Path) -> dict[str, _Line]:
    """The runs in the index by their folders, relative to the root.

    None if it is missing, damaged, or of another version.
    """
    try:
        head, _, content = (root / FILE).read_bytes().partition(b"\n")
        if json.loads(head) != _head(content):
            return {}
        return dict(_parsed(content))
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _parsed(content: bytes) -> Iterator[tuple[str, _Line]]:
    for line in content.decode().split("\n")[:-1]:
        head, _, text = line.partition("\t")
        name, stamp, row = json.loads(head)
        yield name, _Line(stamp, row, text)


def _head(content: bytes) -> dict[str, Any]:
    return {"version": _VERSION, "psrun": psrun.__version__, "crc32": zlib.crc32(content)}


def _save(root: Path, known: dict[str, _Line], found: dict[str, tuple[Stamp, Entry]]) -> None:
    """Writes the index of the runs that are over. Does nothing where that is not possible."""
    if {name: line.stamp for name, line in known.items()} == {name: stamp for name, (stamp, _) in found.items()}:
        return
    lines = [f"{json.dumps([name, stamp, entry.row])}\t{entry.text}\n" for name, (stamp, entry) in found.items()]
    content = "".join(lines)
    with contextlib.suppress(OSError):
        files.write_atomic(root / FILE, json.dumps(_head(content.encode())) + "\n" + content)
