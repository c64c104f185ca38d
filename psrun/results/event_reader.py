"""The events of a run as they are added to metrics.jsonl."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from psrun.results.events import Event


class EventReader:
    """Reads what is added to a file of events, whole lines only. It may be cut, replaced or removed meanwhile.

    Attributes:
      broken: lines so far that are no event.
      begun_again: how often the file turned out to be shorter, or another one, and was read from its beginning.
    """

    def __init__(self, path: Path, *, after_what_is_there: bool = False) -> None:
        self._path = path
        self._file: tuple[int, int] | None = None
        self._read_bytes = 0
        self.broken = self.begun_again = 0
        if after_what_is_there and path.exists():
            found = path.stat()
            self._file, self._read_bytes = (found.st_dev, found.st_ino), found.st_size

    def read(self) -> list[Event]:
        """The events since the last call; none while there is no file. Raises OSError where it cannot be read."""
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                self._is(file=(found.st_dev, found.st_ino), size=found.st_size)
                file.seek(self._read_bytes)
                lines = file.read()
        except FileNotFoundError:
            self._is(file=None, size=0)
            return []
        whole = lines[: lines.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        found_events = [event_of(line) for line in whole.splitlines()]
        self.broken += found_events.count(None)
        return [event for event in found_events if event]

    def _is(self, *, file: tuple[int, int] | None, size: int) -> None:
        if self._read_bytes and (file != self._file or size < self._read_bytes):
            self._read_bytes = 0
            self.begun_again += 1
        self._file = file


def event_of(line: bytes) -> Event | None:
    """The event that a line of metrics.jsonl holds; None where it holds none."""
    try:
        data: Any = json.loads(line)
        kind, step, wall_s = data.pop("event"), data.pop("step"), data.pop("wall_s")
        return Event(str(kind), None if step is None else int(step), float(wall_s), data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
