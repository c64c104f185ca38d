"""Adagrad, row-wise Adagrad, lazy Adam, SGD and FTRL on the rows that a batch uses.

Each is the tf-keras optimizer of that name, except for sparse gradients: the parameter server that holds the shard, not
the worker, sums duplicates, and only the used rows and their slots are read and written. tf-keras applies dense
gradients.

Each has options for stale gradients: a smaller learning rate, and compensated gradients. The staleness of an update is
the number of updates applied between the read of its weights and its own application.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import inspect
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from psrun.errors import ConfigError, Problem
from psrun.layers.collection import TableOffsets, table_offsets
from psrun.layers.lookup import are_distinct, assertion
from psrun.tf_internals import keras as internals
from psrun.tf_internals.keras import SlotOptimizer, parts_of
from psrun.tf_internals.names import split_name
from psrun.tf_internals.tracing import not_inlined

LATE_GRADIENTS_OPTIONS = ("staleness_aware", "delay_compensation")
NOT_FINITE = "not finite: the gradient of"


class LateGradients(tf_keras.optimizers.Optimizer):
    """A base class before a tf-keras optimizer.

    Args:
      staleness_aware: whether the learning rate of an update is its `late_rate`.
      delay_compensation: lambda: a gradient g of dense weights becomes g + lambda g g (w_now - w_read). Zheng et al.:
        Asynchronous Stochastic Gradient Descent with Delay Compensation, ICML 2017.

    Attributes:
      staleness: of the update that is applied; None outside of `applying_late`.
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
        """The learning rate; while a staleness-aware optimizer applies an update, the rate of the update."""
        rate = super().learning_rate
        if self.staleness is None:
            return rate
        with tf.device(self.staleness.device):
            staleness = tf.cast(tf.reshape(self.staleness, []), rate.dtype)
            try:
                return self.late_rate(rate, staleness)
            except Exception as error:  # AutoGraph would put the stack of the whole step before the reason
                failed = f"late_rate of {type(self).__name__} failed: {type(error).__name__}: {error}"
                message = f"{failed} ({self._line_of_rule(error)})"
                raise ConfigError([Problem("optimizer.staleness_aware", message)]) from error

    @learning_rate.setter
    def learning_rate(self, rate: Any) -> None:
        tf_keras.optimizers.Optimizer.learning_rate.fset(self, rate)

    def _line_of_rule(self, error: Exception) -> str:
        """The file and the line of `late_rate` that raised the error, else of its first line."""
        code = inspect.unwrap(type(self).late_rate).__code__
        lines = [code.co_firstlineno]
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename == code.co_filename and frame.name == code.co_name and frame.lineno is not None:
                lines.append(frame.lineno)
        return f"{code.co_filename}, line {lines[-1]}"

    def late_rate(self, rate: tf.Tensor, staleness: tf.Tensor) -> tf.Tensor:
        """The learning rate of an update with `staleness_aware`. Override it for another rule.

        By default the rate is divided by the staleness, if that is greater than 0. Zhang, Gupta, Lian, Liu:
        Staleness-Aware Async-SGD for Distributed Deep Learning, IJCAI 2016.

        Args:
          rate: of the optimizer or its schedule, a scalar.
          staleness: of the update, a scalar of the same dtype.
        """
        return rate / tf.maximum(staleness, 1)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **{name: getattr(self, name) for name in LATE_GRADIENTS_OPTIONS}}


def unused_rule(optimizer: Any) -> str | None:
    """The warning that a rule of the user's own for stale updates is never called; None if there is none, or it is."""
    for key, part in zip(("optimizer", "table_optimizer"), parts_of(optimizer)):
        if not isinstance(part, LateGradients) or part.staleness_aware:
            continue
        if type(part).late_rate is not LateGradients.late_rate:
            return f"late_rate of {type(part).__name__} is never called; set {key}.staleness_aware=true"
    return None


def is_staleness_aware(optimizer: Any) -> bool:
    """Whether the learning rate of an update depends on its staleness."""
    return bool(_aware_parts(optimizer))


def _aware_parts(optimizer: Any) -> list[Any]:
    return [part for part in parts_of(optimizer) if getattr(part, "staleness_aware", False)]


@contextlib.contextmanager
def applying_late(optimizer: Any, staleness: tf.Tensor | None) -> Iterator[None]:
    """In this context a staleness-aware optimizer applies an update.

    Args:
      staleness: of the update, an integer, of shape () or (1,); None if it is not known.
    """
    parts = [] if staleness is None else _aware_parts(optimizer)
    for part in parts:
        part.staleness = staleness
    try:
        yield
    finally:
        for part in parts:
            part.staleness = None


def compensation_factor(optimizer: Any) -> float:
    """The factor of `compensated_gradient`, of dense weights; 0 for none."""
    return getattr(parts_of(optimizer)[0], "delay_compensation", 0.0)


def compensated_gradient(gradient: tf.Tensor, now: tf.Tensor, read: tf.Tensor, factor: float) -> tf.Tensor:
    """An estimate of the gradient at the weights `now`, from one at the weights `read`: all of one shape."""
    return gradient + tf.cast(factor, gradient.dtype) * tf.square(gradient) * (now - read)


# A function of the used rows of the variable and of its slots, the gradients summed by row, and further numbers; it
# returns the new rows of each.
Formula = Callable[..., Sequence[tf.Tensor]]


def replace_rows(
    variables: Sequence[tf.Variable],
    formula: Formula,
    gradient: tf.IndexedSlices,
    *numbers: tf.Tensor,
    label: str,
    lock: tf.CriticalSection | None = None,
    distinct: bool = False,
) -> None:
    """Replaces the rows that a gradient uses by the results of `formula`.

    TensorFlow's sparse kernels process rows one by one, in one thread; gathering them, computing all at once and
    scattering them is faster. This is a read and a later write: of two concurrent updates of a row one is lost, unless
    a lock separates them.

    Args:
      variables: a variable and its slots, all on one device and with the same first axis.
      gradient: may contain a row several times.
      numbers: further arguments of the formula.
      label: the name of the variable in messages.
      distinct: whether the gradient contains no row several times.

    Raises:
      tf.errors.InvalidArgumentError: when run: the gradient is not finite. No part of it is applied.
    """
    rows = gradient.indices
    summed = gradient.values
    if not distinct:
        rows, position = tf.unique(rows)
        summed = tf.math.unsorted_segment_sum(summed, position, tf.size(rows))
    # A bad weight that all examples use shows in the next loss; a bad row that is rarely used would go unnoticed.
    # Checking each number would cost 2 % of a step, checking their sum costs nothing.
    with tf.control_dependencies(_check_finite(summed, rows, label, table_offsets(variables[0]))):
        summed = tf.identity(summed)

    def put() -> tf.Tensor:
        new_values = formula(*(tf.gather(variable, rows) for variable in variables), summed, *numbers)
        updates = [variable.scatter_update(tf.IndexedSlices(new, rows)) for variable, new in zip(variables, new_values)]
        with tf.control_dependencies([each for each in updates if each is not None]):
            return tf.size(rows)

    if lock is None:
        put()
    else:
        lock.execute(put)


def _check_finite(summed: tf.Tensor, rows: tf.Tensor, label: str, held: TableOffsets | None) -> list[Any]:
    """The check that gradients are finite; of a stack it names the table of the first row that is not."""
    if held is None:
        return [tf.debugging.check_numerics(tf.reduce_sum(summed), f"{NOT_FINITE} {label}")]
    by_row = tf.reduce_sum(summed, axis=-1)
    # At most one row, mostly none: a batch need not use a row of each shard, so that there may be no first row at all.
    first = tf.gather(rows, tf.where(~tf.math.is_finite(by_row))[:1, 0])
    table = tf.searchsorted(tf.constant(held.offsets, tf.int32), tf.cast(first, tf.int32), side="right") - 1
    names = tf.gather(tf.constant(held.names), table)
    return assertion(tf.math.is_finite(tf.reduce_sum(by_row)), f"{NOT_FINITE} table", names)


def row_update(variables: Sequence[tf.Variable], formula: Formula, *, label: str, locking: bool) -> Callable[..., None]:
    """`replace_rows` for these variables and this formula, on their device, optionally under a lock.

    It is a separate function that is not inlined. TensorFlow orders all lock releases within one function, of whichever
    lock: two workers with several steps on several tables in one function would deadlock. And inlining leaves nodes for
    the arguments on any of their devices, so that rows would travel to the worker and back, and checks would wait for
    the checks of all other tables. If a worker is lost while it waits for the lock, the lock no longer excludes others.
    """
    device = variables[0].device
    lock = None
    if locking:
        with tf.init_scope(), tf.device(device):
            lock = tf.CriticalSection(shared_name=f"rows-{uuid.uuid4().hex}")  # without a name, all locks would be one

    def update(distinct: bool, indices: tf.Tensor, values: tf.Tensor, *numbers: tf.Tensor) -> None:
        gradient = tf.IndexedSlices(values, indices)
        with tf.device(device):  # CriticalSection acquires the lock only when the numbers are available
            replace_rows(variables, formula, gradient, *numbers, label=label, lock=lock, distinct=distinct)

    function = not_inlined(update)

    def called(gradient: tf.IndexedSlices, *numbers: tf.Tensor) -> None:
        with tf.device(device):
            function(are_distinct(gradient.indices), gradient.indices, gradient.values, *numbers)

    return called


class _RowOptimizer(SlotOptimizer, LateGradients):
    """The common part; a base class before a tf-keras optimizer.

    Args, beside the arguments of `LateGradients`:
      locking: whether updates of a shard on a parameter server exclude each other. Without locking, one of two
        concurrent updates of a row is lost.
    """

    touches_rows_only = True

    def __init__(self, *args: Any, locking: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "jit_compile": False})  # XLA needs a static number of rows
        self.locking = locking
        if self.weight_decay or self.use_ema:
            raise ValueError(
                f"{type(self).__name__} does not support weight_decay and use_ema: both update all rows in each step"
            )

    def build(self, var_list: list[tf.Variable]) -> None:
        """Creates the slots, and the update function of each variable, with its lock.

        tf-keras would compute the slots in this process and send them, also the slots of a large table.
        """
        tf_keras.optimizers.Optimizer.build(self, var_list)
        if not self.has_slots:
            kinds = self._slot_kinds()
            for attribute in kinds:
                setattr(self, attribute, [])
            for variable in var_list:
                for attribute, (name, start) in kinds.items():
                    shape = self._slot_shape(variable)
                    filled = functools.partial(tf.fill, shape, tf.constant(start, variable.dtype))
                    slot = self.add_variable_from_reference(variable, name, initial_value=filled)
                    getattr(self, attribute).append(slot)
            self.slots_made()
        self._make_updaters(var_list)

    def _make_updaters(self, var_list: list[tf.Variable]) -> None:
        if not hasattr(self, "_updaters"):
            self._updaters = self.untracked({})
        for variable in var_list:
            key = self.variable_key(variable)
            if key not in self._updaters and "/job:ps" in (variable.device or ""):
                self._updaters[key] = row_update(
                    [variable, *self._beside(variable)], self._formula, label=_label(variable), locking=self.locking
                )

    def _beside(self, variable: tf.Variable) -> list[tf.Variable]:
        """The slots of a variable; for a copy on one of several devices, the slots on that device."""
        index = self.slot_index(variable)
        slots = [getattr(self, attribute)[index] for attribute in self._slot_kinds()]
        container = tf.distribute.get_strategy().extended.value_container(variable)
        copies = getattr(container, "values", (variable,))
        which = next((index for index, copy in enumerate(copies) if copy is variable), None)
        return [slot.values[which] if which is not None and hasattr(slot, "values") else slot for slot in slots]

    def update_step(self, gradient: Any, variable: tf.Variable) -> None:
        """As in tf-keras; a sparse gradient may contain a row several times.

        Raises:
          tf.errors.InvalidArgumentError: when run: a sparse gradient is not finite. Nothing of it is applied.
        """
        if not isinstance(gradient, tf.IndexedSlices):
            self._dense_step(gradient, variable)
            return
        numbers = [tf.cast(number, variable.dtype) for number in self._numbers()]
        update = self._updaters.get(self.variable_key(variable))
        if update is not None:
            update(gradient, *numbers)
        else:
            replace_rows([variable, *self._beside(variable)], self._formula, gradient, *numbers, label=_label(variable))

    def _dense_step(self, gradient: tf.Tensor, variable: tf.Variable) -> None:
        """Applies a dense gradient."""
        super().update_step(gradient, variable)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "locking": self.locking}

    @abc.abstractmethod
    def _slot_kinds(self) -> dict[str, tuple[str, float]]:
        """The name and the initial value of the slots, by the attribute of tf-keras that holds them."""

    def _slot_shape(self, variable: tf.Variable) -> Sequence[int]:
        return variable.shape

    def _numbers(self) -> tuple[Any, ...]:
        """Further arguments of the formula in this step."""
        return (self.learning_rate,)

    @abc.abstractmethod
    def _formula(self, variable: tf.Tensor, *others: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """New rows of the variable and its slots, from their rows, the summed gradients and the numbers."""


class SparseAdagrad(_RowOptimizer, tf_keras.optimizers.Adagrad):
    """Adagrad: accumulator += g^2; variable -= learning_rate g / sqrt(accumulator + epsilon).

    Duchi, Hazan, Singer: Adaptive Subgradient Methods for Online Learning and Stochastic Optimization, JMLR 12 (2011).
    """

    def _slot_kinds(self) -> dict[str, tuple[str, float]]:
        return {internals.ADAGRAD_ACCUMULATORS: ("accumulator", self.initial_accumulator_value)}

    def _formula(self, variable: tf.Tensor, *others: tf.Tensor) -> tuple[tf.Tensor, ...]:
        accumulator, gradient, rate = others
        squares = tf.square(gradient)
        if accumulator.shape[-1] != variable.shape[-1]:  # one per row; the shape of a gradient may be unknown
            squares = tf.reduce_mean(squares, axis=-1, keepdims=True)
        accumulator += squares
        return variable - rate * gradient * tf.math.rsqrt(accumulator + self.epsilon), accumulator


class RowwiseAdagrad(SparseAdagrad):
    """Adagrad with one accumulator per row of an embedding table: accumulator += mean of g^2 over the row.

    For tables of n rows and d columns the optimizer keeps n numbers instead of n d. Tables are variables with two
    axes and the name `embeddings`, as in Keras' Embedding; others are updated as by `SparseAdagrad`.
    Mudigere et al.: Software-Hardware Co-design for Fast and Scalable Training of Deep Learning Recommendation Models,
    ISCA 2022, section 4.1.4.
    """

    def _slot_shape(self, variable: tf.Variable) -> Sequence[int]:
        return [variable.shape[0], 1] if _is_table(variable) else variable.shape

    def update_step(self, gradient: Any, variable: tf.Variable) -> None:
        if _is_table(variable) and not isinstance(gradient, tf.IndexedSlices):
            gradient = tf.IndexedSlices(gradient, tf.range(tf.shape(gradient)[0]))
        super().update_step(gradient, variable)


def _label(variable: tf.Variable) -> str:
    return split_name(variable.name)[0]


def _is_table(variable: tf.Variable) -> bool:
    return len(variable.shape) == 2 and split_name(variable.name)[0].rpartition("/")[2] == "embeddings"


class LazyAdam(_RowOptimizer, tf_keras.optimizers.Adam):
    """Adam that updates the moments of a row only in steps that use the row.

    m = beta_1 m + (1 - beta_1) g; v = beta_2 v + (1 - beta_2) g^2;
    variable -= learning_rate sqrt(1 - beta_2^t) / (1 - beta_1^t) m / (sqrt(v) + epsilon), t the steps of all rows.
    Kingma, Ba: Adam: A Method for Stochastic Optimization, ICLR 2015; lazy as in TensorFlow Addons' LazyAdam.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.amsgrad or self.adaptive_epsilon:
            raise ValueError("LazyAdam does not support amsgrad and adaptive_epsilon")

    def _dense_step(self, gradient: tf.Tensor, variable: tf.Variable) -> None:
        """Uses one kernel, where tf-keras uses about 25 per variable."""
        m, v = self._beside(variable)
        (alpha,) = self._numbers()
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=m.handle,
            v=v.handle,
            beta1_power=0.0,  # alpha includes the bias correction
            beta2_power=0.0,
            lr=tf.cast(alpha, variable.dtype),
            beta1=self.beta_1,
            beta2=self.beta_2,
            epsilon=self.epsilon,
            grad=gradient,
            use_locking=self.locking,
        )

    def _slot_kinds(self) -> dict[str, tuple[str, float]]:
        return {internals.ADAM_MOMENTUMS: ("m", 0.0), internals.ADAM_VELOCITIES: ("v", 0.0)}

    def _numbers(self) -> tuple[Any, ...]:
        step = tf.cast(self.iterations + 1, tf.float32)
        correction = tf.sqrt(1 - tf.pow(self.beta_2, step)) / (1 - tf.pow(self.beta_1, step))
        return (self.learning_rate * correction,)

    def _formula(self, variable: tf.Tensor, *others: tf.Tensor) -> tuple[tf.Tensor, ...]:
        m, v, gradient, alpha = others
        m += (gradient - m) * (1 - self.beta_1)
        v += (tf.square(gradient) - v) * (1 - self.beta_2)
        return variable - alpha * m / (tf.sqrt(v) + self.epsilon), m, v


class SparseSGD(_RowOptimizer, tf_keras.optimizers.SGD):
    """Plain stochastic gradient descent: variable -= learning_rate g. No momentum, and so no slot."""

    def __init__(self, learning_rate: Any = 0.01, name: str = "SparseSGD", **kwargs: Any) -> None:
        if kwargs.pop("momentum", 0.0) or kwargs.pop("nesterov", False):
            raise ValueError("SparseSGD does not support momentum, which would update rows outside the batch")
        super().__init__(learning_rate, name=name, **kwargs)

    def _dense_step(self, gradient: tf.Tensor, variable: tf.Variable) -> None:
        variable.assign_sub(tf.cast(self.learning_rate, variable.dtype) * gradient)

    def _slot_kinds(self) -> dict[str, tuple[str, float]]:
        return {}

    def _formula(self, variable: tf.Tensor, *others: tf.Tensor) -> tuple[tf.Tensor, ...]:
        gradient, rate = others
        return (variable - rate * gradient,)


class SparseFtrl(_RowOptimizer, tf_keras.optimizers.Ftrl):
    """Follow the regularized leader, with l1 and l2 as in tf-keras' Ftrl.

    McMahan et al.: Ad Click Prediction: a View from the Trenches, KDD 2013, algorithm 1.
    """

    def _slot_kinds(self) -> dict[str, tuple[str, float]]:
        start = self.initial_accumulator_value
        return {internals.FTRL_ACCUMULATORS: ("accumulator", start), internals.FTRL_LINEARS: ("linear", 0.0)}

    def _formula(self, variable: tf.Tensor, *others: tf.Tensor) -> tuple[tf.Tensor, ...]:
        accumulator, linear, gradient, rate = others
        power = self.learning_rate_power
        l1 = self.l1_regularization_strength
        l2 = self.l2_regularization_strength + self.beta / (2.0 * rate)
        shrunk = gradient + 2.0 * self.l2_shrinkage_regularization_strength * variable
        grown = accumulator + tf.square(gradient)
        linear += shrunk - (grown**-power - accumulator**-power) / rate * variable
        quadratic = grown**-power / rate + 2.0 * l2
        return (tf.clip_by_value(linear, -l1, l1) - linear) / quadratic, grown, linear
