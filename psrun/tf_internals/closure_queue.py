"""Which worker takes which closure from the queue of TensorFlow's coordinator."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf
from tensorflow.python.distribute.coordinator.cluster_coordinator import _CoordinatedClosureQueue

from psrun.tf_internals.replaced import replace
from psrun.tf_internals.required import require


class Rule(Protocol):
    """Decides which worker takes which closure. Every method is called with the lock of the queue held."""

    def choose(self, worker: int, queued: Sequence[Any]) -> int | None:
        """The position of the closure that a worker without one takes; None if it has to wait.

        Args:
          queued: the marks of the closures, in the order in which they were scheduled; None for a closure without one.
        """

    def finished(self, worker: int, mark: Any) -> None:
        """A worker has done a closure with a mark."""

    def left(self, worker: int) -> None:
        """A worker was lost, or one of its closures is to run again; it takes no closure until `returned`."""

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
    """The queue of a coordinator. It is TensorFlow's, unless it follows a rule.

    TensorFlow gives the oldest closure to the worker that asks first, and does not tell when a closure ends, how long
    workers wait, or that a closure runs again (TensorFlow 2.21).

    Attributes:
      ended: notified when a closure has finished, failed or was cancelled.
    """

    @classmethod
    def of(cls, coordinator: tf.distribute.coordinator.ClusterCoordinator) -> ClosureQueue:
        """The queue of a coordinator; there is one, which becomes a `ClosureQueue` by the first call."""
        cluster = coordinator._cluster
        queue = cluster.closure_queue
        if not isinstance(queue, cls):
            cls._watch(queue, cluster.workers)  # before: the threads of workers may call the new methods at once
            replace(queue, "__class__", lambda _: cls)
        return queue

    def _watch(self, workers: Sequence[Any]) -> None:
        require(self, "put", "get", "put_back", "clear_tag_unlocked", "_queue_lock", "_closures_queued_condition",
                "_queue_free_slot_condition", "_queue", "_tagged_queue", "_should_process_closures",
                "_stop_waiting_condition", "_error", "_cancellation_mgr")  # fmt: skip
        self.ended = threading.Condition()
        self._workers = workers
        self._rule: Rule | None = None
        self._scheduling = threading.local()
        self._running: dict[int, Any] = {}  # by a rule
        self._left: set[int] = set()
        self._waited_s: dict[int, float] = {}
        self._busy_since_s: float | None = None

    def follow(self, rule: Rule | None) -> None:
        """Makes workers take closures by `rule` from now on; None for TensorFlow's."""
        with self._queue_lock:
            self._rule = rule
        if rule is not None:
            for worker in self._workers:
                worker.create_resource(lambda: None)  # so that its thread leaves TensorFlow's `get`

    def wait_for(self, condition: Callable[[], Any]) -> Any:
        """Waits until a condition on what the rule knows is true; returns its value.

        Returns None once a closure has failed; the coordinator's `join` raises the error.
        """
        with self._queue_lock:
            while self._error is None:
                if value := condition():
                    return value
                self._closures_queued_condition.wait()
            return None

    def drop_what_is_over(self) -> None:
        """Removes the queued closures that need not run any more."""
        assert self._rule is not None
        with self.locked():
            queued = self._queue.queue
            for closure in [each for each in queued if _mark(each) is not None and self._rule.is_over(_mark(each))]:
                queued.remove(closure)
                closure.mark_cancelled()
            if not queued and not self.inflight_closure_count:
                self._stop_waiting_condition.notify_all()

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
    def locked(self) -> Iterator[None]:
        """For a change of what a rule decides by; workers that wait ask again."""
        with self._queue_lock:
            yield
            self._closures_queued_condition.notify_all()

    def put(self, closure: Any, tag: int | None = None) -> None:
        value = closure._output_remote_value_ref()
        require(value, "_status_available_event")
        value._status_available_event = _NotifyingEvent(self.ended)  # before it is queued: no end is missed
        closure.psrun_mark = getattr(self._scheduling, "mark", None)
        closure.psrun_again = getattr(self._scheduling, "again", None)
        if self._busy_since_s is None and closure.psrun_mark is not None:
            self._busy_since_s = time.monotonic()
        super().put(closure, tag)
        if self._rule is not None:
            with self.locked():  # TensorFlow wakes one worker, which may have to wait by the rule
                pass

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
        if self._rule is not None:
            self.drop_what_is_over()

    def clear_tag_unlocked(self, tag: int) -> None:
        with self.locked():
            self._leave(tag)
            super().clear_tag_unlocked(tag)

    def _leave(self, worker: int) -> None:
        self._running.pop(worker, None)
        self._left.add(worker)
        if self._rule is not None:
            self._rule.left(worker)

    def get(self, timeout: float | None = None, tag: int | None = None) -> Any:
        """The next closure of the worker `tag`; None if the coordinator stops."""
        asked_s = time.monotonic()
        assert tag is not None
        closure = super().get(timeout, tag) if self._rule is None else self._get_by_rule(timeout, tag)
        if closure is not None and _mark(closure) is not None and self._busy_since_s is not None:
            waited_s = time.monotonic() - max(asked_s, self._busy_since_s)
            self._waited_s[tag] = self._waited_s.get(tag, 0.0) + waited_s
        return closure

    def _get_by_rule(self, timeout: float | None, tag: int) -> Any:
        with self._queue_lock:
            self._asks(tag)
            while True:
                if not self._should_process_closures:
                    return None
                if not self._tagged_queue[tag].empty():
                    return self._tagged_queue[tag].get(block=False)
                queued = self._queue.queue
                place = self._place(tag, queued)
                if place is not None:
                    break
                if not self._closures_queued_condition.wait(timeout=timeout):
                    return None
            closure = queued[place]
            del queued[place]
            self._queue_free_slot_condition.notify()
            self.inflight_closure_count += 1
            self._running[tag] = closure
            return closure

    def _place(self, worker: int, queued: Sequence[Any]) -> int | None:
        if self._rule is None:
            return 0 if queued else None
        return self._rule.choose(worker, [_mark(closure) for closure in queued])

    def _asks(self, worker: int) -> None:
        """A worker that asks for a closure is done with the last one, or is back."""
        closure = self._running.pop(worker, None)
        left = worker in self._left
        self._left.discard(worker)
        if self._rule is None:
            return
        if left:
            self._rule.returned(worker)
        elif closure is not None and (mark := _mark(closure)) is not None:
            self._rule.finished(worker, mark)
        self._closures_queued_condition.notify_all()


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
