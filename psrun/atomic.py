"""Files that readers see whole, as they were before or as they are after, and folders that are removed whole."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path


def write(path: Path, text: str, *, durable: bool = False) -> None:
    """Replaces the file at `path` in one step. Raises OSError where it cannot; then nothing has changed.

    Args:
      durable: whether it must be on disk, and not only on its way there, when this returns.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        if durable:
            sync(temporary)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync(path.parent)


def sync(path: Path) -> None:
    """Returns once the file, or the names in the folder, at `path` are on disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_tree(path: Path) -> None:
    """Removes a folder with all that it holds, and the folder above it where that is empty then. Raises nothing."""
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.parent.rmdir()
