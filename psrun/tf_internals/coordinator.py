"""TensorFlow's coordinator: which worker takes which closure, and which lost workers it waits for."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf
from tensorflow.python.distribute.coordinator.cluster_coordinator import (
    WorkerPreemptionHandler,
    _CoordinatedClosureQueue,
)
from tensorflow.python.distribute.parameter_server_strategy_v2 import ParameterServerStrategyV2Extended

from psrun.tf_internals.names import replace, require

_LOST_POLL_S = 0.2
_MOST_PROBES = 64
_OTHERS_WITHIN_S = 1.0  # several that are restarted together come back together


class Rule(Protocol):
    """Decides which worker takes which closure. Every method is called with the lock of the queue held."""

    def choose(self, worker: int, queued: Sequence[Any]) -> int | None:
        """The position of the closure that a worker without one takes; None if it has to wait.

        Args:
          queued: the marks of the closures, in the order in which they were scheduled; None for a closure without one.
        """

    def finished(self, worker: int, mark: Any) -> bool:
        """A worker has done a closure with a mark; returns whether workers that have to wait are to ask again."""

    def left(self, worker: int) -> bool:
        """A worker was lost, or one of its closures is to run again; it takes no closure until `returned`.

        Returns whether workers that have to wait are to ask again.
        """

    def returned(self, worker: int) -> None:
        """A worker that had left asks for a closure."""

    def is_over(self, mark: Any) -> bool:
        """Whether a closure with this mark need not run any more."""


@dataclass(frozen=True)
class Again:
    """What a closure does when it runs again: a concrete function with the same results, and its arguments."""

    function: Any
    arguments: tuple[Any, ...]


class ClosureQueue(_CoordinatedClosureQueue):
    """The queue of a coordinator. Without a rule, closures are taken in the order in which they were scheduled.

    TensorFlow gives the oldest closure to the worker that asks first, and does not tell when a closure ends, how long
    workers wait, or that a closure runs again. It wakes a worker for each closure, which may have to wait by the rule,
    and all of them for what is meant for one (TensorFlow 2.21). Here the thread that schedules a closure gives it to a
    worker that may take it, and wakes that worker only.

    Attributes:
      ended: notified when a closure has finished, failed or was cancelled.
    """

    @classmethod
    def of(cls, coordinator: tf.distribute.coordinator.ClusterCoordinator) -> ClosureQueue:
        """The queue of a coordinator; there is one, which becomes a `ClosureQueue` by the first call."""
        cluster = coordinator._cluster
        queue = cluster.closure_queue
        if not isinstance(queue, cls):
            cls._begin(queue)  # before: the threads of workers may call the new methods at once
            replace(queue, "__class__", lambda _: cls)
            for worker in cluster.workers:
                worker.create_resource(lambda: None)  # so that its thread leaves TensorFlow's `get`
            with queue._queue_lock:
                queue._closures_queued_condition.notify_all()
        return queue

    def _begin(self) -> None:
        """What a constructor would do: TensorFlow has made the queue."""
        require(self, "put", "get", "put_back", "stop", "clear_tag_unlocked", "_queue_lock",
                "_closures_queued_condition", "_queue_free_slot_condition", "_queue", "_tagged_queue",
                "_should_process_closures", "_stop_waiting_condition", "_error", "_cancellation_mgr")  # fmt: skip
        self.ended = threading.Condition()
        self._changed = threading.Condition(self._queue_lock)
        self._awaited: Callable[[], bool] | None = None
        self._wakes: dict[int, threading.Condition] = {}
        self._rule: Rule | None = None
        self._scheduling = threading.local()
        self._holds_back = False
        self._ready: dict[int, None] = {}  # workers that wait, and were not refused a closure; the first is the next
        self._refused: dict[int, None] = {}  # workers that wait because of the rule
        self._given: dict[int, Any] = {}  # closures that workers have not fetched yet
        self._running: dict[int, Any] = {}
        self._left: set[int] = set()
        self._waited_s: dict[int, float] = {}
        self._busy_since_s: float | None = None

    def follow(self, rule: Rule | None) -> None:
        """Makes workers take closures by `rule` from now on; None for their order."""
        with self.locked():
            self._rule = rule

    def wait_for(self, condition: Callable[[], bool]) -> bool:
        """Waits until a condition on what the rule knows is true; for one thread.

        Returns False once a closure has failed; the coordinator's `join` raises the error.
        """
        with self._queue_lock:
            self._awaited = condition  # workers look at it: to wake this thread for each closure takes longer
            try:
                while self._error is None:
                    if condition():
                        return True
                    self._changed.wait()
                return False
            finally:
                self._awaited = None

    def joined(self) -> None:
        """Call when all closures are done: until the next one is scheduled, workers do not count as waiting."""
        self._busy_since_s = None

    def waited_s(self) -> dict[int, float]:
        """Seconds that each worker has waited for its next marked closure while others ran."""
        with self._queue_lock:
            return dict(self._waited_s)

    @contextlib.contextmanager
    def marking(self, mark: Any, again: Callable[[], Again | None] | None = None) -> Iterator[None]:
        """Gives `mark` to the closures that this thread schedules in this context.

        Args:
          again: called before one of them runs again, in the thread of a lost worker; None from it changes nothing.
        """
        self._scheduling.mark = mark
        self._scheduling.again = again
        try:
            yield
        finally:
            del self._scheduling.mark, self._scheduling.again

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Workers take closures again when all closures of this context are scheduled."""
        self._holds_back = True
        try:
            yield
        finally:
            with self.locked():
                self._holds_back = False

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """For a change of what a rule decides by; workers that wait ask again.

        Queued closures that need not run any more are removed before: none of these workers gets one.
        """
        with self._queue_lock:
            yield
            self._drop_what_is_over()
            self._ask_again()
            self._tell()

    def _drop_what_is_over(self) -> None:
        if self._rule is None:
            return
        queued = self._queue.queue
        for closure in list(queued):
            mark = _mark(closure)
            if mark is not None and self._rule.is_over(mark):
                queued.remove(closure)
                closure.mark_cancelled()
        if not queued and not self.inflight_closure_count:
            self._stop_waiting_condition.notify_all()

    def put(self, closure: Any, tag: int | None = None) -> None:
        value = closure._output_remote_value_ref()
        require(value, "_status_available_event")
        value._status_available_event = _NotifyingEvent(self.ended)  # before it is queued: no end is missed
        if tag is not None:
            closure.tag = tag
            with self._queue_lock:
                self._tagged_queue[tag].put(closure, block=False)
                self._wake(tag)
            return
        closure.psrun_mark = getattr(self._scheduling, "mark", None)
        closure.psrun_again = getattr(self._scheduling, "again", None)
        if self._busy_since_s is None and closure.psrun_mark is not None:
            self._busy_since_s = time.monotonic()
        super().put(closure)
        with self._queue_lock:
            if closure.psrun_mark is None:
                self._ask_again()  # no rule refuses it
            else:
                self._hand_out()

    def put_back(self, closure: Any) -> None:
        with self._queue_lock:
            for worker in [worker for worker, running in self._running.items() if running is closure]:
                self._leave(worker)
        again = getattr(closure, "psrun_again", None)
        if again is not None and (instead := again()) is not None:
            require(closure, "_function", "_concrete_function", "_args")
            closure._concrete_function = instead.function
            closure._function = self._cancellation_mgr.get_cancelable_function(instead.function)
            closure._args = instead.arguments
        super().put_back(closure)
        with self.locked():  # one worker less, and one closure more
            pass

    def clear_tag_unlocked(self, tag: int) -> None:
        with self.locked():
            self._leave(tag)
            super().clear_tag_unlocked(tag)

    def stop(self) -> None:
        super().stop()
        with self._queue_lock:
            for condition in self._wakes.values():
                condition.notify()

    def get(self, timeout: float | None = None, tag: int | None = None) -> Any:
        """The next closure of the worker `tag`; None if the coordinator stops, or after `timeout` seconds."""
        asked_s = time.monotonic()
        assert tag is not None
        with self._queue_lock:
            closure = self._next(tag, timeout)
        if closure is not None and _mark(closure) is not None and self._busy_since_s is not None:
            waited_s = time.monotonic() - max(asked_s, self._busy_since_s)
            self._waited_s[tag] = self._waited_s.get(tag, 0.0) + waited_s
        return closure

    def _next(self, worker: int, timeout: float | None) -> Any:
        """Waits for the next closure of a worker; the lock is held."""
        self._asks(worker)
        wake = self._wakes.get(worker)
        if wake is None:
            wake = self._wakes[worker] = threading.Condition(self._queue_lock)
        if self._tagged_queue[worker].empty():
            self._ready[worker] = None
            self._hand_out()
        while self._should_process_closures:
            if worker in self._given:
                return self._given.pop(worker)
            if not self._tagged_queue[worker].empty():
                return self._tagged_queue[worker].get(block=False)
            if not wake.wait(timeout):
                break
        self._wake(worker)
        return self._given.pop(worker, None)

    def _asks(self, worker: int) -> None:
        """A worker that asks for a closure is done with the last one, or is back."""
        closure = self._running.pop(worker, None)
        left = worker in self._left
        self._left.discard(worker)
        if self._rule is None:
            return
        if left:
            self._rule.returned(worker)
        elif closure is not None and (mark := _mark(closure)) is not None and self._rule.finished(worker, mark):
            self._ask_again()
        self._tell()

    def _tell(self) -> None:
        """Wakes the thread in `wait_for` if it has waited long enough."""
        if self._awaited is not None and (self._error is not None or self._awaited()):
            self._changed.notify()

    def _leave(self, worker: int) -> None:
        self._running.pop(worker, None)
        self._left.add(worker)
        if self._rule is not None and self._rule.left(worker):
            self._ask_again()

    def _wake(self, worker: int) -> None:
        """Wakes a worker, if it waits, for another reason than a closure that any worker may take."""
        self._ready.pop(worker, None)
        self._refused.pop(worker, None)
        if worker in self._wakes:
            self._wakes[worker].notify()

    def _ask_again(self) -> None:
        """Offers the queued closures also to the workers that were refused one."""
        self._ready.update(self._refused)
        self._refused.clear()
        self._hand_out()

    def _hand_out(self) -> None:
        """Gives queued closures to workers that wait."""
        queued = self._queue.queue
        while queued and self._ready and not self._holds_back:
            worker = next(iter(self._ready))
            del self._ready[worker]
            place = 0 if self._rule is None else self._rule.choose(worker, _Marks(queued))
            if place is None:
                self._refused[worker] = None
                continue
            closure = queued[place]
            del queued[place]
            self._queue_free_slot_condition.notify()
            self.inflight_closure_count += 1
            self._running[worker] = closure
            self._given[worker] = closure
            self._wakes[worker].notify()


class _Marks(Sequence[Any]):
    """The marks of closures; not a list of them, because most rules look at the first one only."""

    def __init__(self, closures: Any) -> None:
        self._closures = closures

    def __len__(self) -> int:
        return len(self._closures)

    def __getitem__(self, place: Any) -> Any:
        return _mark(self._closures[place])

    def __iter__(self) -> Iterator[Any]:
        return map(_mark, self._closures)


def _mark(closure: Any) -> Any:
    return getattr(closure, "psrun_mark", None)


def has_ended(scheduled: tf.distribute.coordinator.RemoteValue) -> bool:
    """Whether a closure has finished, failed or was cancelled; never waits."""
    return scheduled._status_available_event.is_set()


class _NotifyingEvent(threading.Event):
    """The event of a `RemoteValue`, which only allows waiting for this one closure."""

    def __init__(self, condition: threading.Condition) -> None:
        super().__init__()
        self._condition = condition

    def set(self) -> None:
        super().set()
        with self._condition:
            self._condition.notify_all()


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
        cls._begin(handler, answers)
        replace(handler, "__class__", lambda _: cls)
        return handler

    def _begin(self, answers: Callable[[str], bool]) -> None:
        """What a constructor would do: TensorFlow has made the handler."""
        require(self, "_server_def", "_cluster_update_lock", "_worker_up_cond", "_cluster_due_for_update_or_finish",
                "_should_preemption_thread_run", "_error_from_recovery", "wait_on_failure")  # fmt: skip
        self._answers = answers
        self._lost: set[int] = set()
        self._left_out: set[int] = set()  # of the definition that was used last

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
                self._worker_up_cond.wait(_LOST_POLL_S)
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
            self._worker_up_cond.wait(_LOST_POLL_S)
            waited_s += _LOST_POLL_S * bool(back)
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


@contextlib.contextmanager
def being_scheduled(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Lets `strategy.run` know that what is traced here runs on workers, as `ClusterCoordinator.schedule` does.

    psrun traces a step before it schedules it. Otherwise the strategy warns of work on the coordinator (TensorFlow
    2.21). Other strategies do not read the attribute.
    """
    extended = strategy.extended
    if not isinstance(extended, ParameterServerStrategyV2Extended):
        yield
        return
    before = extended._being_scheduled
    extended._being_scheduled = True
    try:
        yield
    finally:
        extended._being_scheduled = before


def per_worker_iterator(
    coordinator: tf.distribute.coordinator.ClusterCoordinator, make_dataset: Callable[[], tf.data.Dataset]
) -> Any:
    """Creates a dataset on each worker, and returns an iterator of all of them, for functions that are scheduled.

    TensorFlow recommends a distributed dataset to workers with GPUs, which splits batches among their replicas. psrun
    splits them within the step, so that the recommendation is not logged.
    """
    logger = tf.get_logger()
    logger.addFilter(_recommends_no_other_dataset)
    try:
        return iter(coordinator.create_per_worker_dataset(make_dataset))
    finally:
        logger.removeFilter(_recommends_no_other_dataset)


def _recommends_no_other_dataset(record: logging.LogRecord) -> bool:
    return "GPUs are allocated per worker. Please use DistributedDataset" not in record.getMessage()
