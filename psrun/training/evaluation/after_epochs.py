"""Evaluates after epochs, as configured, and reports the results."""

from __future__ import annotations

from dataclasses import asdict

from psrun.program.compiled_model import Program
from psrun.results.events import Reporter
from psrun.training.evaluation.meters import Evaluation
from psrun.training.evaluation.modes import Evaluator
from psrun.training.progress import ProgressMonitor


class EpochEvaluations:
    """The evaluations of a training, each between two epochs.

    Args:
      evaluator: None if this process evaluates nothing.
      monitor: shows that the process evaluates, and the metrics.

    Attributes:
      run_here: whether this process evaluates.
    """

    def __init__(
        self, program: Program, reporter: Reporter, evaluator: Evaluator | None, monitor: ProgressMonitor
    ) -> None:
        self._program, self._reporter, self._evaluator, self._monitor = program, reporter, evaluator, monitor
        self.run_here = evaluator is not None
        self._told_undefined = False

    def due_after(self, epoch: int, *, last: bool) -> bool:
        """Whether to evaluate after this epoch."""
        evaluation = self._program.config.evaluation
        return self.run_here and evaluation.runs_on == "coordinator" and (last or evaluation.is_due(epoch))

    def run(self, step: int) -> dict[str, float]:
        """Evaluates and reports; returns the metrics as `val_*`."""
        assert self._evaluator is not None
        self._monitor.state = "evaluating"
        return self.report(self._evaluator.evaluate(step, self._monitor.advance))

    def report(self, evaluation: Evaluation) -> dict[str, float]:
        """Reports the result of an evaluation; returns the metrics as `val_*`."""
        self._reporter.emit("evaluation", **asdict(evaluation))
        examples_seen, num_examples = evaluation.examples_seen, self._program.source.num_eval_examples
        if examples_seen != num_examples and evaluation.mode != "distributed":
            self._reporter.warn(f"evaluated {examples_seen} examples, but the data source reports {num_examples}")
        if evaluation.undefined is not None and not self._told_undefined:
            self._told_undefined = True
            self._reporter.warn(evaluation.undefined, step=evaluation.step)
        self._monitor.metrics = {**self._monitor.metrics, **evaluation.values}
        return evaluation.values
