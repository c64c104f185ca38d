"""Finds run folders below a folder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from psrun.errors import ConfigError
from psrun.results.journal import METRICS
from psrun.results.run_folder import CONFIG, RESULT

LEVELS = 3  # runs/SWEEPS/SWEEP/JOB


def below(folder: Path, levels: int = LEVELS) -> Iterator[Path]:
    """The run folders in and below `folder`, but none inside a run folder."""
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


def existing(folder: Path) -> Path:
    """`folder`. Raises ConfigError if it does not exist."""
    if folder.is_dir():
        return folder
    if folder.exists():
        raise ConfigError(f"{folder} is a file; name the run folder, such as {folder.parent}")
    raise ConfigError(f"there is no folder {folder} (current folder: {Path.cwd()})")


def printable(path: Path) -> str:
    """A path as printable text: bytes that are not UTF-8 are escaped as \\xff."""
    return os.fsencode(path).decode("utf-8", errors="backslashreplace")


def natural(text: str) -> list[tuple[int, int | str]]:
    """A key that sorts 2 before 10."""
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"(\d+)", text) if part]
