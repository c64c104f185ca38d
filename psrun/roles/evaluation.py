"""mode=evaluate: evaluates a checkpoint of a run, which may still be running, on any cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from psrun.checkpoint import load_model, manifest
from psrun.checkpoint.manifest import Manifest
from psrun.checkpoint.store import Store
from psrun.cluster import strategy
from psrun.config.run_config import RunConfig
from psrun.data import load
from psrun.data.source import DataSource
from psrun.errors import RunFolderError
from psrun.program.compiled_model import Program
from psrun.results.events import Reporter
from psrun.results.run_folder import RunFolder, is_over
from psrun.roles.chief import Chief
from psrun.roles.task_context import TaskContext
from psrun.training.evaluation import modes


def run(run_config: RunConfig, context: TaskContext) -> None:
    """Evaluates, writes evaluations/STEP-MODE.json in the run folder and reports the result.

    Raises:
      PsrunError: there is no such checkpoint, or it cannot be evaluated.
    """
    with saved_program(run_config, context, state="evaluating") as saved:
        evaluator = modes.make(saved.program)
        assert evaluator is not None
        result = evaluator.evaluate(saved.checkpoint.step, saved.chief.pulse.advance)
        path = result.keep(saved.folder.evaluations, manifest.digest(saved.checkpoint.files))
        saved.chief.reporter.emit("evaluation", **result.recorded, path=str(path))
        if result.undefined is not None:
            saved.chief.reporter.warn(result.undefined, step=result.step)


def report_differences(source: DataSource, folder: RunFolder, reporter: Reporter, mode: str) -> None:
    """Warns where data differs from what the run was trained on, and records it in run.json if the run is over."""
    for text in getattr(source, "differences", ()):
        reporter.warn(text)
    compared = source.facts.get("compared")
    if compared and is_over(folder.stored()):
        with contextlib.suppress(RunFolderError):  # a folder that may only be read
            folder.emit("later_data", **{mode: compared})


@dataclass(frozen=True)
class SavedProgram:
    """A program whose model has the values of a checkpoint.

    Attributes:
      folder: of the run that has the checkpoint.
    """

    program: Program
    checkpoint: Manifest
    chief: Chief
    folder: RunFolder


@contextmanager
def saved_program(run_config: RunConfig, context: TaskContext, *, state: str) -> Iterator[SavedProgram]:
    """Connects to the cluster and restores the checkpoint that the configuration names; ends the servers afterwards.

    Args:
      state: the state of this process in its heartbeat.

    Raises:
      PsrunError: there is no such checkpoint, or a task was lost.
    """
    assert run_config.resume is not None
    folder = RunFolder(Path(run_config.resume))
    sinks = [context.console] if context.topology is None else [context.folder, context.console]
    reporter = Reporter(sinks, started_s=context.started_s)
    with Chief(run_config, context, reporter) as chief:
        strategy.prepare(run_config.cluster, context.topology)
        source = load.load_source(run_config, folder.stored().get("data"), chief.preparing, folder.path)
        report_differences(source, folder, reporter, run_config.mode)
        with chief.program(load.planned(run_config, source), source) as program:
            store = Store(folder.checkpoints)
            checkpoint = load_model.restore(program.network, run_config.restore, store, reporter.warn)
            chief.restored(checkpoint.step)
            chief.pulse.begin(state)
            chief.pulse.last_step = checkpoint.step
            yield SavedProgram(program, checkpoint, chief, folder)
