"""Files that readers see whole: as they were before, or as they are after."""

from __future__ import annotations

import os
from pathlib import Path


def write(path: Path, text: str) -> None:
    """Replaces the file at `path` in one step. Raises OSError where it cannot; then nothing has changed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
