"""Updating the rows of a variable that a batch has touched, where the variable is."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

import tensorflow as tf

# From the touched rows of the variable and of its slots, the gradients summed by row, and further numbers, to the new
# rows of each.
Formula = Callable[..., Sequence[tf.Tensor]]


def sum_duplicates(gradient: tf.IndexedSlices) -> tuple[tf.Tensor, tf.Tensor]:
    """The rows that occur in a gradient, each once, and the sum of the gradients of each."""
    rows, position = tf.unique(gradient.indices)
    return rows, tf.math.unsorted_segment_sum(gradient.values, position, tf.size(rows))


def replace(variables: Sequence[tf.Variable], formula: Formula, rows: tf.Tensor, *numbers: tf.Tensor) -> tf.Tensor:
    """Puts what `formula` makes of some rows in their place; what it returns is there when that is done.

    TensorFlow's own sparse kernels go through the rows one by one, in one thread; gathering them, computing with all at
    once and putting them back is faster. It is a read, a computation and a write: of two that meet on a row one is
    lost, unless a lock keeps them apart.

    Args:
      variables: a variable and its slots, all on one device and with the same first axis.
      rows: indices, each once.
      numbers: the gradients summed by row, and what else the formula takes.
    """
    made = formula(*(tf.gather(variable, rows) for variable in variables), *numbers)
    written = [variable.scatter_update(tf.IndexedSlices(values, rows)) for variable, values in zip(variables, made)]
    with tf.control_dependencies([each for each in written if each is not None]):
        return tf.size(rows)


def exclusive(variables: Sequence[tf.Variable], formula: Formula) -> Callable[..., None]:
    """`replace` for these variables and this formula, with a lock beside the variables held meanwhile.

    It is a function of its own for the lock's sake. TensorFlow puts all releases of locks within one function in an
    order, of whichever lock: two workers with several steps of several tables in one function would wait for each
    other for ever. A worker that is lost while it waits for the lock lets others in beside the one that holds it.
    """
    device = variables[0].device
    with tf.init_scope(), tf.device(device):
        lock = tf.CriticalSection(shared_name=f"rows-{uuid.uuid4().hex}")  # without a name all would be one

    def update(rows: tf.Tensor, *numbers: tf.Tensor) -> None:
        with tf.device(device):  # CriticalSection takes the lock when the numbers are there, not before
            lock.execute(lambda: replace(variables, formula, rows, *numbers))

    return tf.function(update)
