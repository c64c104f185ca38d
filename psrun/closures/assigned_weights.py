"""Warns of layers that assign to trainable weights in each step, where several workers do so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from psrun.closures.stage import Apply, Stage, Step
from psrun.program.compiled_model import Program
from psrun.tf_internals.names import split_name
from psrun.tf_internals.variables import assigned_by


class AssignedWeights(Stage):
    """Looks for assignments in the forward pass: an assigned value is without what other workers did since it was read.

    Args:
      warn: called with the names of variables, once for each.
    """

    def __init__(self, program: Program, warn: Callable[[str], None]) -> None:
        self._variables = list(program.network.trainable_variables)
        self._warn = warn
        self._named: set[str] = set()
        self._num_before = 0

    def around(self, step: Step) -> Step:
        def counted(batch: Any) -> Any:
            self._num_before = len(_operations())
            return step(batch)

        return counted

    def gradients(self, apply: Apply) -> Apply:
        def after_forward_pass(*arguments: Any, **options: Any) -> Any:
            assigned = assigned_by(_operations()[self._num_before :], self._variables)
            self._report({split_name(variable.name)[0] for variable in assigned})
            return apply(*arguments, **options)

        return after_forward_pass

    def _report(self, names: set[str]) -> None:
        new = sorted(names - self._named)
        if not new:
            return
        self._named.update(new)
        self._warn(
            f"layers assign {', '.join(new)} in each step: what other workers change between the reading of a weight "
            "and its assignment is lost, so that the numbers are not those of one worker; set cluster.num_workers=1 "
            "for those"
        )


def _operations() -> list[tf.Operation]:
    return [] if tf.executing_eagerly() else tf.compat.v1.get_default_graph().get_operations()
