"""Which lost workers TensorFlow's coordinator waits for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from psrun.tf_internals.replaced import replace
from psrun.tf_internals.required import require

_POLL_S = 0.2
_MOST_PROBES = 64
_OTHERS_WITHIN_S = 1.0  # several that are restarted together come back together


def take_back_one_by_one(
    coordinator: tf.distribute.coordinator.ClusterCoordinator, answers: Callable[[str], bool]
) -> None:
    """Takes a lost worker back when it is there again, also while another one is not.

    TensorFlow connects to the whole cluster again, which blocks until each lost worker is back. It gets the definition
    of a cluster without those that are still lost; a later one has them again (TensorFlow 2.21).

    Args:
      answers: whether something listens at an address, HOST:PORT.
    """
    handler = coordinator._cluster.failure_handler
    require(handler, "_server_def", "_cluster_update_lock", "_worker_up_cond", "_cluster_due_for_update_or_finish",
            "_should_preemption_thread_run", "_error_from_recovery", "wait_on_failure")  # fmt: skip
    _LostWorkers(handler, answers)


class _LostWorkers:
    """Replaces the definition of the cluster that a handler of failures connects to, and what it waits for.

    The set of lost workers is changed by the workers' threads, and read with the handler's lock held.
    """

    def __init__(self, handler: Any, answers: Callable[[str], bool]) -> None:
        self._handler = handler
        self._answers = answers
        self._whole = handler._server_def
        self._lost: set[int] = set()
        self._left_out: set[int] = set()  # of the definition that was used last
        definition = property(lambda _: self._definition(), lambda _, value: None)
        replace(handler, "__class__", lambda kind: type(kind.__name__, (kind,), {"_server_def": definition}))
        replace(handler, "wait_on_failure", lambda waiting: functools.partial(self._wait_on_failure, waiting))

    def _wait_on_failure(
        self,
        waiting: Callable[..., AbstractContextManager[None]],
        *,
        on_failure_fn: Any = None,
        on_recovery_fn: Any = None,
        worker_device_name: str = "(unknown)",
        **options: Any,
    ) -> AbstractContextManager[None]:
        worker = tf.DeviceSpec.from_string(worker_device_name).task

        def failed(error: Exception) -> None:
            self._lost.add(worker)
            if on_failure_fn is not None:
                on_failure_fn(error)

        def recovered() -> None:
            self._wait_for(worker)
            if on_recovery_fn is not None:
                on_recovery_fn()

        return waiting(on_failure_fn=failed, on_recovery_fn=recovered, worker_device_name=worker_device_name, **options)

    def _wait_for(self, worker: int) -> None:
        """Waits until a lost worker is in the cluster again: the handler has woken the threads of all lost workers."""
        handler = self._handler
        with handler._cluster_update_lock:
            while worker in self._left_out and handler._should_preemption_thread_run:
                handler._cluster_due_for_update_or_finish.set()
                handler._worker_up_cond.wait(_POLL_S)
            self._lost.discard(worker)

    def _definition(self) -> Any:
        """The definition of a cluster with all workers that answer, once a lost one does. The lock is held.

        A wait for the condition releases the lock, so that the threads of workers go on.
        """
        handler = self._handler
        absent: set[int] = set()
        waited_s = 0.0
        while handler._should_preemption_thread_run:
            absent = self._absent()
            back = self._lost - absent
            if not absent or (back and waited_s >= _OTHERS_WITHIN_S):
                break
            handler._worker_up_cond.wait(_POLL_S)
            waited_s += _POLL_S * bool(back)
        self._left_out = absent
        if not self._left_out:
            return self._whole
        part = type(self._whole)()
        part.CopyFrom(self._whole)
        for job in self._jobs(part):
            for worker in self._left_out:
                del job.tasks[worker]
        return part

    def _absent(self) -> set[int]:
        """The workers that do not answer, also those whose loss no closure has shown yet."""
        addresses = {worker: address for job in self._jobs(self._whole) for worker, address in job.tasks.items()}
        with ThreadPoolExecutor(min(len(addresses), _MOST_PROBES)) as pool:
            answered = dict(zip(addresses, pool.map(self._answers, addresses.values())))
        return {worker for worker, answers in answered.items() if not answers}

    @staticmethod
    def _jobs(definition: Any) -> Iterator[Any]:
        return (job for job in definition.cluster.job if job.name == "worker")
