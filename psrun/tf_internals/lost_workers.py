"""Which lost workers TensorFlow's coordinator waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.coordinator.cluster_coordinator import WorkerPreemptionHandler

from psrun.tf_internals.replaced import replace
from psrun.tf_internals.required import require

_POLL_S = 0.2
_MOST_PROBES = 64
_OTHERS_WITHIN_S = 1.0  # several that are restarted together come back together


class FailureHandler(WorkerPreemptionHandler):
    """A coordinator's handler of failures, which takes lost workers back one by one.

    TensorFlow connects to the whole cluster again, which blocks until each lost worker is back. Here it gets the
    definition of a cluster without those that are still lost; a later one has them again.

    Where only the connection between a worker and a parameter server breaks, TensorFlow runs the closure again and
    holds the worker for whole. But with the step it has cancelled the iterator that the step was reading from, for
    good: the next step would find endless data at its end. Here the worker's data is made anew (TensorFlow 2.21).

    The set of lost workers is changed by the workers' threads, and read with the handler's lock held.
    """

    @classmethod
    def of(
        cls, coordinator: tf.distribute.coordinator.ClusterCoordinator, answers: Callable[[str], bool]
    ) -> FailureHandler:
        """The handler of a coordinator, which becomes one of this kind.

        Args:
          answers: whether something listens at an address, HOST:PORT.
        """
        handler = coordinator._cluster.failure_handler
        if type(handler) is not WorkerPreemptionHandler:
            raise RuntimeError(f"TensorFlow {tf.__version__} handles lost workers by {type(handler).__name__}")
        require(handler, "_server_def", "_cluster_update_lock", "_worker_up_cond", "_cluster_due_for_update_or_finish",
                "_should_preemption_thread_run", "_error_from_recovery", "wait_on_failure")  # fmt: skip
        handler._answers = answers
        handler._lost = set()
        handler._left_out = set()  # of the definition that was used last
        replace(handler, "__class__", lambda _: cls)
        return handler

    def wait_on_failure(
        self,
        *,
        on_failure_fn: Any = None,
        on_transient_failure_fn: Any = None,
        on_recovery_fn: Any = None,
        worker_device_name: str,
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

        def cancelled() -> None:
            recovered()
            if on_transient_failure_fn is not None:
                on_transient_failure_fn()

        return super().wait_on_failure(
            on_failure_fn=failed,
            on_transient_failure_fn=cancelled,
            on_recovery_fn=recovered,
            worker_device_name=worker_device_name,
        )

    def _wait_for(self, worker: int) -> None:
        """Waits until a lost worker is in the cluster again: the handler has woken the threads of all lost workers."""
        with self._cluster_update_lock:
            while worker in self._left_out and self._should_preemption_thread_run:
                self._cluster_due_for_update_or_finish.set()
                self._worker_up_cond.wait(_POLL_S)
            self._lost.discard(worker)

    @property
    def _server_def(self) -> Any:
        """The definition of a cluster with all workers that answer, once a lost one does. The lock is held.

        A wait for the condition releases the lock, so that the threads of workers go on.
        """
        whole = vars(self)["_server_def"]
        absent: set[int] = set()
        waited_s = 0.0
        while self._should_preemption_thread_run:
            absent = self._absent(whole)
            back = self._lost - absent
            if not absent or (back and waited_s >= _OTHERS_WITHIN_S):
                break
            self._worker_up_cond.wait(_POLL_S)
            waited_s += _POLL_S * bool(back)
        self._left_out = absent
        if not self._left_out:
            return whole
        part = type(whole)()
        part.CopyFrom(whole)
        for job in self._jobs(part):
            for worker in self._left_out:
                del job.tasks[worker]
        return part

    def _absent(self, whole: Any) -> set[int]:
        """The workers that do not answer, also those whose loss no closure has shown yet."""
        addresses = {worker: address for job in self._jobs(whole) for worker, address in job.tasks.items()}
        with ThreadPoolExecutor(min(len(addresses), _MOST_PROBES)) as pool:
            answered = dict(zip(addresses, pool.map(self._answers, addresses.values())))
        return {worker for worker, answers in answered.items() if not answers}

    @staticmethod
    def _jobs(definition: Any) -> Iterator[Any]:
        return (job for job in definition.cluster.job if job.name == "worker")
