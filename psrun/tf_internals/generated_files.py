"""The modules that AutoGraph writes: in a folder of each process, which its end removes, or another process later.

TensorFlow writes them to the folder for temporary files, and removes them when the interpreter exits: never after a
kill (TensorFlow 2.21). Imports no TensorFlow.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

from psrun import files
from psrun.tf_internals import replaced

_LOADER = "tensorflow.python.autograph.pyct.loader"
_PREFIX = "psrun-autograph-"  # of a folder that is locked as long as its process lives
_NEW = "psrun-new-"  # of a folder that is not locked yet

_folders: dict[int, Path] = {}  # by process id: a forked process makes its own


def keep_together() -> None:
    """Lets AutoGraph write to the folder of this process from now on, if it is imported."""
    loader = sys.modules.get(_LOADER)
    if loader is not None and not isinstance(loader.tempfile, types.SimpleNamespace):
        replaced.replace(loader, "tempfile", lambda _: types.SimpleNamespace(NamedTemporaryFile=_temporary_file))


def _temporary_file(**options: Any) -> Any:
    return tempfile.NamedTemporaryFile(dir=_own_folder(), **options)


def _own_folder() -> Path:
    """The folder of this process. The first call removes those of processes that were killed."""
    folder = _folders.get(os.getpid())
    if folder is None:
        remove_abandoned()
        new = Path(tempfile.mkdtemp(prefix=_NEW))
        files.hold(new)
        folder = new.rename(new.with_name(new.name.replace(_NEW, _PREFIX, 1)))
        _folders[os.getpid()] = folder
    return folder


def remove_own() -> None:
    """Removes the folder of this process, if there is one."""
    folder = _folders.pop(os.getpid(), None)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned() -> None:
    """Removes the folders of processes that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # of another user, or on a file system without locks
            if not files.is_locked(folder):
                shutil.rmtree(folder)
