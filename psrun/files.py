"""Atomic writes, removal of folders, locks that the kernel releases with their process, and patterns in paths."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
from pathlib import Path

_PATTERN = re.compile(r"[*?\[\]\\]")


def is_pattern(path: Path) -> bool:
    """Whether TensorFlow takes a path for a pattern where it reads checkpoints and models."""
    return bool(_PATTERN.search(str(path)))


def write_atomic(path: Path, text: str, *, durable: bool = False) -> None:
    """Replaces the file at `path` atomically. Raises OSError on failure; the file is then unchanged.

    Args:
      durable: whether to sync the file to disk before returning.
    """
    # Processes of several hosts may write the same file; those of containers have the same numbers.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
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
    """Syncs the file, or the entries of the folder, at `path` to disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_tree(path: Path) -> None:
    """Removes a folder with its contents, and its parent if that is then empty. Raises nothing."""
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.parent.rmdir()


def lock(path: Path) -> int | None:
    """Locks the file or folder at `path`.

    Returns:
      A descriptor that holds the lock until it is closed or the process ends; None if another process holds it.

    Raises:
      OSError: `path` does not exist, or its file system does not support locks.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock. Raises OSError as `lock` does."""
    descriptor = lock(path)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False
