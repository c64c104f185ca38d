"""The run folder: run.json, metrics.jsonl, notes.json, submitted.json and the paths of all other files of a run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from yaml import YAMLError

from psrun import files
from psrun.config.groups import run_argument
from psrun.config.topology import Task
from psrun.errors import CANNOT_GROW, FULL, ConfigError, DataError, ExitCode, Problem, PsrunError, RunFolderError
from psrun.results.events import (
    CHANGES,
    IN_RUN_JSON,
    METRICS,
    Event,
    EventReader,
    Journal,
    fold,
    fold_all,
    plain,
    writing_to,
)

_FLOAT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?e[-+]?[0-9]+")
_LOCK_TIMEOUT_S = 1.0
_RESERVE, _RESERVE_BYTES = ".reserve", 64 * 1024
OVER = ("completed", "failed", "interrupted")  # the final values of `status`
PAUSED, PRUNED = "paused", "pruned"
SEARCH_STATES = (PAUSED, PRUNED)  # of an interrupted run in a search
CONFIG, RESULT, END_EARLY = "config.yaml", "run.json", "end-early"
_PAUSE = "pause-after"
HYDRA = (".hydra/config.yaml", ".hydra/hydra.yaml", ".hydra/overrides.yaml")  # the composed configuration, its sources
NOTES = "notes.json"
SUBMITTED = "submitted.json"
DATA = "data.json"  # facts about the data that are too large for run.json, as of a thousand columns
_LARGE_FACT_BYTES = 32 << 10
PLACEMENT = "placement.json"  # of more variables than run.json takes
_LARGE_PLACEMENT_BYTES = 128 << 10
FOLLOWING = "following.json"  # the state of early stopping and of lowered learning rates, by step
VOCABULARIES = "vocabularies"  # the folder of files with long vocabularies that facts about the data name
_MORE = "more_in"  # the key, among the facts about the data, that names the file
CHECKPOINTS = "checkpoints"
ABOUT = "psrun-checkpoint.json"  # describes an export of a checkpoint, and is beside the record of its run
_LOGS = ("supervisor", "planner", "fork-server", "console")  # beside those of tasks
PLANNED = "planned"  # the status that is shown of a plan
PENDING, NOT_RUN = "pending", "not run"  # the status of a run that has not begun, and of one that never will


@dataclass(frozen=True)
class Earlier:
    """The state of a run that a process takes over: run.json, and the time of the last write (`time.time`)."""

    result: Mapping[str, Any]
    at_s: float


class RunFolder(Journal):
    """The folder with everything that one run writes.

    run.json is one JSON object: what the events of the run add up to, see `events`. It is replaced atomically at every
    change, and nothing but this class writes it. One process at a time does; others add events to `journal`.

    Attributes:
      root: the folder of the whole run if this folder belongs to one of its tasks; else this folder.
      earlier: the run as the process before this one left it; None without one.
    """

    def __init__(self, path: Path, root: RunFolder | None = None) -> None:
        super().__init__(path)
        self.root = root or self
        self.earlier: Earlier | None = None
        self._result: dict[str, Any] = {}
        self._is_complete = False  # whether metrics.jsonl is known to add up to run.json

    @classmethod
    def create(cls, path: Path, *, raw: Mapping[str, Any]) -> RunFolder:
        """Prepares the folder for a new run, which replaces a refused run or a plan (`makes_room`). Lock it before.

        Raises:
          ConfigError: it holds another run, or nothing can be written there.
        """
        if cls(path).makes_room:
            cls(path)._remove_record()
        if cls(path).has_run:
            shown = run_argument(files.from_here(path))
            message = f"{path} holds a run already; choose another folder, or resume the run"
            raise ConfigError([Problem("hydra.run.dir", f"{message}: psrun resume {shown}")])
        folder = cls.open(path)
        write_config(path, raw)
        return folder

    @classmethod
    def lock(cls, path: Path, *, within_s: float = 0.0, resumes: bool = False) -> None:
        """Locks the folder until this process ends; waits up to `within_s` seconds for another process.

        Args:
          resumes: whether the run in it is to be resumed.

        Raises:
          ConfigError: another process has locked it, or nothing can be written there.
        """
        cls.open(path)
        if not files.hold(path, within_s=within_s):
            raise ConfigError([in_use(path, resumes=resumes)])

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The folder of a run; another process may have created it. Raises ConfigError, or RunFolderError if full."""
        try:
            for folder in ("logs", "tensorboard"):
                (path / folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_be_made(path, error) from error
        return cls(path)

    @classmethod
    def resume(cls, path: Path, *, completed: bool = False, raw: Mapping[str, Any] | None = None) -> RunFolder:
        """The folder of a resumed run: keeps its result so far.

        Args:
          completed: whether a completed run may be continued.
          raw: the configuration from now on; None for the recorded one. A completed run that early stopping ended
            trains further epochs only if the rule or the number of epochs is new.

        Raises:
          ConfigError: the run in it is over, it is a part of an export, or the folder cannot be written.
        """
        if (path.parent / ABOUT).exists():
            command = f"psrun checkpoint import {path.parent} --to RUN"
            raise ConfigError([Problem("resume", f"{path} is a part of an export; to make a run of it: {command}")])
        folder = cls.open(path)
        written_s = max(map(files.changed_s, (path / RESULT, folder.metrics)))
        folder.earlier = Earlier(folder.stored(), written_s)
        status = folder.earlier.result.get("status")
        if status == "completed" and not completed:
            raise ConfigError([Problem("hydra.run.dir", f"{path} holds a completed run; choose another folder")])
        if status == "completed" and raw is not None and folder._has_new_length(raw):
            (path / END_EARLY).unlink(missing_ok=True)
        return folder

    def _has_new_length(self, raw: Mapping[str, Any]) -> bool:
        """Whether what decides on the number of epochs differs from the recorded configuration."""
        recorded = self._recorded()
        return recorded is None or _length(recorded) != _length(raw)

    def has_configuration(self, raw: Mapping[str, Any]) -> bool:
        """Whether `raw` is the recorded configuration; whether the run is a resumed one does not matter."""
        recorded = self._recorded()
        if recorded is None:
            return False
        either = {"resume": None}
        return flat({**recorded, **either}) == flat({**raw, **either})

    def _recorded(self) -> dict[str, Any] | None:
        """The recorded configuration; None if it cannot be read."""
        try:
            recorded: Any = OmegaConf.to_container(OmegaConf.load(self.path / CONFIG), resolve=False)
        except (OSError, YAMLError):
            return None
        return recorded if isinstance(recorded, dict) else None

    def stored(self) -> dict[str, Any]:
        """The current content of run.json; if it is lost or damaged, what `rebuilt` returns."""
        try:
            return json.loads((self.path / RESULT).read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            return rebuilt(self.path)

    def data_facts(self) -> dict[str, Any] | None:
        """The facts about the data that the run has recorded; None if it has recorded none.

        Raises:
          DataError: the file with large facts cannot be read.
        """
        recorded = self.stored().get("data")
        return None if recorded is None else whole_facts(recorded, self.root.path)

    def emit_data(self, facts: Mapping[str, Any]) -> None:
        """Records facts about the data; large ones in a file beside run.json. Raises RunFolderError."""
        whole = plain(facts)
        large = {}
        for name, value in whole.items():
            if len(json.dumps(value)) > _LARGE_FACT_BYTES:
                large[name] = value
        if not large:
            self.emit("data", data=whole)
            return
        with writing_to(self.root.path):
            files.write_atomic(self.root.path / DATA, json.dumps(large, allow_nan=False) + "\n")
        small = {name: value for name, value in whole.items() if name not in large}
        self.emit("data", data={**small, _MORE: DATA})

    def copy_record(self, to: Path) -> None:
        """Makes a folder with what a run needs to be resumed there, besides a checkpoint; without a run, an empty one.

        Raises:
          OSError: a file cannot be read or written.
        """
        to.mkdir(parents=True)
        if not self.has_run:
            return
        for name in (CONFIG, *HYDRA, DATA):
            if (self.path / name).exists():
                (to / name).parent.mkdir(exist_ok=True)
                shutil.copyfile(self.path / name, to / name)
        if (self.path / VOCABULARIES).exists():
            shutil.copytree(self.path / VOCABULARIES, to / VOCABULARIES)
        kept = {name: value for name, value in self.stored().items() if name in ("mode", "overrides", "data")}
        text = json.dumps({"status": "interrupted", **kept}, indent=2)
        files.write_atomic(to / RESULT, text + "\n")

    @property
    def has_run(self) -> bool:
        """Whether a run has begun in the folder."""
        return (self.path / RESULT).exists() or bool(rebuilt(self.path))

    @property
    def makes_room(self) -> bool:
        """Whether a new run replaces what is in the folder: a refused run or a plan, of which no step was trained."""
        return self.was_refused or self.holds_plan

    @property
    def was_refused(self) -> bool:
        """Whether the run in the folder ended before its first step because of its configuration."""
        result, _ = files.load_mapping(self.path / RESULT)
        if result.get("status") != "failed" or result.get("exit_code") != ExitCode.USAGE:
            return False
        return not self._has_trained(result)

    @property
    def holds_plan(self) -> bool:
        """Whether the folder holds a plan that is over, and no run."""
        result, _ = files.load_mapping(self.path / RESULT)
        if result.get("mode") != "plan" or result.get("status") not in OVER:
            return False
        return not self._has_trained(result)

    def _has_trained(self, result: Mapping[str, Any]) -> bool:
        steps = files.as_mapping(result.get("steps"))
        return bool(steps.get("applied")) or self.has_results

    def remove_plan(self) -> None:
        """Removes the plan in the folder; files of others stay. Lock it before. Raises ConfigError."""
        self._remove_record()
        try:
            for name in (CONFIG, *HYDRA):
                (self.path / name).unlink(missing_ok=True)
        except OSError as error:
            raise cannot_be_made(self.path, error) from error
        for folder in (self.path / ".hydra", self.path / "tensorboard", self.path / "logs", self.path):
            with contextlib.suppress(OSError):  # it is not empty, or there is none
                folder.rmdir()

    def _remove_record(self) -> None:
        """Removes what a refused run or a plan has recorded. The next run replaces the rest; files of others stay."""
        written = [self.path / name for name in (METRICS, NOTES, DATA, PLACEMENT, END_EARLY, _PAUSE)]
        for log in (self.path / "logs").glob("*.log"):
            if log.stem in _LOGS or Task.named(log.stem):
                written.append(log)
        written.append(self.path / RESULT)  # last: until then the run counts as refused
        try:
            for file in written:
                file.unlink(missing_ok=True)
        except OSError as error:
            raise cannot_be_made(self.path, error) from error

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    @property
    def has_results(self) -> bool:
        """Whether an epoch is done, or a checkpoint was begun."""
        return self.checkpoints.exists() or bool(self.stored().get("metrics"))

    @property
    def journal(self) -> Journal:
        """metrics.jsonl only: for the events of a process while another process writes run.json."""
        return Journal(self.path)

    def new_events(self) -> EventReader:
        """A reader of the events that are added from now on."""
        return EventReader(self.metrics, after_what_is_there=True)

    @property
    def evaluations(self) -> Path:
        return self.path / "evaluations"

    @property
    def predictions(self) -> Path:
        return self.path / "predictions"

    def of_cluster(self, mode: str) -> Path:
        """The folder of mode=evaluate or predict for its own cluster, beside a run that may still be running."""
        return {"evaluate": self.evaluations, "predict": self.predictions}[mode] / "cluster"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    def ends_early(self) -> bool:
        """Whether training was interrupted before its last epoch."""
        return (self.path / END_EARLY).exists()

    @property
    def why_ends_early(self) -> str:
        """The reason of `end_early`, in one line."""
        try:
            return (self.path / END_EARLY).read_text(encoding="utf-8").strip().partition("\n")[0] or END_EARLY
        except OSError:
            return END_EARLY

    def end_early(self, reason: str) -> None:
        """Requests the end of the training after the current epoch. Raises RunFolderError."""
        with writing_to(self.path):
            files.write_atomic(self.path / END_EARLY, reason + "\n")

    @property
    def pause_epoch(self) -> int | None:
        """The epoch after which the training pauses, as a search wants it; None: it does not."""
        try:
            return int((self.path / _PAUSE).read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None

    def pause_after(self, epoch: int | None) -> None:
        """Requests a pause after this epoch; None: none. Raises RunFolderError."""
        with writing_to(self.path):
            if epoch is None:
                (self.path / _PAUSE).unlink(missing_ok=True)
            else:
                files.write_atomic(self.path / _PAUSE, f"{epoch}\n")

    @property
    def is_paused(self) -> bool:
        """Whether the training ended to pause."""
        return files.as_mapping(self.stored().get("search")).get("state") == PAUSED

    def log(self, task: str) -> Path:
        """The log file of a task, such as 'chief-0'."""
        return self.path / "logs" / f"{task}.log"

    def event(self, event: Event) -> None:
        """Adds an event to metrics.jsonl and applies it to run.json. Raises RunFolderError."""
        if event.kind not in CHANGES:
            super().event(event)
            return
        with self._lock:
            self._add(event)

    def emit(self, kind: str, /, *, step: int | None = None, wall_s: float | None = None, **data: Any) -> None:
        """Adds an event to metrics.jsonl and applies it to run.json. Raises RunFolderError.

        Args:
          wall_s: seconds since the run began; None: until now while the run is running, else until its last event.
        """
        with self._lock:
            self._emit(kind, step, wall_s, data)

    def emit_at_once(self, kind: str, /, *, wall_s: float | None = None, **data: Any) -> None:
        """As `emit`, for a process that is about to end, also within a signal handler. Raises RunFolderError."""
        # An interrupted thread may hold the lock and would never release it.
        self._lock.acquire(timeout=_LOCK_TIMEOUT_S)
        self._emit(kind, None, wall_s, data)

    def _emit(self, kind: str, step: int | None, wall_s: float | None, data: Mapping[str, Any]) -> None:
        if wall_s is None:
            wall_s = self._clock_s()
        self._add(Event(kind, step, wall_s, data))

    def _clock_s(self) -> float:
        result = self.stored()
        started_s = files.as_number(result.get("started_s"))
        if result.get("status") == "running" and started_s is not None:
            return round(time.time() - started_s, 3)
        return self.elapsed_s()

    def _add(self, event: Event) -> None:
        """Another process may have written run.json last. If the file is damaged, the last known result is used."""
        before = self.stored() or self._result
        event = replace(event, data=plain(event.data))  # as it will be read from metrics.jsonl
        if event.kind == "placement":
            event = self._without_large_placement(event)
        self._result = fold(before, event)
        text = json.dumps(self._result, indent=2, allow_nan=False) + "\n"
        with writing_to(self.path):
            self._complete(before)
            self._with_reserve(event, lambda: self._append(event))
            self._with_reserve(event, lambda: files.write_atomic(self.path / RESULT, text))
        if event.kind == "ended":
            (self.path / _RESERVE).unlink(missing_ok=True)

    def _without_large_placement(self, event: Event) -> Event:
        """The event as run.json takes it: with the name of a file in place of a large placement. Writes the file."""
        text = json.dumps(event.data["placement"], allow_nan=False)
        if len(text) <= _LARGE_PLACEMENT_BYTES:
            return event
        with writing_to(self.path):
            files.write_atomic(self.path / PLACEMENT, text + "\n")
        others = {key: value for key, value in event.data.items() if key != "placement"}
        return replace(event, data={**others, "placement_in": PLACEMENT})

    def _complete(self, result: Mapping[str, Any]) -> None:
        """Adds `result` to metrics.jsonl if the events there do not add up to run.json.

        An earlier version wrote only some of them, or a process was killed before it could replace run.json.
        """
        if not self._is_complete and result and rebuilt(self.path) != result:
            self._append(Event("result", None, self.elapsed_s(), {"result": result}))
        self._is_complete = True

    def _with_reserve(self, event: Event, write: Callable[[], None]) -> None:
        """Calls `write`; for the end of the run again with the reserved space if the disk is full. Raises OSError."""
        reserve = self.path / _RESERVE
        try:
            write()
        except OSError as error:
            if event.kind != "ended" or error.errno not in FULL or not reserve.exists():
                raise
            reserve.unlink()
            write()

    def reserve_disk_space(self) -> None:
        """Takes disk space with which the end of the run can be recorded on a disk that is full by then."""
        with contextlib.suppress(OSError):
            (self.path / _RESERVE).write_bytes(bytes(_RESERVE_BYTES))

    def revert(self, result: Mapping[str, Any], *, at_once: bool = False) -> None:
        """Makes `result` the content of run.json again. Raises RunFolderError.

        Args:
          at_once: as of `emit_at_once`.
        """
        if not result or self.stored() == result:  # the folder may be read-only
            return
        emit = self.emit_at_once if at_once else self.emit
        emit("result", result=result)

    def snapshot(self, names: Sequence[str]) -> Callable[[], None]:
        """A function that restores the current content of these files."""
        paths = [self.path / name for name in names if (self.path / name).exists()]
        contents = {file: file.read_text(encoding="utf-8") for file in paths}

        def undo() -> None:
            for file, text in contents.items():
                if not file.exists() or file.read_text(encoding="utf-8") != text:  # the folder may be read-only
                    files.write_atomic(file, text)

        return undo


def whole_facts(facts: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Facts about the data as run.json has them, with the large ones, which are in a file beside it.

    Args:
      folder: of the run.

    Raises:
      DataError: the file cannot be read.
    """
    name = facts.get(_MORE)
    if name is None:
        return dict(facts)
    path = folder / str(name)
    try:
        large = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        message = f"{path}, which has what the run knows of the columns, cannot be read: {error}"
        raise DataError(f"{message}; restore it from a copy of the run, or train a new run") from error
    others = {key: value for key, value in facts.items() if key != _MORE}
    return {**large, **others}


def placement_of(result: Mapping[str, Any], folder: Path) -> list[Any]:
    """The placement of a run: from run.json, or from the file that this names; empty if there is none.

    Args:
      folder: of the run.
    """
    name = result.get("placement_in")
    placed = result.get("placement")
    if name is not None:
        with contextlib.suppress(OSError, ValueError):
            placed = json.loads((folder / str(name)).read_text(encoding="utf-8"))
    return placed if isinstance(placed, list) else []


def rebuilt(path: Path) -> dict[str, Any]:
    """The run.json of the run in the folder `path` by its events; empty if metrics.jsonl does not have all of them."""
    events = stored_events(path)
    return fold_all(events) if _is_complete(events) else {}


def stored_events(path: Path) -> list[Event]:
    """The events of the run in the folder `path`; none if they cannot be read."""
    try:
        return EventReader(path / METRICS).read()
    except OSError:
        return []


def _is_complete(events: Sequence[Event]) -> bool:
    """Whether events add up to run.json: from its first one on, or from an event `result` on."""
    if any(event.kind == "result" for event in events):
        return True
    for event in events:
        if event.kind in CHANGES and event.data.get(IN_RUN_JSON) is not False:
            return event.kind in ("begun", "ended")  # earlier versions wrote neither of them to metrics.jsonl
    return False


def _length(raw: Any) -> tuple[Any, Any]:
    return raw.get("early_stopping"), raw.get("trainer", {}).get("epochs")


def write_config(folder: Path, raw: Mapping[str, Any]) -> None:
    """Writes the resolved configuration, which users and the processes of the run read. Raises RunFolderError."""
    with writing_to(folder):
        files.write_atomic(folder / CONFIG, OmegaConf.to_yaml(OmegaConf.create(dict(raw))), durable=True)


def in_use(path: Path, *, resumes: bool) -> Problem:
    """Another process runs the run, or the sweep, in `path`."""
    if resumes:
        shown = files.from_here(path)
        quoted = shlex.quote(str(shown))
        message = f"{shown} is running; to follow it: psrun watch {quoted}; to end it: psrun stop {quoted}"
        return Problem("resume", message)
    return Problem("hydra.run.dir", f"{path} is in use by a running run; choose another folder")


def cannot_be_made(folder: Path, error: OSError) -> PsrunError:
    """The error to raise if a run folder, or its first files, cannot be created."""
    if error.errno in CANNOT_GROW:
        return RunFolderError(folder, error)
    for run in (folder, *folder.parents):
        if RunFolder(run).has_run:
            message = f"{run} cannot be written to: {error.strerror or error}; resume a copy of it"
            return ConfigError([Problem("resume", message)])
    return wrong_folder("hydra.run.dir", folder, error)


def wrong_folder(key: str, folder: Path, error: OSError) -> ConfigError:
    """The error to raise if the folder that `key` names cannot be created or written to, and another one could."""
    message = f"{folder} cannot be created or written to: {error.strerror or error}; choose another folder"
    return ConfigError([Problem(key, message)])


def is_over(result: Mapping[str, Any]) -> bool:
    """Whether, by run.json, the run has ended and its chief must not restart."""
    code = result.get("exit_code")
    return result.get("status") == "completed" or (code is not None and 0 <= code < 128)


def flat(node: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of nested mappings by dotted key; lists are values."""
    values: dict[str, Any] = {}
    for name, value in node.items():
        if isinstance(value, dict) and value:
            values |= flat(value, f"{prefix}{name}.")
        else:
            # YAML parses 1e-05 as a string.
            is_float = isinstance(value, str) and _FLOAT.fullmatch(value)
            values[f"{prefix}{name}"] = float(value) if is_float else value
    return values


def is_needed(name: str) -> bool:
    """Whether a run needs a file of its folder to be resumed elsewhere, beside a checkpoint and run.json.

    Args:
      name: the path from the run folder, with /.
    """
    in_folders = name.startswith((f"{VOCABULARIES}/", f"{CHECKPOINTS}/{VOCABULARIES}/"))
    return in_folders or name in (CONFIG, *HYDRA, DATA, METRICS, FOLLOWING)


def read_name(folder: Path) -> str | None:
    """The name of the run or the sweep in a folder; None without one, or if the file is damaged."""
    if not os.path.exists(folder / NOTES):  # most runs have none
        return None
    record, _ = files.load_mapping(folder / NOTES)
    name = record.get("name")
    return name if isinstance(name, str) else None


def write_name(folder: Path, name: str) -> None:
    """Names the run or the sweep in a folder. Raises PsrunError if the file cannot be written."""
    record, _ = files.load_mapping(folder / NOTES)
    if record.get("name") == name:
        return
    text = json.dumps({**record, "name": name}, indent=2, ensure_ascii=False)
    try:
        files.write_atomic(folder / NOTES, text + "\n")
    except OSError as error:
        raise PsrunError(f"{folder / NOTES} cannot be written: {error.strerror or error}") from error


def record_submission(folder: Path, *, cluster: str, job: Mapping[str, str], status: str = PENDING) -> None:
    """Writes it. Raises OSError.

    Args:
      cluster: the kind of the cluster.
      job: the engine's job, as run.json has it in `process`.
    """
    values = {**job, "cluster": cluster, "status": status, "submitted_s": round(time.time(), 3)}
    files.write_atomic(folder / SUBMITTED, json.dumps(values) + "\n")


def submission(folder: Path) -> tuple[str | None, Mapping[str, Any]]:
    """The cluster and the job of the newest submission of the run in a folder; None and nothing without one."""
    values, _ = files.load_mapping(folder / SUBMITTED)
    job = {**values}
    for name in ("status", "submitted_s"):
        job.pop(name, None)
    cluster = job.pop("cluster", None)
    return (str(cluster) if cluster else None), job


def submitted_result(folder: Path) -> Mapping[str, Any]:
    """What is known of a submitted run that has not begun, as run.json would have it; empty if nothing is."""
    values, problem = files.load_mapping(folder / SUBMITTED)
    if problem or values.get("status") not in (PENDING, NOT_RUN):
        return {}
    cluster, job = submission(folder)
    return {
        "status": values["status"],
        "started_s": values.get("submitted_s"),
        "process": job,
        "cluster": {"topology": cluster},
    }
