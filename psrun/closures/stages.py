"""The stages of a closure, in the one order in which they wrap a step.

The order goes from the outside of a step to its inside. A stage wraps the steps and the batches of those behind it.
Gradients leave a step from the inside: the last stage gets them first, and what the first one passes on is applied.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from psrun.closures.applied_steps import AppliedSteps
from psrun.closures.assigned_weights import AssignedWeights
from psrun.closures.dense_bundles import DenseBundles
from psrun.closures.gradient_rounds import GradientRounds
from psrun.closures.replicas import Replicas
from psrun.closures.row_prefetch import RowPrefetch
from psrun.closures.slow_workers import SlowWorkers
from psrun.closures.stage import Apply, Inputs, Stage, Step, Take
from psrun.closures.staleness_meter import StalenessMeter
from psrun.closures.step_profiler import StepProfiler
from psrun.closures.worker_local_variables import WorkerLocalVariables
from psrun.program.compiled_model import Program, metric_variables
from psrun.tf_internals import optimizers
from psrun.tf_internals.replaced import replaced

ORDER: tuple[type[Stage], ...] = (
    WorkerLocalVariables,  # writes back what all the others have added to a variable
    AppliedSteps,  # counts a step when all that it changes on a server is changed
    RowPrefetch,  # takes batches ahead of their steps: the profiler notes the arrival of each
    StepProfiler,  # measures a step with the messages of its bundles
    DenseBundles,  # fetches weights before the step, and pushes the gradients that the others let pass
    GradientRounds,  # takes the gradients instead of the optimizer
    Stage,  # stages of a consistency mode: they see gradients when they leave the worker
    SlowWorkers,  # a slow worker is one that has its gradients late
    AssignedWeights,  # looks at the operations of the forward pass
    Replicas,  # weights the gradients of each part of a batch, before anything waits for them
)


def on_workers(
    program: Program, profiler: StepProfiler, meter: StalenessMeter, warn: Callable[[str], None]
) -> list[Stage]:
    """The stages of every closure of a program, whatever its consistency mode is.

    Args:
      warn: called with what deserves attention in a step.

    Raises:
      ConfigError: weights or rows cannot be exchanged as the trainer's options ask.
    """
    trainer = program.config.trainer
    stages: list[Stage] = [
        WorkerLocalVariables(metric_variables(program), optimizers.counters(program.optimizer)),
        profiler,
        DenseBundles(program, meter, trainer.dense_sync_every, rows_ahead=trainer.prefetch_rows),
    ]
    if program.distribution.num_workers > 1:
        stages.append(AssignedWeights(program, warn))
    if trainer.prefetch_rows:
        stages.append(RowPrefetch(program))
    if any((slow := program.config.cluster.slow_workers or {}).values()):
        stages.append(SlowWorkers(slow, program.distribution.num_workers))
    return stages


class Stages:
    """Composes stages.

    Args:
      stages: in any order; of one kind, the first is the outer one.
    """

    def __init__(self, optimizer: Any, stages: Iterable[Stage]) -> None:
        self._optimizer = optimizer
        self._stages = sorted(stages, key=_place)

    def inputs(self) -> dict[str, tf.TensorSpec]:
        """The inputs of all stages, in the order in which a closure has them."""
        return {name: spec for stage in self._stages for name, spec in stage.inputs().items()}

    def begin(self, inputs: Inputs) -> None:
        for stage in self._stages:
            stage.begin(inputs)

    def end(self, inputs: Inputs) -> None:
        for stage in self._stages:
            stage.end(inputs)

    @property
    def carried(self) -> list[tf.Tensor]:
        """The tensors that go from one step to the next."""
        return [stage.carried for stage in self._stages if stage.carried is not None]

    @carried.setter
    def carried(self, tensors: Sequence[tf.Tensor]) -> None:
        carrying = [stage for stage in self._stages if stage.carried is not None]
        for stage, tensor in zip(carrying, tensors):
            stage.carried = tensor

    @contextlib.contextmanager
    def unrolled(self, step: Step, take: Take, num_steps: int) -> Iterator[Callable[[], Any]]:
        """Traces `num_steps` steps in this context; yields what takes a batch and trains on it, as all stages say."""
        apply, update = self._composed("gradients"), self._composed("update")
        with contextlib.ExitStack() as stack:
            for stage in self._stages:
                stack.enter_context(stage.unrolled(num_steps))
            if update is not None:
                stack.enter_context(replaced(self._optimizer, optimizers.UPDATE, update))
            if apply is not None:
                stack.enter_context(replaced(self._optimizer, "apply_gradients", apply))
            for stage in reversed(self._stages):
                take = stage.batches(take, num_steps)
                step = stage.around(step)
            yield lambda: step(take())

    def _composed(self, method: str) -> Callable[[Apply], Apply] | None:
        """What wraps the application of gradients by a method of all stages; None if no stage has it."""
        default = getattr(Stage, method)
        wraps = [getattr(stage, method) for stage in self._stages if getattr(type(stage), method) is not default]
        if not wraps:
            return None

        def wrapped(apply: Apply) -> Apply:
            for wrap in wraps:
                apply = wrap(apply)
            return apply

        return wrapped


def _place(stage: Stage) -> int:
    return next((place for place, kind in enumerate(ORDER) if type(stage) is kind), ORDER.index(Stage))
