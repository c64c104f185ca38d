"""TensorFlow's errors in a training, and what psrun makes of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from psrun.errors import TaskLostError, TrainingError
from psrun.training import failures

pytestmark = pytest.mark.tensorflow


def failed(first: tf.errors.OpError, raised: tf.errors.OpError) -> str:
    """The message where a step failed with `first`, as the coordinator logs it, and `raised` is what it raises."""

    def fails() -> None:
        log = logging.getLogger("tensorflow")
        with failures.named(lambda: None):
            log.error(" %s encountered the following error when processing closure: %r:%s", "/job:worker", first, first)
            log.error("Start cancelling closures due to error %r: %s", first, first)
            raise raised

    with pytest.raises(TrainingError) as caught:
        fails()
    return str(caught.value)


@pytest.mark.parametrize(
    "raised",
    [
        tf.errors.OutOfRangeError(None, None, "End of sequence"),  # of a dataset that failed, and is read once more
        tf.errors.OutOfRangeError(None, None, "Function was cancelled before it was started"),
        tf.errors.CancelledError(None, None, "cancelled"),
    ],
)
def test_the_first_of_several_errors_is_reported(raised):
    first = tf.errors.InvalidArgumentError(None, None, "Graph execution error:\n\nplanted failure\n")
    assert failed(first, raised).endswith(": planted failure")


@pytest.mark.parametrize(
    "other", ["CANCELLED:  EagerClusterFunctionLibraryRuntime::Run", "OUT_OF_RANGE:  End of sequence"]
)
@pytest.mark.parametrize("turned", [False, True])
def test_of_errors_at_several_places_of_a_step_the_cause_is_reported(other, turned):
    causes = [other, "INVALID_ARGUMENT:  planted failure"]
    roots = [f"  ({number}) {cause}\n\t [[node]]" for number, cause in enumerate(causes[::-1] if turned else causes)]
    both = "\n".join(["Graph execution error:", "", "2 root error(s) found.", *roots, "0 successful operations."])
    first = tf.errors.InvalidArgumentError(None, None, both)
    assert failed(first, tf.errors.CancelledError(None, None, "cancelled")).endswith("planted failure")


def read_by(dataset: tf.data.Dataset) -> str:
    """The message where a step failed that reads a dataset."""

    def reads() -> None:
        step = tf.function(lambda iterator: next(iterator))
        with failures.named(lambda: None):
            iterator = iter(dataset)
            for _ in range(9):
                step(iterator)

    with pytest.raises(TrainingError) as caught:
        reads()
    return str(caught.value)


def test_an_exception_of_a_generator_is_reported_with_its_file_and_line():
    def rows() -> Iterator[int]:
        yield 1
        {}[1500]  # the innermost frame in the user's code

    line = rows.__code__.co_firstlineno + 2
    numbers = tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec((), tf.int64))
    message = read_by(numbers.map(lambda each: each + 1))
    assert message == f"a step failed: {__file__}, line {line}: KeyError: 1500"


def test_an_assertion_in_a_map_of_the_data_is_reported_without_the_chain_of_iterators():
    def checked(price: tf.Tensor) -> tf.Tensor:
        tf.debugging.assert_less(price, tf.constant(3, tf.int64), "price is too large")
        return price

    message = read_by(tf.data.Dataset.range(9).map(checked).map(lambda price: price + 1).batch(2).repeat().prefetch(1))
    assert message.startswith(
        "a step failed: InvalidArgumentError: in the data: assertion failed: [price is too large]"
    )


def test_a_server_that_a_hook_found_lost_is_a_lost_task():
    def check() -> None:
        raise tf.errors.UnavailableError(None, None, "Socket closed, from /job:ps/replica:0/task:1")

    session: Any = SimpleNamespace(check=check)
    with pytest.raises(TaskLostError) as caught, failures.named(lambda: session):
        session.check()
    assert caught.value.task == "ps-1"
