"""Batches that tf.data service hands out: each to the worker that asks first."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from psrun.cluster.data_service import service
from psrun.data.source import ByNumber
from psrun.program.compiled_model import Program
from psrun.training.audit import Audit
from psrun.training.input_streams import Stream

# Batches on their way to a worker: what is lost with it, and what a run that goes on may do twice or leave out.
MOST_ON_THEIR_WAY = 4


class DataServiceInput(Stream):
    """The service's workers read and preprocess what the dispatcher splits by number; nobody waits for a slow worker.

    A batch that was handed out is not handed out again: those on their way to a worker are lost with it, and so is what
    a data worker was reading when it died.

    Args:
      first: number of the first batch.
    """

    def __init__(self, program: Program, first: int, audit: Audit | None = None) -> None:
        assert isinstance(program.source, ByNumber)
        target = program.distribution.data_service
        self._num_examples: int = program.source.num_train_examples
        read = program.train_dataset(numbers=lambda: tf.data.Dataset.range(first, tf.int64.max))
        self._of_service: dict[str, Any] = {
            "service": target,
            "dataset_id": service.register_dataset(target, read, compression=None),
            "element_spec": read.element_spec,
            "job_name": f"psrun-{uuid.uuid4().hex}",  # one for all workers of this chief, which share its batches
        }
        super().__init__(self._handed_out, audit)

    def _handed_out(self, context: Any = None, numbers: Callable[[], tf.data.Dataset] | None = None) -> tf.data.Dataset:
        handed_out = service.from_dataset_id(
            service.ShardingPolicy.DYNAMIC,
            max_outstanding_requests=MOST_ON_THEIR_WAY,
            **self._of_service,
        )
        if numbers is None:
            return handed_out.map(lambda number, examples, batch: batch).prefetch(1)
        worker = tf.cast(tf.distribute.coordinator.experimental_get_current_worker_index(), tf.int64)
        first = worker * self._num_examples
        return handed_out.map(lambda number, examples, batch: (number, first + examples, batch)).prefetch(1)
