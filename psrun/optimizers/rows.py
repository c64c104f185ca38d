"""Updates the rows of a variable that a batch uses, on the device of the variable."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from psrun.layers.base import check
from psrun.layers.fetch import are_distinct
from psrun.layers.stack import TableOffsets, table_offsets
from psrun.tf_internals.tracing import not_inlined

NOT_FINITE = "not finite: the gradient of"
# A function of the used rows of the variable and of its slots, the gradients summed by row, and further numbers; it
# returns the new rows of each.
Formula = Callable[..., Sequence[tf.Tensor]]


def replace(
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
    with tf.control_dependencies(_finite(summed, rows, label, table_offsets(variables[0]))):
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


def _finite(summed: tf.Tensor, rows: tf.Tensor, label: str, held: TableOffsets | None) -> list[Any]:
    """The check that gradients are finite; of a stack it names the table of the first row that is not."""
    if held is None:
        return [tf.debugging.check_numerics(tf.reduce_sum(summed), f"{NOT_FINITE} {label}")]
    by_row = tf.reduce_sum(summed, axis=-1)
    # At most one row, mostly none: a batch need not use a row of each shard, so that there may be no first row at all.
    first = tf.gather(rows, tf.where(~tf.math.is_finite(by_row))[:1, 0])
    table = tf.searchsorted(tf.constant(held.offsets, tf.int32), tf.cast(first, tf.int32), side="right") - 1
    names = tf.gather(tf.constant(held.names), table)
    return check(tf.math.is_finite(tf.reduce_sum(by_row)), f"{NOT_FINITE} table", names)


def replacing(variables: Sequence[tf.Variable], formula: Formula, *, label: str, locking: bool) -> Callable[..., None]:
    """`replace` for these variables and this formula, on their device, optionally under a lock.

    It is a separate function that is not inlined. TensorFlow orders all lock releases within one function, of whichever
    lock: two workers with several steps on several tables in one function would deadlock. And inlining leaves nodes for
    the arguments on any of their devices, so that rows would travel to the worker and back, and checks would wait for
    those of all other tables. If a worker is lost while it waits for the lock, the lock no longer excludes others.
    """
    device = variables[0].device
    lock = None
    if locking:
        with tf.init_scope(), tf.device(device):
            lock = tf.CriticalSection(shared_name=f"rows-{uuid.uuid4().hex}")  # without a name, all locks would be one

    def update(distinct: bool, indices: tf.Tensor, values: tf.Tensor, *numbers: tf.Tensor) -> None:
        gradient = tf.IndexedSlices(values, indices)
        with tf.device(device):  # CriticalSection acquires the lock only when the numbers are available
            replace(variables, formula, gradient, *numbers, label=label, lock=lock, distinct=distinct)

    function = not_inlined(update)

    def called(gradient: tf.IndexedSlices, *numbers: tf.Tensor) -> None:
        with tf.device(device):
            function(are_distinct(gradient.indices), gradient.indices, gradient.values, *numbers)

    return called
