"""Evaluations of a run after its training, in this process, and steps that are written out in short runs, too."""

from __future__ import annotations

import io
from typing import Any

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
    from psrun.roles import checkpoint_modes
    from psrun.roles.table import TaskContext

    def run(folder: RunFolder, *overrides: str) -> str:
        config = run_config(*overrides, f"resume={folder.path}", "mode=evaluate", "cluster=none")
        shown = io.StringIO()
        checkpoint_modes.run_evaluate(config, TaskContext(folder, ConsoleSink(Console(file=shown, width=300)), 0))
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
        role.run(config, RunFolder.open(folder.path), console, Stop(), me=Task("evaluator", 0))
        return shown.getvalue()

    return run


@pytest.fixture
def traced(monkeypatch):
    """Steps are written out one after the other also in runs of few steps; of each trace how many, and of how many."""
    from psrun.closures import scheduling, stages

    monkeypatch.setattr(scheduling, "_STEPS_TO_UNROLL_FOR", 1)
    seen: list[tuple[int, int | None]] = []
    original = stages.Closure.function

    def function(self: Any, unrolled: int = 1, num_steps: int | None = None) -> Any:
        seen.append((unrolled, num_steps))
        return original(self, unrolled, num_steps)

    monkeypatch.setattr(stages.Closure, "function", function)
    return seen


@pytest.fixture
def unrolled(monkeypatch, traced):
    """As `traced`, from the first step on."""
    from psrun.closures.scheduling import AsynchronousSteps

    begin = AsynchronousSteps.__init__

    def begins(self: Any, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options)
        self._unroll()

    monkeypatch.setattr(AsynchronousSteps, "__init__", begins)
    return traced
