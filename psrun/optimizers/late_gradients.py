"""Options of optimizers for stale gradients: a smaller learning rate, and compensated gradients.

The staleness of an update is the number of updates applied between the read of its weights and its own application.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
import tf_keras

from psrun.tf_internals.optimizers import unscaled

OPTIONS = ("staleness_aware", "delay_compensation")


class LateGradients(tf_keras.optimizers.Optimizer):
    """A base class before a tf-keras optimizer.

    Args:
      staleness_aware: whether the learning rate of an update is divided by its staleness, if that is greater than 0.
        Zhang, Gupta, Lian, Liu: Staleness-Aware Async-SGD for Distributed Deep Learning, IJCAI 2016.
      delay_compensation: lambda: a gradient g of dense weights becomes g + lambda g g (w_now - w_read). Zheng et al.:
        Asynchronous Stochastic Gradient Descent with Delay Compensation, ICML 2017.

    Attributes:
      staleness: of the update that is applied; None outside of `applying`.
    """

    staleness: Any = None

    def __init__(
        self, *args: Any, staleness_aware: bool = False, delay_compensation: float = 0.0, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        if delay_compensation < 0:
            raise ValueError(f"delay_compensation is {delay_compensation}, must be 0 or more")
        self.staleness_aware = staleness_aware
        self.delay_compensation = delay_compensation

    @property
    def learning_rate(self) -> Any:
        """The learning rate; while an update is applied by a staleness-aware optimizer, that of the update."""
        rate = super().learning_rate
        if self.staleness is None:
            return rate
        with tf.device(self.staleness.device):
            return rate / tf.cast(tf.reshape(tf.maximum(self.staleness, 1), []), rate.dtype)

    @learning_rate.setter
    def learning_rate(self, rate: Any) -> None:
        tf_keras.optimizers.Optimizer.learning_rate.fset(self, rate)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **{name: getattr(self, name) for name in OPTIONS}}


def is_staleness_aware(optimizer: Any) -> bool:
    """Whether the learning rate of an update depends on its staleness."""
    return getattr(unscaled(optimizer), "staleness_aware", False)


@contextlib.contextmanager
def applying(optimizer: Any, staleness: tf.Tensor | None) -> Iterator[None]:
    """In this context a staleness-aware optimizer applies an update.

    Args:
      staleness: of the update, an integer, of shape () or (1,); None if it is not known.
    """
    if staleness is None or not is_staleness_aware(optimizer):
        yield
        return
    inner = unscaled(optimizer)
    inner.staleness = staleness
    try:
        yield
    finally:
        inner.staleness = None


def compensation(optimizer: Any) -> float:
    """The factor of `compensated`; 0 for none."""
    return getattr(unscaled(optimizer), "delay_compensation", 0.0)


def compensated(gradient: tf.Tensor, now: tf.Tensor, read: tf.Tensor, factor: float) -> tf.Tensor:
    """An estimate of the gradient at the weights `now`, from one at the weights `read`: all of one shape."""
    return gradient + tf.cast(factor, gradient.dtype) * tf.square(gradient) * (now - read)
