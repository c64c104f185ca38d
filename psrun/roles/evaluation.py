"""mode=evaluate: evaluates a checkpoint of a run, which may still be running, on any cluster."""

from __future__ import annotations

from dataclasses import asdict

from psrun.checkpoint import manifest
from psrun.config.run_config import RunConfig
from psrun.roles.saved_program import saved_program
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
        saved.chief.reporter.emit("evaluation", **asdict(result), path=str(path))
        if result.undefined is not None:
            saved.chief.reporter.warn(result.undefined, step=result.step)
