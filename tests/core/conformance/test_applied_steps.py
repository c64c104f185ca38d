"""An execution that runs again leaves out the steps that were applied."""

from __future__ import annotations

import threading
from typing import Any

import counting
import pytest
import tensorflow as tf
from tensorflow.python.distribute.coordinator import cluster_coordinator

from psrun.closures import scheduling, server_updates

pytestmark = pytest.mark.inprocess

EXAMPLES, BATCH, PACKED = 96, 8, 4
STEPS = 2 * EXAMPLES // BATCH


class Losing:
    """Lets executions be lost after some of their steps, as those of a lost worker are.

    Args:
      after: by the number of an execution, for each time that it is lost: how many steps all parameter servers have
        applied, and how many more the first one.
      completing: for each execution that completes a step and is lost, whether it had done so.
    """

    def __init__(self, after: dict[int, list[tuple[int, int]]], completing: tuple[bool, ...] = ()) -> None:
        self.after = after
        self.completing = [*completing]
        self._packings: list[Any] = []
        self._lock = threading.Lock()
        self._number = 0
        self._execute = cluster_coordinator.Closure.execute_on
        self._init = scheduling.AsynchronousSteps.__init__

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        losing = self

        def init(packing: Any, *arguments: Any, **options: Any) -> None:
            losing._init(packing, *arguments, **options)
            losing._packings.append(packing)
            losing._first_alone = packing._completion({1}) if losing.completing else None

        def execute_on(closure: Any, worker: Any) -> None:
            losing.execute(closure, worker)

        monkeypatch.setattr(scheduling.AsynchronousSteps, "__init__", init)
        monkeypatch.setattr(cluster_coordinator.Closure, "execute_on", execute_on)
        monkeypatch.setattr(server_updates, "_SETTLED_S", 0.0)
        monkeypatch.setattr(scheduling, "_MOST_STEP_S", 0.0)  # servers of this process are not at work any more

    def check_counts(self) -> None:
        """Checks that the next execution in each slot knows the counts of the servers."""
        (packing,) = self._packings
        applied = packing._applied
        for slot, last in enumerate(applied._in_slot):
            if last is not None:
                counted = {task: int(applied._counts[task][slot].numpy()) for task in applied._updating}
                assert counted == {task: last.after[task] for task in counted}

    def execute(self, closure: Any, worker: Any) -> None:
        is_of_steps = getattr(closure, "psrun_again", None) is not None and self._packings
        num_arguments = len(closure._args)
        if is_of_steps and num_arguments == 5:
            self._run(closure, worker)
        elif is_of_steps and num_arguments == 4:  # without a number of steps
            self._complete(closure, worker)
        else:
            self._execute(closure, worker)

    def _run(self, closure: Any, worker: Any) -> None:
        with self._lock:
            if not hasattr(closure, "number"):
                closure.number = self._number
                self._number += 1
            lost = self.after.get(closure.number)
            applied = lost.pop(0) if lost else None
        if applied is None:
            self._execute(closure, worker)
            return
        packing = self._packings[0]
        iterator, _, place, counts, measured = closure._args
        num_steps, ahead = applied
        self._call(packing._looped, worker, iterator, tf.constant(num_steps), place, counts, measured)
        for step in range(num_steps, num_steps + ahead):
            self._call(self._first_alone, worker, iterator, place + step, counts, measured)
        self._lose()

    def _complete(self, closure: Any, worker: Any) -> None:
        if not self.completing:
            self._execute(closure, worker)
            return
        if self.completing.pop(0):
            (function,) = self._packings[0]._completing.values()
            self._call(function, worker, *closure._args)
        self._lose()

    def _call(self, function: Any, worker: Any, *arguments: Any) -> None:
        cancellation = worker._cluster.closure_queue._cancellation_mgr
        self._execute(cluster_coordinator.Closure(function, cancellation, arguments), worker)

    def _lose(self) -> None:
        raise tf.errors.DeadlineExceededError(None, None, "lost")


def arguments(*pieces: str) -> list[str]:
    sizes = ("trainer.epochs=2", f"trainer.steps_per_execution={PACKED}")
    return counting.arguments(*sizes, *pieces, examples=EXAMPLES, batch=BATCH)


@pytest.mark.parametrize(
    "pieces",
    [
        ("trainer=custom_loop",),
        pytest.param(("trainer=fit", "optimizer=sgd"), marks=pytest.mark.thorough),
        pytest.param(("optimizer.delay_compensation=0", "trainer.prefetch_rows=true"), marks=pytest.mark.thorough),
    ],
)
def test_each_example_is_applied_once_where_executions_are_lost(train, monkeypatch, pieces):
    """Before any step, after some, after all, twice, and where a server has one step more than the other.

    Of the executions that complete a step, one is lost before it has, and one when it has.
    """
    after = {0: [(0, 0)], 1: [(PACKED, 0)], 2: [(2, 1)], 3: [(1, 0), (1, 0)], 4: [(3, 0), (0, 1)]}
    losing = Losing(after, completing=(False, True))
    losing.patch(monkeypatch)
    result, folder = train(*arguments(*pieces))
    assert not any(losing.after.values())
    assert losing.completing == []
    assert counting.wrong(folder.checkpoints, epochs=2) == []
    assert result["steps"] == {"applied": STEPS, "scheduled": STEPS, "repeated": 0}
    losing.check_counts()


def test_the_counter_of_the_optimizer_keeps_the_steps_of_other_kinds(train, monkeypatch):
    losing = Losing({0: [(2, 0)]})
    losing.patch(monkeypatch)
    result, folder = train(*arguments("trainer=own_loop", "trainer._target_=user_code.two_kinds"))
    assert losing.after == {0: []}
    assert counting.wrong(folder.checkpoints, epochs=2) == []
    assert STEPS - 2 <= result["steps"]["applied"] <= STEPS  # it may lack those of the lost worker
