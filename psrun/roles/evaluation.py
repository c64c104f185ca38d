"""mode=evaluate: evaluates a checkpoint of a run, which may still be running, on any cluster."""

from __future__ import annotations

from dataclasses import asdict

from psrun.checkpoint import manifest
from psrun.config.run_config import RunConfig
from psrun.roles.restored import restored
from psrun.roles.task_context import TaskContext
from psrun.training.evaluation import modes


def run(run_config: RunConfig, context: TaskContext) -> None:
    """Evaluates, writes evaluations/STEP-MODE.json in the run folder and reports the result.

    Raises:
      PsrunError: there is no such checkpoint, or it cannot be evaluated.
    """
    with restored(run_config, context, state="evaluating") as there:
        evaluator = modes.make(there.program)
        assert evaluator is not None
        result = evaluator.evaluate(there.checkpoint.step, there.chief.pulse.advance)
        path = result.keep(there.whole.evaluations, manifest.digest(there.checkpoint.files))
        there.chief.reporter.emit("evaluation", **asdict(result), path=str(path))
        if result.undefined is not None:
            there.chief.reporter.warn(result.undefined, step=result.step)
