"""An evaluation mode of another project: what it does."""

from __future__ import annotations

from collections.abc import Callable

from psrun.program.compiled_model import Program
from psrun.training.evaluators import Evaluation, Meters


class QuickEvaluation:
    def __init__(self, program: Program) -> None:
        self._meters = Meters(program)
        self._batches = program.measured_examples

    def evaluate(self, step: int, progress: Callable[[], None]) -> Evaluation:
        self._meters.reset()
        for batch in self._batches:
            measured = self._meters.measure(batch)
            self._meters.update(measured)
            self._meters.keep(self._meters.rows(measured))
            progress()
        return self._meters.result("quick", step)
