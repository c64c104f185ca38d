"""TensorFlow's own threads and queue of a coordinator, with workers whose closures only call a Python function.

There are no servers: so many workers as a machine has no memory for, and lost workers at once.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from tensorflow.python.distribute.coordinator import cluster_coordinator


class Lost(Exception):
    """A worker is lost while it runs a closure."""


class Workers:
    """A cluster of workers, with the part of a `Distribution` that closures need.

    Args:
      execute: called with the index of a worker and the arguments of a closure, in the thread of the worker; it raises
        Lost if the worker is lost.
      lost_s: seconds until a lost worker is back.

    Attributes:
      coordinator: schedules closures, as TensorFlow's does.
    """

    def __init__(self, num_workers: int, execute: Callable[..., None], lost_s: float = 0.0) -> None:
        self.num_workers = num_workers
        self._execute = execute
        queue = cluster_coordinator._CoordinatedClosureQueue()
        cluster = SimpleNamespace(closure_queue=queue, failure_handler=_Handler(lost_s), workers=[])
        cluster.resource_cancellation_mgr = None
        for index in range(num_workers):
            cluster.workers.append(_Worker(index, f"/job:worker/replica:0/task:{index}", cluster))
        self.coordinator = SimpleNamespace(_cluster=cluster, schedule=self._schedule, join=queue.wait)

    def _schedule(self, function: Any, args: tuple[Any, ...]) -> Any:
        closure = _Closure(self._execute, args)
        self.coordinator._cluster.closure_queue.put(closure)
        return closure.value

    def stop(self, within_s: float = 60.0) -> None:
        """Ends all threads."""
        cluster = self.coordinator._cluster
        for worker in cluster.workers:
            worker.stop()
        cluster.closure_queue.stop()
        end_s = time.monotonic() + within_s
        names = [f"WorkerClosureProcessingLoop-{index}" for index in range(self.num_workers)]
        while any(thread.name in names for thread in threading.enumerate()):
            assert time.monotonic() < end_s, "threads of workers do not end"
            time.sleep(0.01)


class _Worker(cluster_coordinator.Worker):
    """A worker whose resources are Python functions."""

    def create_resource(self, function: Any, args: Any = None, kwargs: Any = None) -> Any:
        closure = _Closure(lambda worker: function(), (), is_resource=True)
        self._schedule_resource(closure)
        return closure.value

    def _process_queue(self) -> None:
        while self._should_worker_thread_run:
            closure = self._cluster.closure_queue.get(tag=self.worker_index)
            if closure is None:
                return
            if closure.is_resource:
                closure.execute_on(self)
            else:
                self._process_closure(closure)


class _Handler:
    """A handler of failures; lost workers come back by themselves."""

    def __init__(self, lost_s: float) -> None:
        self._lost_s = lost_s

    @contextlib.contextmanager
    def wait_on_failure(self, on_failure_fn: Any = None, on_recovery_fn: Any = None, **others: Any) -> Iterator[None]:
        try:
            yield
        except Lost as error:
            on_failure_fn(error)
            time.sleep(self._lost_s)
            on_recovery_fn()


class _Value:
    """A remote value without a value."""

    def __init__(self) -> None:
        self._status_available_event = threading.Event()
        self._error: Exception | None = None

    def get(self) -> None:
        self._status_available_event.wait()
        if self._error is not None:
            raise self._error

    def _set_values(self) -> None:
        self._status_available_event.set()

    def _set_error(self, error: Exception) -> None:
        self._error = error
        self._status_available_event.set()


class _Closure:
    tag: int | None = None

    def __init__(self, execute: Callable[..., None], args: tuple[Any, ...], *, is_resource: bool = False) -> None:
        self._execute = execute
        self._args = args
        self.is_resource = is_resource
        self.value = _Value()

    def _output_remote_value_ref(self) -> _Value:
        return self.value

    def execute_on(self, worker: cluster_coordinator.Worker) -> None:
        self._execute(worker.worker_index, *self._args)
        self.value._set_values()

    def maybe_call_with_output_remote_value(self, call: Callable[[_Value], Any]) -> Any:
        return call(self.value)

    def mark_cancelled(self) -> None:
        self.value._set_error(RuntimeError("cancelled"))
