"""Which worker takes which closure from the queue of TensorFlow's coordinator."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

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


class MarkedClosures:
    """The queue of a coordinator, from which workers take closures by a rule. There is one object per coordinator.

    TensorFlow gives the oldest closure to the worker that asks first. The methods that are replaced are those in which
    the thread of a worker gets a closure, returns it, and clears what a lost worker was to create (TensorFlow 2.21).
    """

    _of: weakref.WeakKeyDictionary[Any, MarkedClosures] = weakref.WeakKeyDictionary()

    def __init__(self, coordinator: tf.distribute.coordinator.ClusterCoordinator) -> None:
        queue = coordinator._cluster.closure_queue
        require(queue, "put", "get", "put_back", "clear_tag_unlocked", "_queue_lock", "_closures_queued_condition",
                "_queue_free_slot_condition", "_queue", "_tagged_queue", "_should_process_closures",
                "_stop_waiting_condition", "_error", "_cancellation_mgr")  # fmt: skip
        self._closures, self._lock = queue, queue._queue_lock
        self._rule: Rule | None = None  # None: TensorFlow's own
        self._scheduling = threading.local()
        self._running: dict[int, Any] = {}
        self._left: set[int] = set()
        self._waited_s: dict[int, float] = {}
        self._busy_since_s: float | None = None
        self._put, self._put_back, self._clear = queue.put, queue.put_back, queue.clear_tag_unlocked
        queue.put, queue.put_back = self._put_marked, self._put_back_marked
        queue.get, queue.clear_tag_unlocked = self._get, self._clear_tag
        for worker in coordinator._cluster.workers:
            worker.create_resource(lambda: None)  # so that its thread leaves the `get` of before

    @classmethod
    def of(cls, coordinator: tf.distribute.coordinator.ClusterCoordinator) -> MarkedClosures:
        if coordinator not in cls._of:
            cls._of[coordinator] = cls(coordinator)
        return cls._of[coordinator]

    def follow(self, rule: Rule | None) -> None:
        """Makes workers take closures by `rule` from now on; None for TensorFlow's."""
        with self._lock:
            self._rule = rule

    def wait_for(self, condition: Callable[[], Any]) -> Any:
        """Waits until a condition on what the rule knows is true; returns its value.

        Returns None once a closure has failed; the coordinator's `join` raises the error.
        """
        with self._lock:
            while self._closures._error is None:
                if value := condition():
                    return value
                self._closures._closures_queued_condition.wait()
            return None

    def drop_what_is_over(self) -> None:
        """Removes the queued closures that need not run any more."""
        assert self._rule is not None
        with self.locked():
            queued = self._closures._queue.queue
            for closure in [each for each in queued if _mark(each) is not None and self._rule.is_over(_mark(each))]:
                queued.remove(closure)
                closure.mark_cancelled()
            if not queued and not self._closures.inflight_closure_count:
                self._closures._stop_waiting_condition.notify_all()

    def joined(self) -> None:
        """Call when all closures are done: until the next one is scheduled, workers do not count as waiting."""
        self._busy_since_s = None

    def waited_s(self) -> dict[int, float]:
        """Seconds that each worker has waited for its next marked closure while others ran."""
        with self._lock:
            return dict(self._waited_s)

    @contextlib.contextmanager
    def marking(self, mark: Any, again: Callable[[], Again | None] | None = None) -> Iterator[None]:
        """Gives `mark` to the closures that this thread schedules in this context.

        Args:
          again: called before one of them runs again, in the thread of a lost worker; None from it changes nothing.
        """
        self._scheduling.mark, self._scheduling.again = mark, again
        try:
            yield
        finally:
            del self._scheduling.mark, self._scheduling.again

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """For a change of what a rule decides by; workers that wait ask again."""
        with self._lock:
            yield
            self._closures._closures_queued_condition.notify_all()

    def _put_marked(self, closure: Any, tag: int | None = None) -> None:
        closure.psrun_mark = getattr(self._scheduling, "mark", None)
        closure.psrun_again = getattr(self._scheduling, "again", None)
        if self._busy_since_s is None and closure.psrun_mark is not None:
            self._busy_since_s = time.monotonic()
        self._put(closure, tag)
        self._wake()

    def _wake(self) -> None:
        """TensorFlow wakes one worker, which may have to wait by the rule."""
        if self._rule is not None:
            with self.locked():
                pass

    def _put_back_marked(self, closure: Any) -> None:
        with self._lock:
            for worker in [worker for worker, running in self._running.items() if running is closure]:
                self._leave(worker)
        again = getattr(closure, "psrun_again", None)
        if again is not None and (instead := again()) is not None:
            require(closure, "_function", "_concrete_function", "_args")
            closure._concrete_function = instead.function
            closure._function = self._closures._cancellation_mgr.get_cancelable_function(instead.function)
            closure._args = instead.arguments
        self._put_back(closure)
        if self._rule is not None:
            self.drop_what_is_over()

    def _clear_tag(self, tag: int) -> None:
        with self.locked():
            self._leave(tag)
            self._clear(tag)

    def _leave(self, worker: int) -> None:
        self._running.pop(worker, None)
        self._left.add(worker)
        if self._rule is not None:
            self._rule.left(worker)

    def _get(self, timeout: float | None = None, tag: int | None = None) -> Any:
        """Replaces `get`: the next closure of the worker `tag`; None if the coordinator stops."""
        closures, asked_s = self._closures, time.monotonic()
        assert tag is not None
        with self._lock:
            self._asks(tag)
            while True:
                if not closures._should_process_closures:
                    return None
                if not closures._tagged_queue[tag].empty():
                    return closures._tagged_queue[tag].get(block=False)
                queued = closures._queue.queue
                place = self._place(tag, queued)
                if place is not None:
                    break
                if not closures._closures_queued_condition.wait(timeout=timeout):
                    return None
            closure = queued[place]
            del queued[place]
            closures._queue_free_slot_condition.notify()
            closures.inflight_closure_count += 1
            self._running[tag] = closure
            if _mark(closure) is not None and self._busy_since_s is not None:
                waited_s = time.monotonic() - max(asked_s, self._busy_since_s)
                self._waited_s[tag] = self._waited_s.get(tag, 0.0) + waited_s
            return closure

    def _place(self, worker: int, queued: Sequence[Any]) -> int | None:
        if self._rule is None:
            return 0 if queued else None
        return self._rule.choose(worker, [_mark(closure) for closure in queued])

    def _asks(self, worker: int) -> None:
        """A worker that asks for a closure is done with the last one, or is back."""
        closure, left = self._running.pop(worker, None), worker in self._left
        self._left.discard(worker)
        if self._rule is None:
            return
        if left:
            self._rule.returned(worker)
        elif closure is not None and (mark := _mark(closure)) is not None:
            self._rule.finished(worker, mark)
        self._closures._closures_queued_condition.notify_all()


def _mark(closure: Any) -> Any:
    return getattr(closure, "psrun_mark", None)
