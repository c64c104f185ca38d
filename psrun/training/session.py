"""What happens around the epochs of a training, the same for every trainer: times, events, checkpoints, evaluation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

from psrun import choices
from psrun.checkpoint import Checkpoints, Position
from psrun.errors import DataExhaustedError, NonFiniteLossError
from psrun.evaluation.direct import DirectEvaluation, Evaluation
from psrun.program import Program
from psrun.reporting.events import Reporter
from psrun.stop import Stop
from psrun.training.monitor import Monitor, iterations


def data_ended(step: int, planned: int) -> DataExhaustedError:
    """The error for training data that came to an end at `step`."""
    return DataExhaustedError(
        f"the training data came to an end after {step} steps, before the {planned} planned; "
        "make it endless with .repeat()"
    )


@dataclass
class Totals:
    """Sums over the epochs done so far. `steps` and `seconds` leave out what came before the first step was applied."""

    steps: int = 0
    seconds: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)

    def rate(self) -> float | None:
        return self.steps / self.seconds if self.seconds else None


class Session:
    """Called by a trainer when an epoch begins, when its steps are joined, and when it ends.

    Args:
      evaluation: None where nothing is evaluated here.
      checkpoints: None where none are taken.
      record: takes what belongs in the run's result: key and value of a list it is added to.
      start: where the training goes on from; the program's variables are those of that moment.
      stop: asked between executions whether to end early.

    Attributes:
      scheduled: steps scheduled in this process.
    """

    def __init__(
        self,
        program: Program,
        reporter: Reporter,
        *,
        evaluation: DirectEvaluation | None,
        checkpoints: Checkpoints | None,
        record: Callable[[str, object], None],
        start: Position,
        stop: Stop,
    ) -> None:
        self.program, self._reporter, self._record = program, reporter, record
        self._evaluation, self._checkpoints = evaluation, checkpoints
        self.start, self.stop = start, stop
        self.first_step = iterations(program)
        self.monitor = Monitor(program, reporter, first_step=self.first_step)
        self.totals = Totals()
        self.last_evaluation: Evaluation | None = None
        self.scheduled = 0
        self._epoch, self._steps_before = start.epochs, start.steps
        self._began_s, self._joined_s, self._step = 0.0, 0.0, self.first_step

    @property
    def steps_repeated(self) -> int:
        """Steps applied more often than scheduled, in this process: a worker died after its step was applied."""
        return max(0, self.monitor.last_step - self.first_step - self.scheduled)

    def epoch_begins(self) -> None:
        """Call before the first step of each epoch is scheduled."""
        self._epoch += 1
        self._began_s = time.monotonic()
        self.monitor.epoch_begins(self._epoch)

    def steps_joined(self) -> None:
        """Call when every step of the epoch is done, before anything else is."""
        self._joined_s = time.monotonic()
        self.monitor.epoch_ends(iterations(self.program))

    def check_loss(self) -> None:
        """Raises NonFiniteLossError once the monitor has seen the loss go."""
        if self.monitor.non_finite_loss is not None:
            self._loss_is(self.monitor.non_finite_loss)

    def epoch_ends(
        self, metrics: Mapping[str, float], validation: tuple[int, Mapping[str, float]] | None = None
    ) -> dict[str, float]:
        """Reports the epoch, takes the checkpoint and evaluates, as configured.

        Args:
          metrics: of the epoch's training steps.
          validation: examples seen and metrics, where the trainer itself has evaluated.

        Returns:
          The evaluation's metrics as `val_*`; empty where there was none.

        Raises:
          NonFiniteLossError: the loss is NaN or infinite.
          DataExhaustedError: fewer steps were applied than scheduled.
          Interrupted: the epoch was cut short because the process is to end; its steps are in a checkpoint.
        """
        step = iterations(self.program)
        self._loss_is(metrics.get("loss", 0.0))
        into = self._steps_before + step - self._step
        if self.stop.requested.is_set() and into < self.program.config.trainer.steps_per_epoch:
            self._save(step, Position(self._epoch - 1, into))
            self.stop.raise_if_requested()
        self._report_epoch(step, metrics)
        if step - self.first_step < self.scheduled:
            # Keras only warns of data that ends; steps may be run twice, but never fewer than were scheduled.
            raise data_ended(step, self.first_step + self.scheduled)
        self._steps_before = 0
        self._save(step, Position(self._epoch, 0))
        self.stop.raise_if_requested()
        if validation is not None:
            seen, values = validation
            return self._evaluated(Evaluation("validation", step, seen, dict(values)))
        if self._evaluation is not None and self._due():
            self.monitor.state = "evaluating"
            return self._evaluated(self._evaluation.evaluate(step))
        return {}

    def _save(self, step: int, position: Position) -> None:
        if self._checkpoints is None:
            return
        self.monitor.state = "saving"
        began_s = time.monotonic()
        path = self._checkpoints.save(step, position)
        self._reporter.emit("checkpoint", step=step, path=path, seconds=round(time.monotonic() - began_s, 3))
        self._record("checkpoints", {"path": path, "step": step, "good": True})

    def _report_epoch(self, step: int, metrics: Mapping[str, float]) -> None:
        monitor, trainer = self.monitor, self.program.config.trainer
        steps, began_s = step - self._step, self._began_s
        if self._step == self.first_step and monitor.first_step_count < step and monitor.first_step_s is not None:
            # Tracing and connecting are told as the time to the first step, not as slow steps.
            steps, began_s = step - monitor.first_step_count, monitor.first_step_s
        seconds = self._joined_s - began_s
        self.totals.steps += steps
        self.totals.seconds += seconds
        self.totals.metrics = dict(metrics)
        self.monitor.metrics = {name: value for name, value in metrics.items() if name != "loss"}
        self._step = step
        self._reporter.emit(
            "epoch",
            step=step,
            epoch=self._epoch,
            epochs=trainer.epochs,
            metrics=dict(metrics),
            seconds=round(self._joined_s - self._began_s, 3),
            steps_per_s=steps / seconds,
            examples_per_s=steps / seconds * self.program.config.data.global_batch_size,
            steps_repeated=self.steps_repeated,
        )

    def _loss_is(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise NonFiniteLossError(
                f"the loss became {loss} in epoch {self._epoch}; a smaller optimizer.learning_rate, or a look at the "
                "data, may help"
            )

    def _due(self) -> bool:
        evaluation, last = self.program.config.evaluation, self._epoch == self.program.config.trainer.epochs
        return isinstance(evaluation, choices.Direct) and (last or self._epoch % evaluation.every == 0)

    def _evaluated(self, evaluation: Evaluation) -> dict[str, float]:
        self.last_evaluation = evaluation
        self._reporter.emit("evaluation", **asdict(evaluation))
        found = {f"val_{name}": value for name, value in evaluation.metrics.items()}
        self.monitor.metrics = {**self.monitor.metrics, **found}
        return found
