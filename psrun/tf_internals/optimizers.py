"""Access to internals of tf-keras' optimizers."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from psrun.tf_internals.replaced import replace
from psrun.tf_internals.required import require

# The attributes in which tf-keras' optimizers keep their slots, a list in the order of the variables each. Their dense
# updates read them, so the code that makes the slots must put them there (tf-keras 2.21).
ADAGRAD_ACCUMULATORS = FTRL_ACCUMULATORS = "_accumulators"
ADAM_MOMENTUMS, ADAM_VELOCITIES = "_momentums", "_velocities"
FTRL_LINEARS = "_linears"

# The method that updates the variables, once gradients are added up and clipped: the public `apply_gradients` does both
# (tf-keras 2.21).
UPDATE = "_internal_apply_gradients"


class SlotOptimizer(tf_keras.optimizers.Optimizer):
    """For optimizers that make the slots of tf-keras' optimizers themselves, and take sparse gradients as they are.

    Stands before a tf-keras optimizer among the base classes (tf-keras 2.21).
    """

    @property
    def has_slots(self) -> bool:
        """Whether slots were made. tf-keras sets the attribute only then."""
        return getattr(self, "_built", False)

    def slots_made(self) -> None:
        """Call when the slots are made: tf-keras' `build` then makes none."""
        self._built = True

    def slot_index(self, variable: tf.Variable) -> int:
        """The place of a variable's slot in each list of slots.

        Raises:
          KeyError: the optimizer was not built for the variable.
        """
        return self._index_dict[self._var_key(variable)]

    def variable_key(self, variable: tf.Variable) -> str:
        """Of a variable and of its copies on several devices."""
        return self._var_key(variable)

    def untracked(self, value: Any) -> Any:
        """A value that can be an attribute without becoming part of checkpoints."""
        return self._no_dependency(value)

    def _deduplicate_sparse_grad(self, grads: list[Any]) -> list[Any]:
        """As they are: tf-keras would sum the rows of a sparse gradient on the worker."""
        return grads


def is_optimizer(value: Any) -> bool:
    """Whether the value is an optimizer of tf-keras, also a legacy one."""
    return isinstance(value, tf_keras.optimizers.Optimizer | tf_keras.optimizers.legacy.Optimizer)


def legacy_kind(optimizer: Any) -> str | None:
    """The name of the legacy optimizer of tf-keras that this one is or extends; None for another optimizer."""
    inner = unscaled(optimizer)
    if not isinstance(inner, tf_keras.optimizers.legacy.Optimizer):
        return None
    return next(kind.__name__ for kind in type(inner).__mro__ if kind.__module__.startswith("tf_keras."))


def unscaled(optimizer: Any) -> Any:
    """The optimizer itself, of one that scales the loss."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def names_without_weight_decay(optimizer: Any) -> list[str]:
    """The regular expressions of names of variables whose weights do not decay.

    Only a private attribute keeps what `exclude_from_weight_decay` was called with (tf-keras 2.21).
    """
    if not optimizer.weight_decay:
        return []
    return list(getattr(optimizer, "_exclude_from_weight_decay_names", ()))  # set by the first call


def replace_names_without_weight_decay(optimizer: Any, name_of: Callable[[Any], str]) -> None:
    """Replaces the names that `exclude_from_weight_decay` compares, if it was called (tf-keras 2.21).

    Args:
      name_of: the name to compare, of a variable or a shard.
    """
    optimizer = unscaled(optimizer)
    patterns = names_without_weight_decay(optimizer)
    if not patterns:
        return

    def by_name(original: Callable[[Any], bool]) -> Callable[[Any], bool]:
        def use_weight_decay(variable: Any) -> bool:
            name = name_of(variable)
            if name == variable.name:
                return original(variable)
            return not any(re.search(pattern, name) for pattern in patterns)

        return use_weight_decay

    replace(optimizer, "_use_weight_decay", by_name)


def has_momentum_of_0(optimizer: Any) -> bool:
    """Whether the optimizer is tf-keras' SGD without momentum."""
    inner = unscaled(optimizer)
    return type(inner) is tf_keras.optimizers.SGD and not inner.momentum


def update_without_momentum(optimizer: Any) -> None:
    """Makes SGD add a gradient to a variable at once, where its momentum is 0.

    tf-keras keeps a momentum of 0 in a slot, adds the gradient to the slot, and the slot to the whole variable: of two
    workers, one then adds what the other has written to the slot (tf-keras 2.21). One worker gets the same numbers.
    """
    inner = unscaled(optimizer)
    if not has_momentum_of_0(inner):
        return
    require(inner, "_var_key")

    def update_step(gradient: Any, variable: tf.Variable) -> None:
        rate = tf.cast(inner.learning_rate, variable.dtype)
        if isinstance(gradient, tf.IndexedSlices):
            variable.scatter_add(tf.IndexedSlices(-gradient.values * rate, gradient.indices))
            return
        change = -gradient * rate
        inner.momentums[inner._index_dict[inner._var_key(variable)]].assign(change)  # as tf-keras leaves its slot
        variable.assign_add(change)

    replace(inner, "update_step", lambda _: update_step)


def clips(optimizer: Any) -> bool:
    """Whether the optimizer clips gradients in any way."""
    inner = unscaled(optimizer)
    return any(getattr(inner, name, None) for name in ("clipnorm", "clipvalue", "global_clipnorm"))


def learning_rates(optimizer: Any) -> list[tf.Variable]:
    """The variable of the learning rate: with a schedule, the one of its present value."""
    rate = optimizer.learning_rate
    return [rate] if hasattr(rate, "assign") else []


def counters(optimizer: Any) -> list[tf.Variable]:
    """The counter of steps and the learning rate."""
    return [optimizer.iterations, *learning_rates(unscaled(optimizer))]


def aggregates_as_keras(optimizer: Any) -> bool:
    """Whether the optimizer adds up the gradients of replicas as those of tf-keras do."""
    own = getattr(type(optimizer), "aggregate_gradients", None)
    return own is tf_keras.optimizers.Optimizer.aggregate_gradients


def without_aggregation(optimizer: Any) -> dict[str, bool]:
    """The options of `apply_gradients` with which it does not add up the gradients of replicas; none if a user's
    optimizer takes no such option, and passes none on.
    """
    option = "skip_gradients_aggregation"
    parameters = inspect.signature(type(optimizer).apply_gradients).parameters
    passes_on = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    return {option: True} if passes_on or option in parameters else {}


def replace_clipnorm(optimizer: Any, clip: Callable[[Sequence[Any], Sequence[Any], float], Sequence[Any]]) -> None:
    """Replaces what `clipnorm` does, if it is set.

    Keras clips gradients one by one, without their variables, between adding them up and applying them (tf-keras 2.21).

    Args:
      clip: of gradients, their variables and `clipnorm`.
    """
    optimizer = unscaled(optimizer)
    clipnorm = optimizer.clipnorm
    if not isinstance(clipnorm, int | float) or clipnorm <= 0:  # with which Keras clips nothing, or fails
        return
    applied = list[Any]()

    def with_variables(apply: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(apply)
        def apply_gradients(grads_and_vars: Any, *arguments: Any, **options: Any) -> Any:
            pairs = list(grads_and_vars)
            applied[:] = [variable for gradient, variable in pairs if gradient is not None]
            return apply(pairs, *arguments, **options)

        return apply_gradients

    replace(optimizer, "apply_gradients", with_variables)
    replace(optimizer, "_clip_gradients", lambda _: lambda gradients: clip(gradients, applied, clipnorm))
