"""Evaluations of a run after its training, in this process."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from support import run_config

from psrun.config.topology import Task
from psrun.process import Stop
from psrun.results.console import ConsoleSink
from psrun.results.run_folder import RunFolder

SIDECAR = ("cluster=static", "cluster.addresses={worker: ['w:1'], ps: ['p:1']}", "evaluation=sidecar")


@pytest.fixture
def evaluate():
    """Runs mode=evaluate without a cluster; returns what it prints."""
    from psrun.roles import evaluation
    from psrun.roles.task_context import TaskContext

    def run(folder: RunFolder, *overrides: str) -> str:
        config = run_config(*overrides, f"resume={folder.path}", "mode=evaluate", "cluster=none")
        shown = io.StringIO()
        evaluation.run(config, TaskContext(folder, ConsoleSink(Console(file=shown, width=300)), 0))
        return shown.getvalue()

    return run


@pytest.fixture
def sidecar():
    """Runs the sidecar evaluator on a run folder, to its end; returns what it prints."""
    from psrun.roles import sidecar as role

    def run(folder: RunFolder, *overrides: str) -> str:
        shown = io.StringIO()
        console = ConsoleSink(Console(file=shown, width=300))
        config = run_config(*SIDECAR, *overrides)
        role.run(config, RunFolder.join(folder.path), console, Stop(), me=Task("evaluator", 0))
        return shown.getvalue()

    return run
