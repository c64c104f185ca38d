"""What the supervisor tells of its cluster: the events that its tasks write, and how the tasks are."""

from __future__ import annotations

import time
from collections.abc import Mapping

from psrun.config.topology import CHIEF, Task
from psrun.launch.recoveries import Recoveries
from psrun.launch.task_processes import TaskHandle
from psrun.results.console import ConsoleSink
from psrun.results.event_reader import EventReader
from psrun.results.events import Event
from psrun.results.run_folder import RunFolder
from psrun.results.tables import TaskRow, task_table
from psrun.results.task_files import age_s

_VIEW_EVERY_S = 0.5


class ProgressRelay:
    """Passes on what is added to metrics.jsonl, and shows the tasks; `recoveries` learns of what it must know."""

    def __init__(
        self, folder: RunFolder, sink: ConsoleSink, recoveries: Recoveries, tasks: Mapping[Task, TaskHandle]
    ) -> None:
        self._tail = EventReader(folder.metrics, after_what_is_there=True)  # of a run that goes on
        self._sink, self._recoveries, self._tasks = sink, recoveries, tasks
        self._told_step, self._shown_s = 0, 0.0

    def tell(self) -> None:
        for event in self._tail.read():
            self._heard(event)
        if time.monotonic() - self._shown_s >= _VIEW_EVERY_S:
            self._shown_s = time.monotonic()
            beat = self._tasks[CHIEF].heartbeat()
            progress = beat.training if beat else None
            stale = progress is not None and progress.step < self._told_step  # than the epoch's end that was just told
            self._sink.view(task_table([_row(task) for task in self._tasks.values()]), None if stale else progress)

    def close(self) -> None:
        self.tell()
        self._sink.close()

    def _heard(self, event: Event) -> None:
        self._told_step = event.step or 0
        if event.kind == "restored":
            self._recoveries.restored(event.step or 0)
        if event.kind == "epoch":
            self._recoveries.count_repeated(event.data["steps_repeated"])
        self._sink.event(event)


def _row(task: TaskHandle) -> TaskRow:
    beat, (memory_bytes, processor) = task.heartbeat(), task.usage()
    state = "restarting" if task.start_at_s is not None else beat.state if beat else "starting"
    return TaskRow(str(task.task), state, task.restarts, memory_bytes, processor, age_s(beat) if beat else None)
