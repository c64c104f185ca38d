"""The runs and sweeps below a folder, the one that a word on the command line means, and the state of each.

The state of a run follows from its run.json, metrics.jsonl and the heartbeats of its tasks.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil

from psrun import files, process
from psrun.config import choices, schema
from psrun.config.clusters import ClusterChoice, EngineJob
from psrun.config.groups import run_argument
from psrun.config.topology import CHIEF, Task
from psrun.errors import ConfigError, ExitCode
from psrun.results import events, run_folder, task_files
from psrun.results.events import METRICS, Event, Progress, event_of
from psrun.results.run_folder import CONFIG, OVER, RESULT
from psrun.results.task_files import Heartbeat, age_s

LEVELS = 3  # of folders: runs/SWEEPS/SWEEP/JOB
UNKNOWN = "unknown"
GONE = "gone"  # a run that has ended without recording a status
SWEEP = "sweep.json"
QUIET_S = 600.0  # a running run that writes nothing for so long has probably ended
_FRESH_S = 5.0  # tasks beat twice a second
_SILENT_S = 60.0  # other hosts see a change of a shared disk with a delay
_TAILS_BYTES = (64 * 1024, 4 * 1024 * 1024)  # of metrics.jsonl, searched for the last epoch: tasks have samples there
RUNS = Path("runs")  # where runs are without hydra.run.dir
WORD_HELP = f"its folder, its name, or the end of its folder's name below {RUNS}/"
_SHOWN = 5  # candidates in a message


def below(folder: Path) -> list[Path]:
    """The run folders in and below `folder`, but none inside a run folder."""
    if folder_entries(str(folder)) is None:
        return [folder]  # reading it as a run reports the reason
    return [Path(path) for path, is_sweep in walk(str(folder)) if not is_sweep]


def walk(root: str, *, levels: int = LEVELS) -> Iterator[tuple[str, bool]]:
    """The folders of runs and sweeps in and below `root`, and whether each is a sweep; a sweep before its jobs.

    A folder below `root` that cannot be read is taken for a run.
    """
    inner = folder_entries(root)
    names = {entry.name for entry in inner or ()}
    if holds_run(names) or (inner is None and levels < LEVELS):
        yield root, False
        return
    if SWEEP in names:
        yield root, True
    if not levels:
        return
    for entry in inner or ():
        if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
            yield from walk(entry.path, levels=levels - 1)


def folder_entries(folder: str) -> list[os.DirEntry[str]] | None:
    """What is in a folder; None if it cannot be read, nothing if it was removed."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except PermissionError:
        return None
    except OSError:
        return []


def holds_run(names: Set[str]) -> bool:
    """Whether a folder with entries of these names is a run folder."""
    return not names.isdisjoint((RESULT, METRICS, run_folder.SUBMITTED)) or {CONFIG, ".hydra"} <= names


def existing(folder: Path) -> Path:
    """`folder`. Raises ConfigError if it does not exist, or cannot be read."""
    require_readable(folder)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise ConfigError(f"{folder} is a file; name the run folder, such as {folder.parent}")
    raise ConfigError(f"there is no folder {folder} (current folder: {Path.cwd()})")


def require_readable(folder: Path) -> None:
    """Raises ConfigError if this user cannot look into a folder, or into one above it.

    `Path.exists` and `Path.is_dir` raise PermissionError there; the functions of `os.path` say no, for runs beside
    others.
    """
    try:
        is_folder = stat.S_ISDIR(folder.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise ConfigError(f"{folder} cannot be read: {error.strerror}") from error
    if is_folder and not os.access(folder, os.R_OK | os.X_OK):
        raise ConfigError(f"{folder} cannot be read: {os.strerror(errno.EACCES)}")


def printable(path: Path | str) -> str:
    """A path as printable text: bytes that are not UTF-8 are escaped as \\xff."""
    return os.fsencode(path).decode("utf-8", errors="backslashreplace")


def natural(text: str) -> list[tuple[int, int | str]]:
    """A key that sorts 2 before 10."""
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"(\d+)", text) if part]


@dataclass(frozen=True)
class RunState:
    """The state of a run at one moment.

    Attributes:
      path: the run folder.
      result: run.json; if it cannot be read, the result of folding the events of metrics.jsonl; without any, what is
        known of the submitted job.
      problem: why run.json cannot be read, in one line; else empty.
      beats: the heartbeats of its tasks; a run of one process has none.
      written_s: when anything was last written (`time.time`); 0 if nothing was.
      ended: whether the run is over, including what its tasks do at the end.
      gone: why the run must have ended without recording a status, in one line; else empty.
    """

    path: Path
    result: Mapping[str, Any]
    problem: str
    beats: Mapping[Task, Heartbeat]
    written_s: float
    ended: bool
    gone: str

    @property
    def quiet_s(self) -> float:
        """Seconds since anything was written; 0 if nothing was."""
        return time.time() - self.written_s if self.written_s else 0.0

    @property
    def status(self) -> str:
        """As in run.json, or unknown."""
        return str(self.result.get("status") or UNKNOWN)

    @property
    def outcome(self) -> str:
        """The status; 'gone' if the run has ended without recording one; 'paused' or 'pruned' if a search ended it."""
        if self.gone:
            return GONE
        state = files.as_mapping(self.result.get("search")).get("state")
        return str(state) if state and self.status == "interrupted" else self.status

    @property
    def shown_status(self) -> str:
        """The outcome; 'planned' for a folder that holds a plan and no run."""
        has_trained = self.result.get("metrics") or files.as_mapping(self.result.get("steps")).get("applied")
        if self.outcome == "completed" and self.result.get("mode") == "plan" and not has_trained:
            return run_folder.PLANNED
        return self.outcome

    @property
    def doing(self) -> str:
        """The phase that the chief of a running run reports, such as 'training'; else the status."""
        beat = self.beats.get(CHIEF)
        return beat.state if beat and self.status == "running" else self.status

    @cached_property
    def progress(self) -> Progress | None:
        """How far the training is, by the chief's heartbeat or else by the last epoch; None if neither is known."""
        return self.live_progress or _after_epoch(_last_epoch(self.path))

    @property
    def live_progress(self) -> Progress | None:
        """How far the training is, by the chief's heartbeat; None without one."""
        beat = self.beats.get(CHIEF)
        return beat.training if beat and not self.gone else None

    @property
    def metrics(self) -> dict[str, float]:
        """The newest value of each metric."""
        progress = self.progress
        values: dict[str, Any] = {}
        if progress is not None:
            values |= progress.metrics
        values |= files.as_mapping(self.result.get("metrics"))
        if progress is not None and progress.loss is not None and self.status == "running":
            values["loss"] = progress.loss
        return {name: float(value) for name, value in values.items() if files.as_number(value) is not None}

    @property
    def error(self) -> str:
        """The first line of the error or of the problem; empty without one."""
        message = files.as_mapping(self.result.get("error")).get("message")
        return str(message or self.gone or self.problem).partition("\n")[0]

    @property
    def engine(self) -> type[ClusterChoice]:
        """The choice of its cluster, which answers for the engine."""
        kind = files.as_mapping(self.result.get("cluster")).get("topology")  # recorded by the chief, after the start
        return choices.cluster_of_kind(kind or run_folder.submission(self.path)[0])

    def jobs(self) -> list[EngineJob]:
        """The jobs of the run that its engine has, the waiting ones first. It asks the engine.

        A run that has ended may have a job: one that was requeued, or submitted to resume it.

        Raises:
          PsrunError: the engine does not answer.
        """
        cluster, submitted = run_folder.submission(self.path)
        recorded = [submitted]
        # The job of a run that is over may go on with other work; it starts the run again only if psrun asked for that.
        if self.status not in OVER or self.result.get("exit_code") == ExitCode.RESTART:
            recorded.append(files.as_mapping(self.result.get("process")))
        found: list[EngineJob] = []
        for engine in dict.fromkeys([self.engine, choices.cluster_of_kind(cluster)]):
            found += engine.jobs(self.path, recorded)
        return found

    @property
    def resume_command(self) -> str:
        """The command that resumes the run on its engine."""
        return self.engine.resume_command(self.path, self.overrides)

    @property
    def overrides(self) -> list[str]:
        """The overrides of the command line."""
        overrides = self.result.get("overrides")
        return [str(each) for each in overrides] if isinstance(overrides, list) else []


def look(path: Path, *, supervised: bool = False) -> RunState:
    """The current state of the run in the folder `path`.

    Args:
      supervised: whether the caller runs it: then run.json alone decides whether it is over, and it is never gone.
    """
    result, problem = _recorded(path)
    beats = task_files.beats(path)
    written_s = _written_s(path)
    over = result.get("status") in OVER
    has_shared = os.path.exists(task_files.shared(path))
    alive = None
    if not supervised and (has_shared or not over):  # of most runs nothing is left that could be alive
        alive = is_alive(path, result)
    # Tasks may still work, such as on the last evaluation, or be about to be started again.
    has_tasks = has_shared and (alive or any(age_s(beat) < _FRESH_S for beat in beats.values()))
    ended = over and (supervised or not has_tasks)
    gone = ""
    if not (over or problem or supervised):
        gone = _gone(result, beats, time.time() - written_s, alive)
    return RunState(path, result, problem, beats, written_s, ended, gone)


def _recorded(path: Path) -> tuple[Mapping[str, Any], str]:
    """The result and the problem of a run; see `RunState`."""
    result, problem = files.load_mapping(path / RESULT)
    if problem:
        result = events.fold_all(run_folder.stored_events(path))
        if result.get("status"):  # all of run.json
            problem = ""
    if not result and not os.path.exists(path / RESULT):
        result = run_folder.submitted_result(path)
    return result, problem


def is_alive(path: Path, result: Mapping[str, Any]) -> bool | None:
    """Whether the process that the run was started as exists; None if that cannot be seen from this process."""
    pid = files.as_mapping(result.get("process")).get("pid")
    if not is_here(result) or not isinstance(pid, int):
        return None
    try:
        return process_of(path, result) is not None
    except (psutil.Error, OSError):
        return None


def process_of(path: Path, result: Mapping[str, Any]) -> psutil.Process | None:
    """The process on this host that the run, or the sweep, was started as; None if it has ended.

    Args:
      result: the content of run.json or sweep.json, which has the `process`.

    Raises:
      OSError, psutil.Error: it cannot be seen.
    """
    try:
        os_process = psutil.Process(result["process"]["pid"])
        # A process that was created after the file was written only reuses the number.
        written_s = max(result_changed_s(path), files.changed_s(path / SWEEP))
        is_other = os_process.create_time() > written_s + 1
        return None if is_other or os_process.status() == psutil.STATUS_ZOMBIE else os_process
    except psutil.NoSuchProcess:
        return None


def is_here(result: Mapping[str, Any]) -> bool:
    """Whether the process ids of the run are valid in this process: the same host and PID namespace."""
    recorded = files.as_mapping(result.get("process"))
    return {name: recorded.get(name) for name in ("host", "pid_namespace")} == process.place()


def result_changed_s(path: Path) -> float:
    """When the result of the run in the folder `path` changed last (`time.time`); 0 if no run has begun there.

    A run.json that is lost is as old as the events that it is rebuilt from.
    """
    return files.changed_s(path / RESULT) or files.changed_s(path / METRICS)


def _written_s(path: Path) -> float:
    shared = task_files.shared(path)
    beats = [shared / name for name in task_files.names(shared) if name.endswith(".json")]
    return max(files.changed_s(file) for file in (path / RESULT, path / METRICS, *beats))


def _gone(result: Mapping[str, Any], beats: Mapping[Task, Heartbeat], quiet_s: float, alive: bool | None) -> str:
    if alive is False and quiet_s > _FRESH_S:
        return f"its process {result['process']['pid']} exited without recording a status"
    if alive is None and beats and quiet_s > _SILENT_S:
        return f"none of its tasks sent a heartbeat for {quiet_s:.0f} s"
    return ""


def _last_epoch(path: Path) -> Event | None:
    for tail_bytes in _TAILS_BYTES:
        try:
            with (path / METRICS).open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - tail_bytes))
                lines = file.read().splitlines()
        except OSError:
            return None
        for line in reversed(lines):
            event = event_of(line) if b'"epoch"' in line else None
            if event is not None and event.kind == "epoch":
                return event
        if size <= tail_bytes:
            break
    return None


def nothing_to_train(path: Path, raw: Mapping[str, Any]) -> str:
    """Why the completed run in `path` trains no step if it is resumed with the configuration `raw`, and what to change.

    Returns:
      Empty if the run is not completed, if `raw` is not what it recorded, or if it may have steps left: one of Keras'
      callbacks may have ended it.
    """
    folder = run_folder.RunFolder(path)
    if folder.stored().get("status") != "completed" or not folder.has_configuration(raw):
        return ""
    shown = Path(shown_path(path))
    last = _last_epoch(path)
    done = 0 if last is None else last.data.get("epoch", 0)
    if folder.ends_early():
        why = folder.why_ends_early
        return f"the run was ended early ({why}); to train on, change trainer.epochs or early_stopping"
    if not done or done < raw["trainer"]["epochs"]:
        return ""
    engine = choices.cluster_of_kind(files.as_mapping(raw.get("cluster")).get("kind"))
    overrides = look(path, supervised=True).overrides
    more = engine.resume_command(shown, overrides, [f"trainer.epochs={2 * done}"])
    return f"the run was complete after epoch {done}; to train on, set trainer.epochs higher: {more}"


def _after_epoch(epoch: Event | None) -> Progress | None:
    """The progress of the training at the end of an epoch; None if nothing is known."""
    if epoch is None or not epoch.step:
        return None
    data = epoch.data
    try:
        steps = round(epoch.step * data["epochs"] / data["epoch"])
        metrics = dict(data["metrics"])
        loss = metrics.pop("loss", None)
        rates: tuple[float | None, float | None] = (None, None)
        if "virtual" not in data:
            rates = (float(data["steps_per_s"]), float(data["examples_per_s"]))
        return Progress(data["epoch"], data["epochs"], epoch.step, steps, *rates, loss, metrics)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None


def resolve(word: str) -> Path:
    """The folder that a word on the command line means: an existing folder, or see `find_named`.

    Raises:
      ConfigError: there is none, or there are several; names the candidates.
    """
    path = Path(word).expanduser()
    if os.path.exists(path):
        return existing(path)
    folder = find_named(word)
    if folder is not None:
        return folder
    try:
        return existing(path)
    except ConfigError as error:
        raise ConfigError(f"{error}{guess(word)}") from error


def find_named(word: str) -> Path | None:
    """The run or sweep below runs/ that a word means; None if there is none, or if the word is an existing path.

    That is the one with this folder name or this name (`run.name`), else the only one whose folder ends so, else job 3
    of such a sweep for NAME/3. A sweep stands for its jobs of the same name.

    Raises:
      ConfigError: there are several; names them.
    """
    end = word.strip("/")
    if not end or os.path.exists(Path(word).expanduser()):
        return None
    there = [Path(folder) for folder, _ in walk(str(RUNS))]
    matches = _outermost([folder for folder in there if end in (folder.name, run_folder.read_name(folder))])
    matches = matches or _outermost([folder for folder in there if folder.as_posix().endswith(end)])
    if not matches:
        return _inside(end)
    if len(matches) > 1:
        shown = ", ".join(map(printable, sorted(matches)[:_SHOWN]))
        if len(matches) > _SHOWN:
            shown += f" and {len(matches) - _SHOWN} more"
        raise ConfigError(f"'{word}' is ambiguous: {shown}; name the folder, or more of its end")
    return matches[0]


def _inside(word: str) -> Path | None:
    """The job of a sweep that NAME/JOB means; None if there is none."""
    name, _, job = word.partition("/")
    sweep = find_named(name) if job else None
    return sweep / job if sweep is not None and os.path.isdir(sweep / job) else None


def resolve_run(word: str) -> Path:
    """The folder of a run or of a sweep, see `resolve`. Raises ConfigError also for a folder that holds neither."""
    folder = resolve(word)
    try:
        names = set(os.listdir(folder))
    except OSError as error:
        raise ConfigError(f"{folder} cannot be read: {error.strerror or error}") from error
    if not holds_run(names) and SWEEP not in names:
        raise ConfigError(
            f"{folder} is neither a run nor a sweep; psrun list {folder} shows those below it; name one of these"
        )
    return folder


def shown_path(folder: Path) -> str:
    """A folder for users: from the current folder if it is below it."""
    return printable(files.from_here(folder))


def resume_command(folder: Path) -> str:
    """The command that resumes the run or the sweep in `folder`; empty for a run that does not train."""
    here = Path(shown_path(folder))
    if os.path.exists(folder / SWEEP):
        return f"psrun resume {run_argument(here)}"
    now = look(here)
    return now.resume_command if now.result.get("mode", "train") == "train" else ""


def guess(word: str) -> str:
    """The end of the message for a word that no run below runs/ has as its name; empty without runs."""
    there = [Path(folder) for folder, _ in walk(str(RUNS))]
    if not there:
        return ""
    known = {printable(folder) for folder in there} | {folder.name for folder in there}
    known |= {name for folder in there if (name := run_folder.read_name(folder)) is not None}
    near = schema.did_you_mean(word, known)
    hint = near if near.startswith(" Did") else f" psrun list shows the runs below {RUNS}/."
    return f", and no run below {RUNS}/ has this name or this end.{hint}"


def _outermost(folders: list[Path]) -> list[Path]:
    """The folders that are not inside another one of them."""
    return [folder for folder in folders if not any(other in folder.parents for other in folders)]
