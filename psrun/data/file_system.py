"""The interface of a file system, and that of this machine."""

from __future__ import annotations

import glob
import io
import os
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class FileSystem:
    """Finds and reads files. Every function raises OSError on failure."""

    is_folder: Callable[[str], bool]
    glob: Callable[[str], list[str]]
    num_bytes: Callable[[str], int]
    modified_ns: Callable[[str], int]
    open: Callable[[str], io.RawIOBase]


def _unbuffered(name: str) -> io.RawIOBase:
    return io.FileIO(name)


LOCAL = FileSystem(os.path.isdir, glob.glob, os.path.getsize, lambda name: os.stat(name).st_mtime_ns, _unbuffered)
