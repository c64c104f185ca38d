"""Relays the events and the progress of a run to the console of its supervisor."""

from __future__ import annotations

import time
from collections.abc import Mapping

from psrun.config.topology import CHIEF, Task
from psrun.launch.backend import TaskHandle
from psrun.launch.recoveries import Recoveries
from psrun.results.console import ConsoleSink
from psrun.results.events import Event
from psrun.results.journal import EventReader
from psrun.results.run_folder import RunFolder
from psrun.results.tables import TaskRow, task_table
from psrun.results.task_files import age_s

_VIEW_EVERY_S = 0.5


class ProgressRelay:
    """Passes new events of metrics.jsonl to the console and to `recoveries`, and shows the state of the tasks."""

    def __init__(
        self, folder: RunFolder, sink: ConsoleSink, recoveries: Recoveries, tasks: Mapping[Task, TaskHandle]
    ) -> None:
        self._tail = EventReader(folder.metrics, after_what_is_there=True)  # what an earlier process wrote
        self._sink, self._recoveries, self._tasks = sink, recoveries, tasks
        self._last_step, self._shown_s = 0, 0.0

    def update(self) -> None:
        for event in self._tail.read():
            self._relay_event(event)
        if time.monotonic() - self._shown_s >= _VIEW_EVERY_S:
            self._shown_s = time.monotonic()
            beat = self._tasks[CHIEF].heartbeat()
            progress = beat.training if beat else None
            stale = progress is not None and progress.step < self._last_step  # before the end of the epoch last shown
            self._sink.view(task_table([_row(task) for task in self._tasks.values()]), None if stale else progress)

    def close(self) -> None:
        self.update()
        self._sink.close()

    def _relay_event(self, event: Event) -> None:
        self._last_step = event.step or 0
        if event.kind == "restored":
            self._recoveries.restored(event.step or 0)
        if event.kind == "epoch":
            self._recoveries.count_repeated(event.data["steps_repeated"])
        self._sink.event(event)


def _row(task: TaskHandle) -> TaskRow:
    beat, (memory_bytes, processor) = task.heartbeat(), task.usage()
    state = "restarting" if task.start_at_s is not None else beat.state if beat else "starting"
    return TaskRow(str(task.task), state, task.restarts, memory_bytes, processor, age_s(beat) if beat else None)
