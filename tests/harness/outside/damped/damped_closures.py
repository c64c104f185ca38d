"""The closures of the mode `damped`."""

import tensorflow as tf

from psrun.closures.scheduling import AsynchronousClosures
from psrun.closures.stage import Stage


class Damping(Stage):
    """Multiplies the gradients of each step by a number, on the worker."""

    def __init__(self, factor):
        self._factor = factor

    def gradients(self, apply):
        def damped(grads_and_vars, *arguments, **options):
            pairs = [(self._times_factor(gradient), variable) for gradient, variable in grads_and_vars]
            return apply(pairs, *arguments, **options)

        return damped

    def _times_factor(self, gradient):
        if gradient is None:  # of a variable that the loss does not depend on
            return None
        if isinstance(gradient, tf.IndexedSlices):  # of a table: rows by their numbers
            return tf.IndexedSlices(gradient.values * self._factor, gradient.indices, gradient.dense_shape)
        return gradient * self._factor


class DampedClosures(AsynchronousClosures):
    def __init__(self, distribution, consistency):
        super().__init__(distribution, consistency)
        self._factor = consistency.factor

    def stages(self, program):
        return [Damping(self._factor)]
