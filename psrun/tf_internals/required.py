"""Errors for private names that no longer exist."""

from __future__ import annotations

import importlib
from typing import Any


def require(holder: Any, *names: str) -> None:
    """Checks private names that are about to be assigned: Python would make a new attribute of one that is gone.

    Raises:
      RuntimeError: `holder` lacks one of the names.
    """
    missing = [name for name in names if not hasattr(holder, name)]
    if missing:
        kind = holder if isinstance(holder, type) else type(holder)
        metadata = importlib.import_module("importlib.metadata")  # 45 ms of each command that needs no name
        versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("tensorflow", "tf-keras"))
        raise RuntimeError(f"{kind.__module__}.{kind.__qualname__} has no {', '.join(missing)}; installed: {versions}")
