"""What two runs are compared by: the values that they recorded, and which of these differ."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from math import isclose
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from psrun.files import as_mapping, as_number
from psrun.runs.report import rows

ABSENT = "-"  # what is shown for a value that a run does not have
MEMORY = "hardware memory_bytes"
CHANGES = "uncommitted changes"
_COPIES = ("diff", "modules")  # of `code`: paths of files
_TOLERANCES = {MEMORY: 0.01}  # relative; a kernel keeps a little more or less memory for itself
_DIGITS = 12  # of a hash that are shown

Values = Mapping[str, Any]


def environment(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the key `environment` of run.json by name: python, 'hardware NAME', 'package NAME'."""
    values: dict[str, Any] = {"python": recorded.get("python")}
    for name, value in as_mapping(recorded.get("hardware")).items():
        values[f"hardware {name}"] = value
    for name, version in sorted(as_mapping(recorded.get("packages")).items()):
        values[f"package {name}"] = version
    return values


def copies(facts: Mapping[str, Any]) -> dict[str, str]:
    """The paths of the files that `code` of run.json names, by what they are: CHANGES, 'module NAME'."""
    paths: dict[str, str] = {}
    if facts.get("diff"):
        paths[CHANGES] = str(facts["diff"])
    for name, path in as_mapping(facts.get("modules")).items():
        paths[module(name)] = str(path)
    return paths


def module(name: str) -> str:
    """What a copied module is called among the values of `code`."""
    return f"module {name}"


def code(folder: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the key `code` of run.json by name: commit, dirty and others, then the contents of `copies`.

    Args:
      folder: of the run.
      facts: the key `code`.
    """
    values = {name: value for name, value in facts.items() if name not in _COPIES}
    for name, path in copies(facts).items():
        values[name] = content(folder / path, called=path)
    return values


def content(path: Path, *, called: str) -> str:
    """The content of a file of text, as `decoded`; or why `called` cannot be read."""
    try:
        return decoded(path.read_bytes())
    except OSError as error:
        return f"{called} cannot be read: {error.strerror}"


def decoded(text: bytes) -> str:
    """Text of a file; bytes that are not UTF-8 are escaped, so that different files have different texts."""
    return text.decode("utf-8", errors="backslashreplace")


def lines(first: str | None, second: str | None) -> tuple[str, str]:
    """The numbers of lines of two files, and of changed lines, as text; None for a file that is not there."""
    if first is None or second is None:
        one, other = (ABSENT if each is None else f"{len(each.splitlines()):,} lines" for each in (first, second))
        return one, other
    marks = [line[0] for line in difflib.ndiff(first.splitlines(), second.splitlines())]
    changed = f"(+{marks.count('+')} -{marks.count('-')})"
    return f"{len(first.splitlines()):,} lines", f"{len(second.splitlines()):,} lines {changed}"


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
    if as_number(first) is None or as_number(second) is None:
        return False
    return tolerance > 0 and isclose(first, second, rel_tol=tolerance)


def text(name: str, value: Any) -> str:
    """A value of `environment` as text."""
    if value is None:
        return ABSENT
    if name == MEMORY and as_number(value) is not None:
        return decimal(int(value))
    return rows.shown(value)


def file_text(entry: Mapping[str, Any] | None) -> str:
    """An entry of `data.hashes` of run.json as text; None for a file that does not exist."""
    if entry is None:
        return "not found"
    if "version" in entry:
        return f"version {entry['version']}"
    digest = str(entry.get("sha256") or ABSENT)[:_DIGITS]
    size = as_number(entry.get("bytes"))
    if size is None:
        return f"sha256 {digest}"
    return f"{int(size):,} bytes, sha256 {digest}"
