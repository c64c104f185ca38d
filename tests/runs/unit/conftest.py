"""What tests of commands on runs share."""

from __future__ import annotations

import pytest

from psrun.errors import ExitCode
from psrun.runs.report.commands import main


@pytest.fixture
def report(capfd):
    """Runs `psrun report` in this process; returns what it prints."""

    def run(*arguments: object) -> str:
        capfd.readouterr()
        assert main([str(argument) for argument in arguments]) == ExitCode.DONE
        return capfd.readouterr().out

    return run
