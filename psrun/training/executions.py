"""What schedules the steps of a trainer on workers."""

from __future__ import annotations

from psrun.closures.asynchronous_steps import AsynchronousSteps, Packed
from psrun.closures.input_streams import Stream
from psrun.closures.stage import Step
from psrun.closures.step_profiler import StepProfiler
from psrun.closures.synchronous_steps import RoundClosures, SynchronousSteps
from psrun.program.compiled_model import Program
from psrun.training.loop import TrainingRun

Executions = AsynchronousSteps | SynchronousSteps


def make(
    program: Program, run: TrainingRun, feed: Stream, profiler: StepProfiler, step: Step | None = None
) -> Executions:
    """Schedules the steps of one kind, as the consistency mode says.

    Args:
      feed, profiler, step: as for `AsynchronousSteps`.
    """
    closures, meter = run.closures, run.meter
    if isinstance(closures, RoundClosures):
        run.packed(Packed(1))
        return SynchronousSteps(
            program, closures, feed, profiler, meter, ends_epoch=run.ends_epoch, warn=run.warn, step=step
        )
    planned = run.left - run.scheduled
    return AsynchronousSteps(
        program, closures, feed, profiler, meter, run.packed, planned=planned, warn=run.warn, step=step
    )
