"""The closures of the mode `damped`."""

from psrun.closures.scheduling import AsynchronousClosures
from psrun.closures.stage import Stage


class Damping(Stage):
    def __init__(self, factor):
        self._factor = factor

    def gradients(self, apply):
        def damped(grads_and_vars, *arguments, **options):
            pairs = [(gradient * self._factor, variable) for gradient, variable in grads_and_vars]
            return apply(pairs, *arguments, **options)

        return damped


class DampedClosures(AsynchronousClosures):
    def __init__(self, distribution, consistency):
        super().__init__(distribution, consistency)
        self._factor = consistency.factor

    def stages(self, program):
        return [Damping(self._factor)]
