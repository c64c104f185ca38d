"""Updating the rows of a variable that a batch has touched, where the variable is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

# From the touched rows of the variable and of its slots, the gradients summed by row, and further numbers, to the new
# rows of each.
Formula = Callable[..., Sequence[tf.Tensor]]


def sum_duplicates(gradient: tf.IndexedSlices) -> tuple[tf.Tensor, tf.Tensor]:
    """The rows that occur in a gradient, each once, and the sum of the gradients of each."""
    rows, position = tf.unique(gradient.indices)
    return rows, tf.math.unsorted_segment_sum(gradient.values, position, tf.size(rows))


def updater(
    variables: Sequence[tf.Variable], formula: Formula, *, locking: bool
) -> tf.types.experimental.GenericFunction:
    """A function of (rows, summed gradients, further numbers...) that replaces rows by what `formula` makes of them.

    TensorFlow's own sparse kernels go through the rows one by one, in one thread; gathering them, computing with all at
    once and putting them back is faster. It is a read, a computation and a write: of two that meet on a row one is
    lost, unless a lock keeps them apart.

    It is a function of its own for the lock's sake. TensorFlow puts all releases of locks within one function in an
    order, of whichever lock: two workers with several steps of several tables in one function would wait for each
    other for ever.

    Args:
      variables: a variable and its slots, all on one device and with the same first axis.
      locking: whether a lock beside the variables is held from the reading to the writing.
    """
    device = variables[0].device
    with tf.init_scope(), tf.device(device):
        lock = tf.CriticalSection(name="rows") if locking else None

    def replace(rows: tf.Tensor, *numbers: tf.Tensor) -> tf.Tensor:
        made = formula(*(tf.gather(variable, rows) for variable in variables), *numbers)
        written = [variable.scatter_update(tf.IndexedSlices(values, rows)) for variable, values in zip(variables, made)]
        with tf.control_dependencies(written):
            return tf.size(rows)  # what the lock waits for

    def update(rows: tf.Tensor, *numbers: tf.Tensor) -> None:
        with tf.device(device):
            if lock is None:
                replace(rows, *numbers)
            else:  # taken when the numbers are there, not before: CriticalSection sees to that
                lock.execute(lambda: replace(rows, *numbers))

    return tf.function(update)
