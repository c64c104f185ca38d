"""What an error says: compared with the golden file, or by its type and its keys."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from support import HARNESS, stated

from psrun.cli import command_line
from psrun.errors import ConfigError


@pytest.fixture
def says(snapshot, tmp_path):
    """Compares the error of a call with the golden file, which has its type, too."""

    def compare(call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        with pytest.raises(Exception) as raised:  # noqa: PT011
            call(*arguments, **options)
        assert stated(raised.value, tmp=tmp_path, harness=HARNESS) == snapshot

    return compare


def refused(
    keys: str, call: Callable[..., Any], *arguments: Any, error: type[Exception] = ConfigError, **options: Any
) -> None:
    """Checks that a call raises `error`, a ConfigError with a problem for each of the comma-separated `keys`.

    An error about an argument, a file, or an option of a function has no key: its message must contain the text `keys`.
    """
    with pytest.raises(error) as raised:
        call(*arguments, **options)
    problems = raised.value.problems if isinstance(raised.value, ConfigError) else []
    found = [problem.key for problem in problems]
    if any(found):
        assert found == keys.split(", ")
    else:
        assert keys in str(raised.value)


@pytest.fixture
def refuses_to_write(tmp_path, monkeypatch, capfd):
    """Checks that a command refuses a path on no mounted disk by its key, and writes nothing."""
    monkeypatch.chdir(tmp_path)

    def check(command: list[str], key: str) -> None:
        monkeypatch.setattr(sys, "argv", ["psrun", *command])
        with pytest.raises((ConfigError, SystemExit)) as raised:
            command_line._dispatch(time.time())
        said = str(raised.value) + capfd.readouterr().err
        assert f"{key}: " in said
        assert "must be a path on a mounted disk" in said
        assert os.listdir(tmp_path) == []

    return check
