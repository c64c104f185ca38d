"""Locks on files and folders that the kernel lets go of with the process that holds them."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def take(path: Path) -> int | None:
    """Locks what is at `path`.

    Returns:
      A descriptor that holds the lock until it is closed or the process ends; None where somebody else has it.

    Raises:
      OSError: there is nothing at `path`, or its file system knows no locks.
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


def is_taken(path: Path) -> bool:
    """Whether somebody holds the lock. Raises OSError as `take` does."""
    descriptor = take(path)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False
