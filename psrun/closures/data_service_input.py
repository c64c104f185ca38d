"""Batches of tf.data service: each goes to the first worker that requests it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from psrun.closures.audit import Audit
from psrun.closures.input_streams import Stream
from psrun.cluster.data_service import service
from psrun.data.source import ByNumber
from psrun.program.compiled_model import Program

# Batches that a worker has requested and not yet used. A lost worker loses them; a resumed run repeats or skips them.
MAX_OUTSTANDING = 4


class DataServiceInput(Stream):
    """Data workers read and preprocess batches, which the dispatcher assigns by number; no worker waits for another.

    A batch is delivered once: the outstanding batches of a lost worker are lost, and so are those that a lost data
    worker was reading.

    Args:
      first: number of the first batch.
    """

    def __init__(self, program: Program, first: int, audit: Audit | None = None) -> None:
        assert isinstance(program.source, ByNumber)
        target = program.distribution.data_service
        self._num_examples: int = program.source.num_train_examples
        dataset = program.train_dataset(numbers=lambda: tf.data.Dataset.range(first, tf.int64.max))
        self._of_service: dict[str, Any] = {
            "service": target,
            "dataset_id": service.register_dataset(target, dataset, compression=None),
            "element_spec": dataset.element_spec,
            "job_name": f"psrun-{uuid.uuid4().hex}",  # one for all workers of this chief, which share its batches
        }
        super().__init__(self._assigned, audit)

    def _assigned(self, context: Any = None, numbers: Callable[[], tf.data.Dataset] | None = None) -> tf.data.Dataset:
        assigned = service.from_dataset_id(
            service.ShardingPolicy.DYNAMIC,
            max_outstanding_requests=MAX_OUTSTANDING,
            **self._of_service,
        )
        if numbers is None:
            return assigned.map(lambda number, examples, batch: batch).prefetch(1)
        worker = tf.cast(tf.distribute.coordinator.experimental_get_current_worker_index(), tf.int64)
        first = worker * self._num_examples
        return assigned.map(lambda number, examples, batch: (number, first + examples, batch)).prefetch(1)
