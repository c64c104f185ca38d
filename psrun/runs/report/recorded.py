"""What two runs are compared by: the values that they recorded, and which of these differ."""

from __future__ import annotations

from collections.abc import Mapping
from math import isclose
from typing import Any

from rich.filesize import decimal

from psrun.results.reading import mapping, number
from psrun.runs.report import rows

ABSENT = "-"  # what is shown for a value that a run does not have
MEMORY = "hardware memory_bytes"
_TOLERANCES = {MEMORY: 0.01}  # relative; a kernel keeps a little more or less memory for itself
_DIGITS = 12  # of a hash that are shown

Values = Mapping[str, Any]


def environment(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the key `environment` of run.json by name: python, 'hardware NAME', 'package NAME'."""
    values: dict[str, Any] = {"python": recorded.get("python")}
    for name, value in mapping(recorded.get("hardware")).items():
        values[f"hardware {name}"] = value
    for name, version in sorted(mapping(recorded.get("packages")).items()):
        values[f"package {name}"] = version
    return values


def file_identity(entry: Mapping[str, Any]) -> Any:
    """What identifies the content of a file in `data.hashes` of run.json: its hash, or its version in a store."""
    return entry.get("sha256", entry.get("version"))


def differing(first: Values, second: Values, *, tolerance: float = 0.0) -> dict[str, tuple[Any, Any]]:
    """Both values by name where they differ; None for a value that one side does not have.

    Args:
      tolerance: the relative difference up to which numbers are equal.
    """
    found = {}
    for name in {**first, **second}:
        pair = first.get(name), second.get(name)
        if not _are_equal(*pair, tolerance=_TOLERANCES.get(name, tolerance)):
            found[name] = pair
    return found


def _are_equal(first: Any, second: Any, *, tolerance: float) -> bool:
    if not rows.differs((first, second)):
        return True
    if number(first) is None or number(second) is None:
        return False
    return tolerance > 0 and isclose(first, second, rel_tol=tolerance)


def text(name: str, value: Any) -> str:
    """A value of `environment` as text."""
    if value is None:
        return ABSENT
    if name == MEMORY and number(value) is not None:
        return decimal(int(value))
    return rows.shown(value)


def file_text(entry: Mapping[str, Any] | None) -> str:
    """An entry of `data.hashes` of run.json as text; None for a file that does not exist."""
    if entry is None:
        return "not found"
    if "version" in entry:
        return f"version {entry['version']}"
    digest = str(entry.get("sha256") or ABSENT)[:_DIGITS]
    size = number(entry.get("bytes"))
    if size is None:
        return f"sha256 {digest}"
    return f"{int(size):,} bytes, sha256 {digest}"
