"""Finds run folders below the given folders and reads them as far as possible."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from psrun.errors import ConfigError
from psrun.results.run_folder import CONFIG, RESULT, flat
from psrun.results.task_files import names, shared

METRICS = "metrics.jsonl"
UNKNOWN = "unknown"
_LEVELS = 3  # runs/SWEEPS/SWEEP/JOB
QUIET_S = 600.0
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a thousand files: the one in C is twenty times as quick


@dataclass(frozen=True)
class Run:
    """A run, as read from its folder.

    Attributes:
      path: the folder.
      name: the folder, as far as it is not the same for all runs of the report.
      config: what was run, resolved: values by dotted key, such as 'cluster.num_workers'.
      result: run.json; empty where it cannot be read.
      problem: what is missing or cannot be read, in a line; empty where all is there.
    """

    path: Path
    name: str
    config: Mapping[str, Any]
    result: Mapping[str, Any]
    problem: str

    @property
    def status(self) -> str:
        return str(self.result.get("status") or UNKNOWN)

    @property
    def error(self) -> str:
        """The error of the run, or the problem of its folder, in one line; empty without one."""
        error = mapping(self.result.get("error"))
        message = f"{error.get('type', 'error')}: {error.get('message', '')}" if error else self.problem
        return re.sub(r"\s+", " ", message).strip()

    @property
    def overrides(self) -> dict[str, str]:
        """The overrides of the command line, by key."""
        overrides = self.result.get("overrides")
        pairs = [str(each).partition("=") for each in overrides] if isinstance(overrides, list) else []
        return {key.lstrip("+~").partition("@")[0]: value for key, _, value in pairs}


def mapping(value: Any) -> Mapping[str, Any]:
    """`value` where it is a mapping; an empty one where another version of psrun, or damage, left something else."""
    return value if isinstance(value, dict) else {}


def number(value: Any) -> float | None:
    """`value` where it is a finite number; psrun itself writes none else."""
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if plain and abs(value) <= sys.float_info.max else None


def parsed(text: str | bytes) -> Any:
    """Parses JSON; NaN and infinities, which are not valid JSON, become null. Raises ValueError."""
    return json.loads(text, parse_constant=lambda _: None, parse_float=lambda digits: number(float(digits)))


def find(folders: Sequence[Path]) -> list[Run]:
    """All runs in and below `folders`, each once, in the order of the names, with numbers in theirs.

    Raises:
      ConfigError: a folder is not there, or there is no run in it.
    """
    found: dict[Path, None] = {}
    for folder in folders:
        here = list(below(existing(folder).resolve(), _LEVELS))
        if not here:
            raise ConfigError(
                f"there is no run in {folder}, nor up to {_LEVELS} levels below; name a run folder (with {RESULT}), "
                "a sweep folder, or a parent of these, such as runs/"
            )
        found |= dict.fromkeys(here)
    base = Path(os.path.commonpath([path.parent for path in found]))
    named = {path: printable(path.relative_to(base)) for path in found}
    return [_read(path, name) for path, name in sorted(named.items(), key=lambda each: natural(each[1]))]


def printable(path: Path) -> str:
    """A path as printable text: bytes that are not UTF-8 are escaped as \\xff."""
    return os.fsencode(path).decode("utf-8", errors="backslashreplace")


def natural(text: str) -> list[tuple[int, int | str]]:
    """A key that sorts 2 before 10."""
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"(\d+)", text) if part]


def events(run: Run) -> tuple[list[dict[str, Any]], str]:
    """The events of a run, and what of them cannot be read, in a line; empty where all can."""
    try:
        lines = (run.path / METRICS).read_bytes().splitlines()
    except FileNotFoundError:
        return [], f"no {METRICS}"
    except OSError as error:
        return [], f"{METRICS} cannot be read: {error.strerror}"
    found, broken = [], 0
    for line in lines:
        try:
            event = parsed(line)
        except ValueError:
            event = None
        if isinstance(event, dict) and "event" in event:
            found.append(event)
        else:
            broken += 1
    running = broken == 1 and run.status == "running"  # the last line is on its way
    return found, f"{broken} of {len(lines)} lines of {METRICS} cannot be read" if broken and not running else ""


def existing(folder: Path) -> Path:
    """`folder`. Raises ConfigError where there is none."""
    if folder.is_dir():
        return folder
    if folder.exists():
        raise ConfigError(f"{folder} is a file; name the run folder, such as {folder.parent}")
    raise ConfigError(f"there is no folder {folder}")


def below(folder: Path, levels: int = _LEVELS) -> Iterator[Path]:
    """The folders of runs in and below `folder`, but none inside of a run."""
    try:
        entries = list(os.scandir(folder))
    except OSError:  # reading it as a run reports the reason
        yield folder
        return
    names = {entry.name for entry in entries}
    if RESULT in names or METRICS in names or {CONFIG, ".hydra"} <= names:
        yield folder
    elif levels:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                yield from below(Path(entry.path), levels - 1)


def _read(path: Path, name: str) -> Run:
    result, problem = loaded(path / RESULT, parsed)
    config, other = loaded(path / CONFIG, lambda text: yaml.load(text, Loader=_LOADER))
    if problem == f"no {RESULT}":
        problem += ": the run has not started, or ended before writing it"
    run = Run(path, name, flat(config), result, "; ".join(filter(None, (problem, other))))
    if not config:
        run = Run(path, name, {key: _parsed(text) for key, text in run.overrides.items()}, result, run.problem)
    silent_s = quiet_s(path) if run.status == "running" else 0
    if silent_s > QUIET_S:
        stale = f"has the status running, but wrote nothing for {silent_s / 3600:.1f} h"
        run = Run(path, name, run.config, result, stale)
    return run


def loaded(file: Path, parse: Any) -> tuple[Mapping[str, Any], str]:
    """The mapping in a file, and why there is none."""
    try:
        value = parse(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, f"no {file.name}"
    except OSError as error:
        return {}, f"{file.name} cannot be read: {error.strerror}"
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        reason = str(error).partition("\n")[0]
        return {}, f"{file.name} is damaged: {reason}"
    return (value, "") if isinstance(value, dict) else ({}, f"{file.name} is damaged: it is not a mapping")


def _parsed(text: str) -> Any:
    try:
        return yaml.load(text, Loader=_LOADER)
    except yaml.YAMLError:
        return text


def quiet_s(path: Path) -> float:
    """Seconds since anything of a run was written."""
    newest_s = 0.0
    beats = [shared(path) / name for name in names(shared(path)) if name.endswith(".json")]
    for file in (path / RESULT, path / METRICS, *beats):
        with contextlib.suppress(OSError):
            newest_s = max(newest_s, file.stat().st_mtime)
    return time.time() - newest_s if newest_s else 0.0
