"""An evaluation mode of another project: its options."""

from __future__ import annotations

from dataclasses import dataclass

from psrun.config.choices import EvaluationChoice
from psrun.config.schema import at_least


@dataclass(frozen=True)
class Quick(EvaluationChoice):
    implementation = "quick_evaluation:QuickEvaluation"
    runs_on = "coordinator"
    is_exact = True
    kind = "quick"
    every: int = at_least(1)

    def is_due(self, epoch: int) -> bool:
        return epoch % self.every == 0
