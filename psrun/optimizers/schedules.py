"""Learning rates that begin small, and that grow with the number of workers or the batch size."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras

RULES = {"linear": 1.0, "sqrt": 0.5}  # the exponent of the factor


class WarmUp(tf_keras.optimizers.schedules.LearningRateSchedule):
    """Grows linearly from `start` to `learning_rate` over `steps` steps; then stays, or follows `after`.

    Goyal et al.: Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour, 2017, section 2.2.

    Args:
      after: a schedule of the steps after these, counted from 0.
    """

    def __init__(self, learning_rate: float, steps: int, start: float = 0.0, after: Any = None) -> None:
        super().__init__()
        if steps < 0:
            raise ValueError(f"steps is {steps}, must be 0 or more")
        self.learning_rate = learning_rate
        self.steps = steps
        self.start = start
        self.after = after

    def __call__(self, step: Any) -> tf.Tensor:
        """The learning rate of a step, from 0: float32 scalar."""
        now = tf.cast(step, tf.float32)
        steps = float(self.steps)
        growing = self.start + (self.learning_rate - self.start) * now / max(steps, 1.0)
        rest = self.learning_rate if self.after is None else self.after(tf.maximum(now - steps, 0.0))
        return tf.where(now < steps, growing, tf.cast(rest, tf.float32))

    def get_config(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("learning_rate", "steps", "start", "after")}


class Scaled(WarmUp):
    """`learning_rate` times a factor, or its square root, reached from `learning_rate` over `steps` steps.

    The linear rule: Goyal et al. 2017, section 2.1. The square root: Krizhevsky: One Weird Trick for Parallelizing
    Convolutional Neural Networks, 2014, section 5.

    Args:
      factor: such as the number of workers.
      rule: 'linear' or 'sqrt'.
      after: as in `WarmUp`.
    """

    def __init__(
        self, learning_rate: float, factor: float, steps: int = 0, rule: str = "linear", after: Any = None
    ) -> None:
        if rule not in RULES:
            raise ValueError(f"rule is {rule!r}, must be one of {', '.join(RULES)}")
        if factor <= 0:
            raise ValueError(f"factor is {factor}, must be greater than 0")
        super().__init__(learning_rate * factor ** RULES[rule], steps, learning_rate, after)
        self._own = {"learning_rate": learning_rate, "factor": factor, "steps": steps, "rule": rule, "after": after}

    def get_config(self) -> dict[str, Any]:
        return self._own
