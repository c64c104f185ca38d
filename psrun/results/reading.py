"""Reads files that may be missing, damaged, or written by another version of psrun."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def mapping(value: Any) -> Mapping[str, Any]:
    """`value` if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def entries(value: Any) -> list[Mapping[str, Any]]:
    """The mappings in `value` if it is a list, else none."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def number(value: Any) -> float | None:
    """`value` if it is a finite number, else None."""
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if plain and abs(value) <= sys.float_info.max else None


def parsed(text: str | bytes) -> Any:
    """Parses JSON; NaN and infinities, which are not valid JSON, become None. Raises ValueError."""
    return json.loads(text, parse_constant=lambda _: None, parse_float=lambda digits: number(float(digits)))


def loaded(file: Path, parse: Callable[[str], Any] = parsed) -> tuple[Mapping[str, Any], str]:
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
    """When a file or folder was last changed, as of `time.time`; 0 if it does not exist."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
