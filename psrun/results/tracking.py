"""The trackers of a run: what each of them gets, and what happens when one fails."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psrun import files
from psrun.config import choices, parse
from psrun.config.run_config import FROM_DATA, RunConfig, SweepKeys
from psrun.config.schema import AUTO
from psrun.errors import PsrunError
from psrun.results import events, run_state
from psrun.results.events import Event, Sink
from psrun.results.run_folder import CONFIG, PAUSED, RESULT, RunFolder, flat

STATUS = {"stopping": "interrupted", "end": "completed"}  # of a run after an event; failed, unless it is one of these
_SWEEP_WITHIN = 3  # folders: `hydra.sweep.subdir` may have several parts


@dataclass(frozen=True)
class TrackedRun:
    """A run as its trackers see it.

    Attributes:
      name: of the tracker: its keys are below `tracker.NAME`.
      values: of the configuration, by dotted key; None if another task creates the run, and this one only adds to it.
        Numbers that follow from the data come with the event `planned`.
      ranking: by which metric a sweep ranks its runs.
    """

    name: str
    folder: RunFolder
    values: Mapping[str, Any] | None
    ranking: SweepKeys

    @property
    def sweep(self) -> Path | None:
        """The folder of the sweep that the run is a job of; None if it is none."""
        above = list(self.folder.path.absolute().parents)[:_SWEEP_WITHIN]
        return next((folder for folder in above if (folder / run_state.SWEEP).exists()), None)

    def outcome(self, status: str) -> str:
        """How the run has ended, whose events add up to `status`: the status, or paused by a search."""
        return PAUSED if status == "completed" and self.folder.is_paused else status

    def recorded(self, **expected: Any) -> str | None:
        """The id of the run in the tracker, as an earlier process or another task recorded it; None if there is none.

        Args:
          expected: where the run is; a record of another place does not count.
        """
        stored = self.folder.stored()
        record = files.as_mapping(files.as_mapping(stored.get("trackers")).get(self.name))
        is_same = all(record.get(key) == value for key, value in expected.items())
        return record.get("run_id") if is_same else None

    def record(self, **where: Any) -> None:
        """Records the id and the place of the run in run.json. Raises RunFolderError."""
        self.folder.emit("tracker", name=self.name, **where)


def tracker_sinks(run: RunConfig, folder: RunFolder, warn: Callable[[str], None], *, joins: bool = False) -> list[Sink]:
    """The trackers of a run.

    Args:
      warn: prints a warning.
      joins: whether another task creates the run, and this one only adds to it.

    Raises:
      ConfigError: the package of a tracker is not installed.
    """
    if folder.root is not folder:  # a replica: the chief reports the run
        return []
    recorded = flat({name: run.raw[name] for name in parse.RECORDED if name in run.raw})
    decided = {key: value for key, value in recorded.items() if key not in FROM_DATA or value != AUTO}
    if run.counts_default_executions:  # the number comes with the event `planned`, and MLflow takes a value once
        decided.pop("trainer.steps_per_execution", None)
    sinks: list[Sink] = []
    for name, chosen in run.trackers.items():
        if not isinstance(chosen, choices.NoTracker):
            tracked = TrackedRun(name, folder, None if joins else decided, run.sweep)
            sinks.append(GuardedSink(chosen.load()(chosen, tracked), chosen.title, warn))
    return sinks


class GuardedSink(Sink):
    """Passes events on to a tracker until its first error, which prints a warning: no tracker may end a training."""

    def __init__(self, sink: Sink, title: str, warn: Callable[[str], None]) -> None:
        self._sink = sink
        self._title = title
        self._warn = warn
        self._gave_up = False
        self._lock = threading.RLock()  # a signal handler may report while its thread is in the tracker

    def event(self, event: Event) -> None:
        self._try(lambda: self._sink.event(event))

    def close(self) -> None:
        self._try(self._sink.close)

    def _try(self, work: Callable[[], None]) -> None:
        with self._lock:
            if self._gave_up:
                return
            try:
                work()
            except PsrunError:  # such as a full disk
                raise
            except Exception as error:  # of a library, its store or the network
                self._gave_up = True
                self._warn(f"{self._title} failed; the run continues without tracking: {error}")


def numbers(event: Event) -> dict[str, float]:
    """The numbers of an event by the name under which trackers file them, without undefined ones."""
    data = event.data
    values: dict[str, Any] = {}
    if event.kind == "epoch":
        values = {**data["metrics"], **{name: data.get(name) for name in events.LEARNING_RATES}}
        if "virtual" in data:  # in place of the rates of the process
            values |= {f"virtual/{name}": value for name, value in data["virtual"].items()}
        else:
            values |= {"steps_per_s": data["steps_per_s"], "examples_per_s": data["examples_per_s"]}
    elif event.kind == "evaluation":
        values = {f"val_{name}": value for name, value in data["metrics"].items()}
    elif event.kind == "staleness":
        values = {f"staleness_{name}": value for name, value in events.brief_staleness(data).items()}
    elif event.kind == "system":
        values = {f"system/{data['task']}/{name}": value for name, value in data.items() if name != "task"}
    return {name: float(value) for name, value in values.items() if value is not None}


def artifacts(names: list[str], folder: RunFolder, status: str) -> Iterator[tuple[str, Path | str]]:
    """The artifacts of a run that exist: their path among the artifacts, and the file, the folder or the text.

    Args:
      names: of `psrun.config.choices.ARTIFACTS`.
      status: of the run, which is recorded only after its trackers are closed.
    """
    result = folder.stored()
    status = "interrupted" if status == PAUSED else status
    if "config" in names:
        yield CONFIG, folder.path / CONFIG
    if "result" in names:
        yield RESULT, json.dumps({**result, "status": status}, indent=2)
    if "export" in names and (folder.path / "export").exists():
        yield "export", folder.path / "export"
    best = files.as_mapping(result.get("best_checkpoint")).get("step")
    if "best_checkpoint" in names and best is not None:
        for file in sorted(folder.checkpoints.glob(f"*-{best}.*")):
            yield f"best_checkpoint/{file.name}", file
