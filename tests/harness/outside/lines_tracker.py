"""A tracker of another project: its options, and what it does."""

from __future__ import annotations

from dataclasses import dataclass

from psrun.config.choices import TrackerChoice
from psrun.results.events import Event, Sink
from psrun.results.tracking import TrackedRun


@dataclass(frozen=True)
class Lines(TrackerChoice):
    implementation = "lines_tracker:LinesSink"
    kind = "lines"
    file: str


class LinesSink(Sink):
    def __init__(self, chosen: Lines, run: TrackedRun) -> None:
        self._path = run.folder.path / chosen.file

    def event(self, event: Event) -> None:
        if event.kind == "evaluation":
            with self._path.open("a") as file:
                file.write(f"{event.step}\n")
