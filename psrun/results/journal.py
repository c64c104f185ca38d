"""metrics.jsonl: the events of a run, one per line."""

from __future__ import annotations

import contextlib
import json
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from psrun.errors import RunFolderError
from psrun.results.events import Event, Progress

METRICS = "metrics.jsonl"


class Journal:
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
        """Adds a line. Raises RunFolderError."""
        line = {"event": event.kind, "step": event.step, "wall_s": event.wall_s, **event.data}
        # One unbuffered write per line: the chief and its supervisor append to the same file.
        with self._lock, writing_to(self.path), self.metrics.open("ab", buffering=0) as file:
            file.write((json.dumps(plain(line), allow_nan=False) + "\n").encode())

    def progress(self, progress: Progress) -> None:
        """Does nothing: progress is not recorded."""

    def close(self) -> None:
        """Does nothing: everything is on disk already."""

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


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: NaN and infinities become None, paths text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
