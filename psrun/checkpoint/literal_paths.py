"""Paths under which TensorFlow can read a checkpoint in a folder such as `runs/a[1]`."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from psrun.errors import ConfigError, Problem
from psrun.files import is_pattern

_NAME = "checkpoint"


@contextlib.contextmanager
def literal(prefix: str) -> Iterator[str]:
    """A prefix for the checkpoint at `prefix` that is not a pattern. Read everything within the context.

    TensorFlow's readers search the files that match the prefix as a pattern, and then open the prefix itself: it cannot
    be escaped (TensorFlow 2.21). Links to the files are created in a folder beside the folder whose name is a pattern,
    so that servers on other hosts find them, too.

    Raises:
      ConfigError: links cannot be created there.
    """
    path = Path(os.path.abspath(prefix))
    if not is_pattern(path):
        yield prefix
        return
    beside = next(parent for parent in path.parents if not is_pattern(parent))
    try:
        folder = Path(tempfile.mkdtemp(prefix=".psrun-", dir=beside))
    except OSError as error:
        raise _unreadable(path, beside, error) from error
    try:
        for file in path.parent.iterdir():
            if file.name.startswith(f"{path.name}."):
                (folder / f"{_NAME}{file.name.removeprefix(path.name)}").symlink_to(file)
        yield str(folder / _NAME)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unreadable(path: Path, beside: Path, error: OSError) -> ConfigError:
    remedy = f"rename the folder (links to the files cannot be created in {beside}: {error.strerror})"
    message = f"TensorFlow takes {path} for a pattern, and cannot read checkpoints there: {remedy}"
    return ConfigError([Problem("hydra.run.dir", message)])
