"""Events of a run: their sinks, metrics.jsonl, and run.json as their sum.

The run folder applies each event once. Readers fold the events of metrics.jsonl again where run.json is lost. Does not
import TensorFlow.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from psrun.config import choices
from psrun.errors import RunFolderError
from psrun.files import as_number, parse_json

METRICS = "metrics.jsonl"
IN_RUN_JSON = "in_run_json"  # false in an event that run.json does not have: its writer has metrics.jsonl only
PENDING_LOSS = "pending_recovery"  # the loss that ended an attempt, until a later one trains
LEARNING_RATES = ("learning_rate", "table_learning_rate")  # of an epoch; the second one with a table optimizer
_FIRST_STEP_PARTS = "time_to_first_step_by_part_s"
_PERCENTILES = (50, 95, 99)
_NAMES = tuple(f"p{percent}" for percent in _PERCENTILES)


@dataclass(frozen=True)
class Event:
    """Something that happened, such as an epoch, an evaluation, a checkpoint or a failure.

    Attributes:
      kind: what happened.
      step: steps applied when it happened, read from `optimizer.iterations`; None before the optimizer exists.
      wall_s: seconds since the process started.
      data: its details, as JSON values.
    """

    kind: str
    step: int | None
    wall_s: float
    data: Mapping[str, Any]


@dataclass
class Measured:
    """What was measured of the training after some step.

    Attributes:
      step: steps applied by then.
      epoch: that ended there; None within an epoch.
      metrics: of the epoch, and of the evaluation as `val_*`; None for an undefined one.
    """

    step: int
    epoch: int | None = None
    metrics: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Progress:
    """Progress of the training; rates are means over the last seconds, and None where workers are virtual.

    Attributes:
      epoch: the current one, from 1.
      epochs: their planned number.
      step: steps applied in this run so far.
      steps: their planned number.
      loss: mean over the current epoch so far; None before its first step.
      metrics: of the last complete epoch and evaluation.
      has_begun: whether this process has applied a step; a resumed run has the steps of earlier ones.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    steps_per_s: float | None
    examples_per_s: float | None
    loss: float | None
    metrics: Mapping[str, float] = field(default_factory=dict)
    has_begun: bool = True


class Sink:
    """Receives events and progress, and ignores them. Called from several threads, one call at a time."""

    def event(self, event: Event) -> None:
        pass

    def progress(self, progress: Progress) -> None:
        pass

    def close(self) -> None:
        pass


class Reporter:
    """Sends events to all sinks, stamped with the time since `started_s` (a time of `time.time`)."""

    def __init__(self, sinks: Sequence[Sink], *, started_s: float) -> None:
        self._sinks = sinks
        self.started_s = started_s

    @property
    def wall_s(self) -> float:
        return time.time() - self.started_s

    def emit(self, kind: str, *, step: int | None = None, **data: Any) -> None:
        event = Event(kind, step, round(self.wall_s, 3), data)
        for sink in self._sinks:
            sink.event(event)

    def warn(self, message: str, *, step: int | None = None) -> None:
        """Reports a warning."""
        self.emit("warning", step=step, message=message)

    def progress(self, progress: Progress) -> None:
        for sink in self._sinks:
            sink.progress(progress)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()


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
        data: Any = parse_json(line)
        kind = str(data.pop("event"))
        step = data.pop("step")
        if step is not None:
            step = int(step)
        return Event(kind, step, float(data.pop("wall_s")), data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return None


def best_measured(events: Iterable[Event], metric: str, mode: str) -> Measured | None:
    """Where a metric of the training was the best, by the events of the run; the first of equal ones.

    Args:
      mode: 'max' if more is better, else 'min'.

    Returns:
      None if the metric was never defined.
    """
    best = None
    best_value = math.inf
    for each in _measured(events).values():
        value = as_number(each.metrics.get(metric))
        if value is None:
            continue
        if mode == "max":
            value = -value
        if value < best_value:
            best = each
            best_value = value
    return best


def _measured(events: Iterable[Event]) -> dict[int, Measured]:
    """What was measured of the weights that the training went on from, by step.

    A process that resumes from a checkpoint, or begins anew, does the steps after it again, with other weights.
    """
    found: dict[int, Measured] = {}
    begins = False
    for event in events:
        if event.kind == "start":
            begins = True
        if event.step is None:
            continue
        if event.kind == "restored":
            begins = False
            found = {step: each for step, each in found.items() if step <= event.step}
        elif event.kind == "epoch":
            if begins:
                begins = False
                found = {}
            each = found.setdefault(event.step, Measured(event.step))
            each.epoch = event.data.get("epoch")
            each.metrics |= event.data.get("metrics", {})
        elif event.kind == "evaluation" and "path" not in event.data:  # which mode=evaluate has
            each = found.setdefault(event.step, Measured(event.step))
            each.metrics |= {f"val_{name}": value for name, value in event.data.get("metrics", {}).items()}
    return found


State = Mapping[str, Any]
Change = Callable[[State, Event], Mapping[str, Any]]  # the keys of run.json that an event sets


def fold(state: State, event: Event) -> dict[str, Any]:
    """The content of run.json after one more event. An event of a kind that sets no key changes nothing.

    An event `result` has all of run.json: of a run whose earlier events are not in metrics.jsonl, or count no more.
    """
    if event.kind == "result":
        return dict(event.data["result"])
    change = CHANGES.get(event.kind)
    return {**state, **(change(state, event) if change else {})}


def fold_all(events: Iterable[Event]) -> dict[str, Any]:
    """The result of folding the events of metrics.jsonl that run.json has.

    Events that another version of psrun wrote in another form are left out.
    """
    state: dict[str, Any] = {}
    for event in events:
        if event.data.get(IN_RUN_JSON) is False:
            continue
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
            state = fold(state, event)
    return state


def _given(state: State, event: Event) -> State:
    """The event's data are keys of run.json."""
    return event.data


def _ended(state: State, event: Event) -> State:
    """A run that has not begun has no clock."""
    if "started_s" not in state:
        return event.data
    return {**event.data, "wall_s": event.wall_s}


def _under(key: str) -> Change:
    return lambda state, event: {key: event.data}


def _begun(state: State, event: Event) -> State:
    """A process begins or resumes the run; without overrides it keeps the recorded ones."""
    overrides = event.data["overrides"] or state.get("overrides", [])
    goes_on = {"search": None} if state.get("search") else {}
    return {"status": "running", "exit_code": None, "error": None, **goes_on, **event.data, "overrides": overrides}


def _data(state: State, event: Event) -> State:
    return {**event.data, "evaluation": state.get("evaluation")}


def _more_of_data(state: State, event: Event) -> State:
    return {"data": {**state.get("data", {}), **event.data}}


def _later_data(state: State, event: Event) -> State:
    return {"later_data": {**state.get("later_data", {}), **event.data}}


def _placement(state: State, event: Event) -> State:
    balance = dict(event.data)
    balance.pop("num_ps", None)  # which `cluster` has
    change: dict[str, Any] = {}
    for name in ("placement", "placement_in"):  # one of the two
        value = balance.pop(name, None)
        if value is not None or name in state:
            change[name] = value
    return {**change, "balance": balance}


def _tracker(state: State, event: Event) -> State:
    """Where a tracker has the run, by the name of the tracker; the place in MLflow is also at `tracker`."""
    record = dict(event.data)
    name = record.pop("name")
    changed: dict[str, Any] = {"trackers": {**state.get("trackers", {}), name: record}}
    if record.get("kind") == "mlflow":
        changed["tracker"] = record
    return changed


def _waits(state: State, event: Event) -> State:
    """The totals since the process began replace the totals of earlier epochs."""
    totals = {name: value for name, value in event.data.items() if name != "epoch"}
    return {"consistency": {**state.get("consistency", {}), **totals}}


def _epoch(state: State, event: Event) -> State:
    change = {}
    for name in ("metrics", "steps"):  # earlier versions had no steps
        if name in event.data:
            change[name] = event.data[name]
    if "virtual" in event.data:
        change["virtual"] = event.data["virtual"]
    elif "virtual" in state:  # a run that resumed on a real cluster, of which nothing was predicted
        change["virtual"] = None
        change["prediction"] = None
    return change


def _staleness(state: State, event: Event) -> State:
    """Adds the updates of an epoch."""
    return {"staleness": add_staleness(state.get("staleness") or {}, event.data)}


def _evaluation(state: State, event: Event) -> State:
    """Adds to the metrics of the training. An event of mode=evaluate has a path and belongs to no training."""
    metrics = {} if "path" in event.data else state.get("metrics", {})
    values = {f"val_{name}": value for name, value in event.data["metrics"].items()}
    evaluation = {"step": event.step, **{name: value for name, value in event.data.items() if name != "path"}}
    return {"metrics": {**metrics, **values}, "evaluation": evaluation}


def _checkpoints(state: State, event: Event) -> State:
    """All existing good checkpoints, and all that were found damaged, by step.

    The event has the rows that were added, and the steps of the good checkpoints that are gone.
    """
    rows = []
    for row in state.get("checkpoints", []):
        if not row["good"] or row["step"] not in event.data["removed"]:
            rows.append(row)
    rows += event.data["damaged"]
    rows += event.data["good"]
    return {"checkpoints": sorted(rows, key=lambda row: (row["step"], row["good"]))}


def _recovery(state: State, event: Event) -> State:
    return _with_recoveries(state, [event.data])


def _recoveries(state: State, event: Event) -> State:
    return _with_recoveries(state, event.data["rows"])


def _with_recoveries(state: State, rows: list[State]) -> State:
    """Adds rows, or replaces rows of the same failure: the number of repeated steps is known later."""

    def failure(row: State) -> Any:
        return row.get("task"), row.get("at_s")

    new = [failure(row) for row in rows]
    others = [row for row in state.get("recoveries", []) if failure(row) not in new]
    recovered = {PENDING_LOSS: None} if rows and PENDING_LOSS in state else {}
    return {"recoveries": [*others, *rows], **recovered}


def _trained(state: State, event: Event) -> State:
    """If several processes train one after another, the time to the first step, and its parts, are the first one's."""
    first = state
    if not state.get("time_to_first_step_s"):
        first = event.data
    kept = {"time_to_first_step_s": first["time_to_first_step_s"]}
    if _FIRST_STEP_PARTS in event.data:  # earlier versions had none
        kept[_FIRST_STEP_PARTS] = first.get(_FIRST_STEP_PARTS)
    return {**event.data, **kept, "wall_s": event.wall_s}


CHANGES: dict[str, Change] = {
    # Processes.
    "begun": _begun,
    "ended": _ended,
    "cluster": _given,
    "replicas": _under("replicas"),
    "tracker": _tracker,
    "consistency": _under("consistency"),
    "code": _under("code"),
    "environment": _under("environment"),
    "reproduction": _under("reproduction"),
    # Model and data.
    "data": _data,
    "sharding": _more_of_data,
    "hashes": _more_of_data,
    "later_data": _later_data,
    "chosen": _under("chosen"),
    "network": _under("network"),
    "library": _under("network"),
    "lookups": _given,
    "placement": _placement,
    "plan": _given,
    "prediction": _under("prediction"),
    "packing": _under("steps_per_execution"),
    "packed": _under("steps_per_execution"),
    "search": _under("search"),
    # Results.
    "epoch": _epoch,
    "waits": _waits,
    "staleness": _staleness,
    "evaluation": _evaluation,
    "last_evaluation": _evaluation,
    "checkpoints": _checkpoints,
    "best_checkpoint": _given,
    "trained": _trained,
    "export": lambda state, event: {"export": event.data["path"]},
    "profile": _under("profile"),
    "predictions": lambda state, event: {"predictions": {**event.data, "step": event.step}},
    # Losses and recoveries.
    "lost": lambda state, event: {PENDING_LOSS: {**event.data, "step": event.step}},
    "recovery": _recovery,
    "recoveries": _recoveries,
}


Histogram = Mapping[int, int]  # number of updates by staleness


def staleness_by_worker(by_worker: Mapping[str, Histogram]) -> dict[str, Any]:
    """The staleness of the updates of all workers, as in run.json.

    Returns:
      `updates`, `mean`, `p50`, `p95`, `p99`, `max` and `histogram` ([staleness, number of updates] pairs) of all
      updates, and the same under `by_worker`; empty without an update.
    """
    total = sum_of_histograms(by_worker.values())
    if not total:
        return {}
    return {
        **_staleness_statistics(total),
        "by_worker": {name: _staleness_statistics(each) for name, each in sorted(by_worker.items())},
    }


def brief_staleness(recorded: Mapping[str, Any] | None) -> dict[str, float]:
    """The statistics of all updates in what `statistics_by_worker` returned; empty if they were not measured."""
    return {name: recorded[name] for name in ("mean", *_NAMES, "max")} if recorded else {}


def staleness_histograms(recorded: Mapping[str, Any]) -> dict[str, Histogram]:
    """The argument of `statistics_by_worker`, from what it returned; empty if that is empty."""
    return {name: choices.staleness_histogram(each) for name, each in recorded.get("by_worker", {}).items()}


def sum_of_histograms(each: Iterable[Histogram]) -> Histogram:
    """The sum of histograms."""
    total: Counter[int] = Counter()
    for one in each:
        total.update(one)
    return dict(sorted(total.items()))


def add_staleness(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """`statistics_by_worker` of the updates of both."""
    one = staleness_histograms(before)
    other = staleness_histograms(after)
    return staleness_by_worker(
        {name: sum_of_histograms([one.get(name, {}), other.get(name, {})]) for name in {**one, **other}}
    )


def _staleness_statistics(counts: Histogram) -> dict[str, Any]:
    updates = sum(counts.values())
    mean = sum(staleness * number for staleness, number in counts.items()) / updates
    percentiles = {n: _percentile(counts, percent * updates / 100) for n, percent in zip(_NAMES, _PERCENTILES)}
    pairs = [[staleness, number] for staleness, number in sorted(counts.items())]
    return {"updates": updates, "mean": round(mean, 4), **percentiles, "max": max(counts), "histogram": pairs}


def _percentile(counts: Histogram, most: float) -> int:
    """The smallest staleness with at least `most` updates up to it."""
    so_far = 0
    for staleness, number in sorted(counts.items()):
        so_far += number
        if so_far >= most:
            return staleness
    return max(counts)
