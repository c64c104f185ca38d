"""Reads the events of a run as they are added to metrics.jsonl."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from psrun.results.events import Event
from psrun.results.reading import parsed


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
        self.broken = self.begun_again = 0
        self.unfinished = False
        if after_what_is_there and path.exists():
            stat = path.stat()
            self._file, self._read_bytes = (stat.st_dev, stat.st_ino), stat.st_size

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

    def read_if_possible(self) -> list[Event]:
        """As `read`, but no events if the file cannot be read."""
        try:
            return self.read()
        except OSError:
            return []

    def _is(self, *, file: tuple[int, int] | None, size: int) -> None:
        if self._read_bytes and (file != self._file or size < self._read_bytes):
            self._read_bytes = 0
            self.begun_again += 1
        self._file = file


def event_of(line: bytes) -> Event | None:
    """The event that a line of metrics.jsonl holds; None if it holds none."""
    try:
        data: Any = parsed(line)
        kind, step, wall_s = data.pop("event"), data.pop("step"), data.pop("wall_s")
        return Event(str(kind), None if step is None else int(step), float(wall_s), data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return None
