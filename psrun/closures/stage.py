"""The interface of a stage: what a closure does beside the step of the model itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

# Trains on a batch; a network's `train_step`, or a function of the user.
Step = Callable[[Any], Any]
# Returns the next batch of a closure.
Take = Callable[[], Any]
# Takes pairs of gradient and variable.
Apply = Callable[..., Any]
# The inputs of a closure, by name.
Inputs = Mapping[str, Any]


class Stage:
    """A part of what a closure does. Each method is called while the closure is traced; by default it changes nothing.

    Attributes:
      carried: a tensor that goes from one step to the next, through loops over steps; set it in `begin`.
    """

    carried: tf.Tensor | None = None

    def inputs(self) -> dict[str, tf.TensorSpec]:
        """What a closure passes for this stage, by name."""
        return {}

    def begin(self, inputs: Inputs) -> None:
        """Called once, before any step, outside of loops and branches."""

    def unrolled(self, num_steps: int) -> contextlib.AbstractContextManager[Any]:
        """The context in which `num_steps` steps are traced, one after the other."""
        return contextlib.nullcontext()

    def batches(self, take: Take, num_steps: int) -> Take:
        """Wraps what returns the batches of unrolled steps."""
        return take

    def around(self, step: Step) -> Step:
        """Wraps one step."""
        return step

    def gradients(self, apply: Apply) -> Apply:
        """Wraps the optimizer's `apply_gradients`, which adds up the gradients of replicas, clips and applies them."""
        return apply

    def update(self, apply: Apply) -> Apply:
        """Wraps what `apply_gradients` calls to change variables, once gradients are added up and clipped."""
        return apply

    def end(self, inputs: Inputs) -> None:
        """Called once, after all steps."""
