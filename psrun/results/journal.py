"""metrics.jsonl: the events of a run, one per line; its writers and its reader."""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from psrun.errors import RunFolderError
from psrun.results.events import Event, Sink
from psrun.results.reading import parsed
from psrun.results.summary import CHANGES, IN_RUN_JSON

METRICS = "metrics.jsonl"


class Journal(Sink):
    """Adds events to metrics.jsonl only: for tasks other than the one that writes run.json.

    Numbers that JSON does not know (NaN, infinities) are written as null.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    @property
    def metrics(self) -> Path:
        return self.path / METRICS

    def event(self, event: Event) -> None:
        """Adds a line. If events of its kind change run.json, the line says that this one does not.

        Raises:
          RunFolderError: it cannot be written.
        """
        if event.kind in CHANGES:
            event = replace(event, data={**event.data, IN_RUN_JSON: False})
        with self._lock, writing_to(self.path):
            self._append(event)

    def _append(self, event: Event) -> None:
        """Adds a line. Raises OSError."""
        values = {"event": event.kind, "step": event.step, "wall_s": event.wall_s, **event.data}
        line = (json.dumps(plain(values), allow_nan=False) + "\n").encode()
        with self.metrics.open("ab", buffering=0) as file:
            if _is_torn(self.metrics):
                line = b"\n" + line
            # One unbuffered write per line: the chief and its supervisor append to the same file.
            while line:
                line = line[file.write(line) :]  # a full disk may take a part of it

    def elapsed_s(self) -> float:
        """The time of the last event so far, in seconds since the run began; 0 without one."""
        try:
            lines = self.metrics.read_bytes().splitlines()
            return float(json.loads(lines[-1])["wall_s"])
        except (OSError, IndexError, ValueError, KeyError):
            return 0.0


@contextlib.contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Turns an OSError in the context into a RunFolderError."""
    try:
        yield
    except RunFolderError:
        raise
    except OSError as error:
        raise RunFolderError(folder, error) from error


def _is_torn(path: Path) -> bool:
    """Whether the file ends within a line, as a process leaves it that was killed or had no disk space."""
    if not path.is_file() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: NaN and infinities become None, paths text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


class EventReader:
    """Reads the complete lines that were added to a file of events. The file may be cut, replaced or removed meanwhile.

    Attributes:
      broken: lines so far that are not events.
      unfinished: whether the file does not end with a complete line.
      begun_again: how often the file was shorter than before, or another one, and was read from its beginning.
    """

    def __init__(self, path: Path, *, after_what_is_there: bool = False) -> None:
        self._path = path
        self._file: tuple[int, int] | None = None
        self._read_bytes = 0
        self.broken = 0
        self.begun_again = 0
        self.unfinished = False
        if after_what_is_there and path.exists():
            stat = path.stat()
            self._file = (stat.st_dev, stat.st_ino)
            self._read_bytes = stat.st_size

    def read(self) -> list[Event]:
        """The events since the last call; none if there is no file. Raises OSError if it cannot be read."""
        try:
            with self._path.open("rb") as file:
                stat = os.fstat(file.fileno())
                self._is(file=(stat.st_dev, stat.st_ino), size=stat.st_size)
                file.seek(self._read_bytes)
                lines = file.read()
        except FileNotFoundError:
            self._is(file=None, size=0)
            return []
        whole = lines[: lines.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        self.unfinished = len(whole) < len(lines)
        events = [event_of(line) for line in whole.splitlines()]
        self.broken += events.count(None)
        return [event for event in events if event]

    def _is(self, *, file: tuple[int, int] | None, size: int) -> None:
        if self._read_bytes and (file != self._file or size < self._read_bytes):
            self._read_bytes = 0
            self.begun_again += 1
        self._file = file


def event_of(line: bytes) -> Event | None:
    """The event that a line of metrics.jsonl holds; None if it holds none."""
    try:
        data: Any = parsed(line)
        kind = str(data.pop("event"))
        step = data.pop("step")
        return Event(kind, None if step is None else int(step), float(data.pop("wall_s")), data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return None
