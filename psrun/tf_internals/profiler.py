"""TensorFlow's profiler in a process that need not import TensorFlow's public API, as servers do not."""

from __future__ import annotations

import shutil
from pathlib import Path

from tensorflow.python.profiler import profiler_v2

_SUFFIX = ".xplane.pb"


def start(folder: Path) -> None:
    """Starts to profile this process; TensorFlow writes into the new folder `folder` at the end.

    Raises:
      tf.errors.AlreadyExistsError: the process is profiled already.
      OSError: the folder cannot be made.
    """
    folder.mkdir(parents=True)
    profiler_v2.start(str(folder))


def stop(folder: Path, file: Path) -> None:
    """Ends the profile, moves it to `file`, and removes `folder`. TensorFlow names files by host: of many tasks alike.

    Raises:
      tf.errors.UnavailableError: nothing is profiled.
      OSError: the file cannot be written.
    """
    profiler_v2.stop()
    (written,) = folder.rglob(f"*{_SUFFIX}")
    file.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(written, file)
    shutil.rmtree(folder)
