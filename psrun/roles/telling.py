"""What a supervisor tells a person of its cluster: the events that its tasks write, and how the tasks are."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from rich.filesize import decimal
from rich.table import Table

from psrun.cluster.files import age_s
from psrun.cluster.processes import TaskProcess
from psrun.cluster.recoveries import Recoveries
from psrun.cluster.topology import CHIEF, Task
from psrun.reporting.console import ConsoleSink
from psrun.reporting.events import Event, Progress
from psrun.reporting.run_folder import RunFolder

_VIEW_EVERY_S = 0.5


class Teller:
    """Passes on what is added to metrics.jsonl, and shows the tasks; `recoveries` learns of what it must know."""

    def __init__(
        self, folder: RunFolder, sink: ConsoleSink, recoveries: Recoveries, tasks: Mapping[Task, TaskProcess]
    ) -> None:
        self._path, self._sink, self._recoveries, self._tasks = folder.metrics, sink, recoveries, tasks
        self._told_step, self._shown_s = 0, 0.0
        self._told_bytes = self._path.stat().st_size if self._path.exists() else 0  # of a run that goes on

    def tell(self) -> None:
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._told_bytes)
                lines = file.read()
            whole = lines[: lines.rfind(b"\n") + 1]
            self._told_bytes += len(whole)
            for line in whole.splitlines():
                self._heard(json.loads(line))
        if time.monotonic() - self._shown_s >= _VIEW_EVERY_S:
            self._shown_s = time.monotonic()
            beat = self._tasks[CHIEF].heartbeat()
            progress = Progress(**beat.progress) if beat and beat.progress else None
            stale = progress is not None and progress.step < self._told_step  # than the epoch's end that was just told
            self._sink.tasks(self._table(), None if stale else progress)

    def close(self) -> None:
        self.tell()
        self._sink.close()

    def _heard(self, line: dict[str, Any]) -> None:
        kind, step, wall_s = line.pop("event"), line.pop("step"), line.pop("wall_s")
        self._told_step = step or 0
        if kind == "restored":
            self._recoveries.restored(step)
        if kind == "epoch":
            self._recoveries.count_repeated(line["steps_repeated"])
        self._sink.event(Event(kind, step, wall_s, line))

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in ("task", "state", "restarts", "memory", "CPU", "last heartbeat"):
            table.add_column(heading, justify="left" if heading in ("task", "state") else "right")
        for task in self._tasks.values():
            beat, (memory, processor) = task.heartbeat(), task.usage()
            state = "restarting" if task.start_at_s is not None else beat.state if beat else "starting"
            heard = f"{age_s(beat):.1f} s ago" if beat else "-"
            table.add_row(str(task.task), state, str(task.restarts), decimal(memory), f"{processor:.0f} %", heard)
        return table
