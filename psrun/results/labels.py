"""The name, the notes and the marks of a run or a sweep: notes.json in its folder, which people and runs change."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from psrun import files
from psrun.errors import ConfigError, PsrunError
from psrun.results import reading

FILE = "notes.json"
_LOCK = ".notes.lock"  # notes.json itself is replaced
_LOCK_WITHIN_S = 10.0
_MARK = re.compile(r"\w[\w.:/-]*")


@dataclass(frozen=True)
class Note:
    """A note, and when it was written, as of `time.time`."""

    at_s: float
    text: str


@dataclass(frozen=True)
class Labels:
    """What people call a run, and what they say about it.

    Attributes:
      name: from `run.name`; None without one.
      notes: in the order in which they were written.
      marks: words, sorted.
    """

    name: str | None = None
    notes: tuple[Note, ...] = ()
    marks: tuple[str, ...] = ()

    @property
    def texts(self) -> str:
        """All notes as one text."""
        return "; ".join(note.text for note in self.notes)


def read(folder: Path) -> Labels:
    """The labels in a folder; none where the file is missing or damaged."""
    return _parsed(folder)[0]


def note(folder: Path, text: str) -> Labels:
    """Adds a note. Raises as `change`; ConfigError if the text is empty."""
    text = text.strip()
    if not text:
        raise ConfigError("the note is empty; write psrun note RUN 'TEXT'")
    added = Note(round(time.time(), 3), text)
    return change(folder, lambda labels: replace(labels, notes=(*labels.notes, added)))


def mark(folder: Path, *, add: set[str], remove: set[str]) -> Labels:
    """Adds and removes marks. Raises as `change`."""

    def marked(labels: Labels) -> Labels:
        return replace(labels, marks=tuple(sorted({*labels.marks, *add} - remove)))

    return change(folder, marked)


def rename(folder: Path, name: str) -> Labels:
    """Names a run. Raises as `change`."""
    return change(folder, lambda labels: replace(labels, name=name))


def is_mark(text: str) -> bool:
    """Whether a text can be a mark: letters, digits and . : / _ -, with a letter, a digit or _ first."""
    return bool(_MARK.fullmatch(text))


def change(folder: Path, changed: Callable[[Labels], Labels]) -> Labels:
    """Replaces the labels in a folder by `changed` of them; other processes that change them wait.

    Raises:
      PsrunError: the file is damaged, cannot be written, or is locked by another process for too long.
    """
    descriptor = None
    try:
        descriptor = _locked(folder)
        before, problem = _parsed(folder)
        if problem:
            raise PsrunError(f"{folder / FILE} cannot be changed: {problem}; repair or remove it")
        after = changed(before)
        if after != before:
            files.write_atomic(folder / FILE, json.dumps(asdict(after), indent=2, ensure_ascii=False) + "\n")
        return after
    except OSError as error:
        raise PsrunError(f"{folder / FILE} cannot be written: {error.strerror or error}") from error
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _locked(folder: Path) -> int | None:
    """A descriptor that holds the lock of the labels; None on a file system without locks.

    Raises:
      OSError: the folder cannot be written.
      PsrunError: another process holds the lock for too long.
    """
    path = folder / _LOCK
    path.touch()
    try:
        descriptor = files.lock(path, within_s=_LOCK_WITHIN_S)
    except OSError:
        return None
    if descriptor is None:
        raise PsrunError(f"another process has locked {path} for {_LOCK_WITHIN_S:.0f} s; try again")
    return descriptor


def _parsed(folder: Path) -> tuple[Labels, str]:
    """The labels, and in one line what is wrong with the file."""
    if not os.path.exists(folder / FILE):  # most runs have none
        return Labels(), ""
    record, problem = reading.loaded(folder / FILE)
    name = record.get("name")
    marks = record.get("marks")
    notes = [
        Note(reading.number(each.get("at_s")) or 0.0, str(each.get("text", "")))
        for each in reading.entries(record.get("notes"))
    ]
    return (
        Labels(
            name if isinstance(name, str) else None,
            tuple(notes),
            tuple(sorted(map(str, marks))) if isinstance(marks, list) else (),
        ),
        problem,
    )
