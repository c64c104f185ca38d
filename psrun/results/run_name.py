"""The name of a run or a sweep (`run.name`): notes.json in its folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

from psrun import files
from psrun.errors import PsrunError
from psrun.results import reading

FILE = "notes.json"


def read(folder: Path) -> str | None:
    """The name of the run or the sweep in a folder; None without one, or if the file is damaged."""
    if not os.path.exists(folder / FILE):  # most runs have none
        return None
    record, _ = reading.loaded(folder / FILE)
    name = record.get("name")
    return name if isinstance(name, str) else None


def write(folder: Path, name: str) -> None:
    """Names the run or the sweep in a folder. Raises PsrunError if the file cannot be written."""
    record, _ = reading.loaded(folder / FILE)
    if record.get("name") == name:
        return
    text = json.dumps({**record, "name": name}, indent=2, ensure_ascii=False)
    try:
        files.write_atomic(folder / FILE, text + "\n")
    except OSError as error:
        raise PsrunError(f"{folder / FILE} cannot be written: {error.strerror or error}") from error
