"""Updating the rows of a variable that a batch has touched, where the variable is."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

import tensorflow as tf

from psrun.tf_internals.tracing import not_inlined

NOT_FINITE = "not finite: the gradient of"
# From the touched rows of the variable and of its slots, the gradients summed by row, and further numbers, to the new
# rows of each.
Formula = Callable[..., Sequence[tf.Tensor]]


def replace(
    variables: Sequence[tf.Variable],
    formula: Formula,
    gradient: tf.IndexedSlices,
    *numbers: tf.Tensor,
    label: str,
    lock: tf.CriticalSection | None = None,
) -> None:
    """Puts what `formula` makes of the rows that a gradient touches in their place.

    TensorFlow's own sparse kernels go through the rows one by one, in one thread; gathering them, computing with all at
    once and putting them back is faster. It is a read, a computation and a write: of two that meet on a row one is
    lost, unless a lock keeps them apart.

    Args:
      variables: a variable and its slots, all on one device and with the same first axis.
      gradient: may have a row more than once.
      numbers: what the formula takes besides rows and gradients.
      label: the name of the variable in messages.

    Raises:
      tf.errors.InvalidArgumentError: when run: the gradient is not finite. Nothing of it is applied.
    """
    rows, position = tf.unique(gradient.indices)
    summed = tf.math.unsorted_segment_sum(gradient.values, position, tf.size(rows))
    # A weight that all examples use shows in the next loss; a row that is seldom asked for would be spoilt unseen.
    # The check of each number would cost 2 % of a step, that of their sum nothing.
    with tf.control_dependencies([tf.debugging.check_numerics(tf.reduce_sum(summed), f"{NOT_FINITE} {label}")]):
        summed = tf.identity(summed)

    def put() -> tf.Tensor:
        made = formula(*(tf.gather(variable, rows) for variable in variables), summed, *numbers)
        written = [variable.scatter_update(tf.IndexedSlices(new, rows)) for variable, new in zip(variables, made)]
        with tf.control_dependencies([each for each in written if each is not None]):
            return tf.size(rows)

    if lock is None:
        put()
    else:
        lock.execute(put)


def replacing(variables: Sequence[tf.Variable], formula: Formula, *, label: str, locking: bool) -> Callable[..., None]:
    """`replace` for these variables and this formula, run where they are, with a lock held meanwhile if asked for.

    It is a function of its own, and stays one. TensorFlow puts all releases of locks within one function in an order,
    of whichever lock: two workers with several steps of several tables in one function would wait for each other for
    ever. And a function that is merged with its caller leaves nodes for its arguments on any of their devices, so that
    rows would go to the worker and back; its checks would wait for those of all other tables. A worker that is lost
    while it waits for the lock lets others in beside the one that holds it.
    """
    device, lock = variables[0].device, None
    if locking:
        with tf.init_scope(), tf.device(device):
            lock = tf.CriticalSection(shared_name=f"rows-{uuid.uuid4().hex}")  # without a name all would be one

    def update(indices: tf.Tensor, values: tf.Tensor, *numbers: tf.Tensor) -> None:
        with tf.device(device):  # CriticalSection takes the lock when the numbers are there, not before
            replace(variables, formula, tf.IndexedSlices(values, indices), *numbers, label=label, lock=lock)

    function = not_inlined(update)

    def called(gradient: tf.IndexedSlices, *numbers: tf.Tensor) -> None:
        with tf.device(device):
            function(gradient.indices, gradient.values, *numbers)

    return called
