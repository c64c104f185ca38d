"""Files: atomic writes, removal of folders, locks that the kernel releases with their process, patterns in paths, and
reading what may be missing, damaged, or written by another version of psrun.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from psrun.errors import ConfigError, Problem

_LOCK_EVERY_S = 0.05
_ELSEWHERE = re.compile(r"://|^[A-Za-z][A-Za-z0-9+.-]*:[/\\]")
_PATTERN = re.compile(r"[*?\[\]\\]")


def not_on_disk(key: str, path: Any) -> Problem | None:
    """The problem of a path with a scheme, such as gs://BUCKET, or a drive where psrun writes; None without one.

    Without this, it would be a folder `gs:` in the current folder.
    """
    if not isinstance(path, str | Path) or not _ELSEWHERE.search(str(path)):
        return None
    return Problem(key, f"is {str(path)!r}, must be a path on a mounted disk")


def require_on_disk(key: str, path: Any) -> None:
    """Raises ConfigError for a path that is `not_on_disk`."""
    problem = not_on_disk(key, path)
    if problem is not None:
        raise ConfigError([problem])


def on_disk(text: str) -> Path:
    """The type of an argument of a command: a path where it writes. Raises argparse.ArgumentTypeError."""
    problem = not_on_disk("", text)
    if problem is not None:
        raise argparse.ArgumentTypeError(problem.message)
    return Path(text)


def user_cache() -> Path:
    """The user's cache folder, for all runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "psrun"


def from_here(path: Path) -> Path:
    """A path from the current folder if it is below it; else the path as it is."""
    try:
        return path.absolute().relative_to(Path.cwd())
    except ValueError:
        return path


def is_pattern(path: Path) -> bool:
    """Whether TensorFlow takes a path for a pattern where it reads checkpoints and models."""
    return bool(_PATTERN.search(str(path)))


def file_name(name: str) -> str:
    """A name for a file, another one for each `name`, which may have slashes."""
    return name.replace("%", "%25").replace("/", "%2F")


def write_atomic(path: Path, text: str, *, durable: bool = False) -> None:
    """Replaces the file at `path` atomically. Raises OSError on failure; the file is then unchanged.

    Args:
      durable: whether to sync the file to disk before returning.
    """
    with put_whole(path) as part:
        part.write_text(text, encoding="utf-8")
        if durable:
            sync(part)
    if durable:
        sync(path.parent)


@contextlib.contextmanager
def put_whole(path: Path) -> Iterator[Path]:
    """Yields a path beside `path` to write a file or a folder to: it is renamed at the end, and removed after an error.

    A file replaces the file at `path`, but a folder none with content.

    Raises:
      OSError: it cannot be renamed.
    """
    # Processes of several hosts may write the same file; processes of containers have the same numbers.
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        yield part
        part.replace(path)
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(part) if part.is_dir() else part.unlink(missing_ok=True)


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


def lock(path: Path, *, within_s: float = 0.0, on_wait: Callable[[], None] = lambda: None) -> int | None:
    """Locks the existing file or folder at `path`. The kernel releases the lock with the process.

    Args:
      within_s: how long to wait for another process that holds the lock.
      on_wait: called repeatedly meanwhile.

    Returns:
      A descriptor that holds the lock until it is closed; None if another process holds it.

    Raises:
      OSError: `path` does not exist, or its file system does not support locks.
    """
    # Emulated locks, as on NFS, need a file that is open for writing.
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    deadline_s = time.monotonic() + within_s
    try:
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            if time.monotonic() >= deadline_s:
                os.close(descriptor)
                return None
            on_wait()
            time.sleep(_LOCK_EVERY_S)
    except BaseException:
        os.close(descriptor)
        raise


def hold(path: Path, *, within_s: float = 0.0) -> bool:
    """Locks a file or folder as `lock` does, until this process ends.

    Returns:
      False if another process holds the lock. A file system without locks does not keep others out: then True.
    """
    try:
        return lock(path, within_s=within_s) is not None
    except OSError:
        return True


@contextlib.contextmanager
def alone(path: Path, *, within_s: float, on_wait: Callable[[], None] = lambda: None) -> Iterator[bool]:
    """Holds the lock of a file in the context, as `lock` does; creates the file.

    Yields:
      False without the lock: another process held it for too long, or the file system has no locks.
    """
    path.touch()
    descriptor = None
    with contextlib.suppress(OSError):
        descriptor = lock(path, within_s=within_s, on_wait=on_wait)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock. Raises OSError as `lock` does."""
    descriptor = lock(path)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


def is_in_use(path: Path) -> bool:
    """Whether a process holds the lock, as far as can be seen; False without a file or folder."""
    try:
        return is_locked(path)
    except OSError:  # a file system without locks
        return False


def as_mapping(value: Any) -> Mapping[str, Any]:
    """`value` if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_mappings(value: Any) -> list[Mapping[str, Any]]:
    """The mappings in `value` if it is a list, else none."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def as_number(value: Any) -> float | None:
    """`value` if it is a finite number, else None."""
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if plain and abs(value) <= sys.float_info.max else None


def parse_json(text: str | bytes) -> Any:
    """Parses JSON; NaN and infinities, which are not valid JSON, become None. Raises ValueError."""
    return json.loads(text, parse_constant=lambda _: None, parse_float=lambda digits: as_number(float(digits)))


def load_mapping(file: Path, parse: Callable[[str], Any] = parse_json) -> tuple[Mapping[str, Any], str]:
    """The mapping in a file, and in one line why there is none."""
    try:
        value = parse(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, f"no {file.name}"
    except OSError as error:
        return {}, f"{file.name} cannot be read: {error.strerror}"
    except (ValueError, RecursionError) as error:
        reason = str(error).partition("\n")[0]
        return {}, f"{file.name} is damaged: {reason}"
    return (value, "") if isinstance(value, dict) else ({}, f"{file.name} is damaged: it is not a mapping")


def changed_s(path: Path) -> float:
    """When a file or folder was last changed, in seconds of `time.time`; 0 if it does not exist."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
