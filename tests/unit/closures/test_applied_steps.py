"""An execution that runs again leaves out the steps that were applied."""

from __future__ import annotations

import threading
from typing import Any

import counting
import pytest
import tensorflow as tf
from tensorflow.python.distribute.coordinator import cluster_coordinator

from psrun.closures import applied_steps, asynchronous_steps

pytestmark = pytest.mark.inprocess

EXAMPLES, BATCH, PACKED = 96, 8, 4
ONCE = {"0": 0, "1": EXAMPLES, "2": 0, "3+": 0}


class Losing:
    """Lets executions be lost after some of their steps, as those of a lost worker are.

    Args:
      after: the number of applied steps of each execution that is lost, by its number; a second one is that of the
        second run of the same execution.
      ahead: how many steps more than `after` the first parameter server applies.
      completing: how many executions that complete a step are lost before they do anything.
    """

    def __init__(self, after: dict[int, list[int]], ahead: int = 0, completing: int = 0) -> None:
        self._after, self._ahead, self.completing = after, ahead, completing
        self._packings: list[Any] = []
        self._lock = threading.Lock()
        self._number = 0
        self._execute, self._init = (
            cluster_coordinator.Closure.execute_on,
            asynchronous_steps.AsynchronousSteps.__init__,
        )

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        losing = self

        def init(packing: Any, *arguments: Any, **options: Any) -> None:
            losing._init(packing, *arguments, **options)
            losing._packings.append(packing)
            if losing._ahead:
                losing.first_alone = packing._completion({1})

        def execute_on(closure: Any, worker: Any) -> None:
            losing.execute(closure, worker)

        monkeypatch.setattr(asynchronous_steps.AsynchronousSteps, "__init__", init)
        monkeypatch.setattr(cluster_coordinator.Closure, "execute_on", execute_on)
        monkeypatch.setattr(applied_steps, "_SETTLED_S", 0.0)

    def check_counts(self) -> None:
        """Checks that the next execution in each slot knows the counts of the servers."""
        (packing,) = self._packings
        applied = packing._applied
        for slot, last in enumerate(applied._in_slot):
            if last is not None:
                counted = {task: int(applied._counts[task][slot].numpy()) for task in applied._updating}
                expected = applied._after(last)
                assert counted == {task: expected[task] for task in counted}

    def execute(self, closure: Any, worker: Any) -> None:
        if getattr(closure, "psrun_again", None) is None or not self._packings:
            self._execute(closure, worker)
            return
        if len(closure._args) == 4:  # without a number of steps
            if self.completing:
                self.completing -= 1
                raise tf.errors.DeadlineExceededError(None, None, "lost")
            self._execute(closure, worker)
            return
        with self._lock:
            if not hasattr(closure, "number"):
                closure.number = self._number
                self._number += 1
            lost = self._after.get(closure.number)
            num_steps = lost.pop(0) if lost else None
        if num_steps is None:
            self._execute(closure, worker)
            return
        self._apply(closure, worker, num_steps)
        raise tf.errors.DeadlineExceededError(None, None, "lost")

    def _apply(self, closure: Any, worker: Any, num_steps: int) -> None:
        packing = self._packings[0]
        iterator, _, place, counts, measured = closure._args
        few = cluster_coordinator.Closure(
            packing._looped, worker._cluster.closure_queue._cancellation_mgr,
            (iterator, tf.constant(num_steps), place, counts, measured),
        )  # fmt: skip
        self._execute(few, worker)
        for step in range(num_steps, num_steps + self._ahead):
            alone = cluster_coordinator.Closure(
                self.first_alone, worker._cluster.closure_queue._cancellation_mgr,
                (iterator, place + step, counts, measured),
            )  # fmt: skip
            self._execute(alone, worker)
        tf.experimental.async_clear_error()


@pytest.mark.parametrize(
    "pieces",
    [
        ("trainer=custom_loop", "optimizer=sgd"),
        ("trainer=fit",),
        pytest.param(("optimizer.delay_compensation=0", "trainer.prefetch_rows=true"), marks=pytest.mark.thorough),
        pytest.param(
            ("optimizer=sgd", "optimizer._target_=tf_keras.optimizers.legacy.SGD"), marks=pytest.mark.thorough
        ),
        pytest.param(("consistency=ssp", "consistency.staleness=1"), marks=pytest.mark.thorough),
    ],
)
def test_each_example_is_applied_once_where_executions_are_lost(train, monkeypatch, pieces):
    """Before any step, after some, after all, and twice."""
    losing = Losing({0: [0], 2: [PACKED], 3: [2], 5: [1, 1], 7: [3, 0]})
    losing.patch(monkeypatch)
    result, folder = train(*_run(*pieces))
    assert losing._after == {0: [], 2: [], 3: [], 5: [], 7: []}
    _is_exact(result, folder)
    losing.check_counts()


def test_counts_of_servers_that_get_gradients_of_several_steps_together_add_up(train, monkeypatch):
    losing = Losing({})
    losing.patch(monkeypatch)
    result, folder = train(*_run("trainer.dense_sync_every=2"))
    _is_exact(result, folder)
    losing.check_counts()


@pytest.mark.parametrize(
    "pieces",
    [
        (),
        pytest.param(
            ("optimizer=sgd", "optimizer._target_=tf_keras.optimizers.legacy.SGD"), marks=pytest.mark.thorough
        ),
    ],
)
def test_a_step_that_one_of_two_servers_had_applied_is_completed(train, monkeypatch, pieces):
    """Also if the worker is lost that completes it."""
    losing = Losing({1: [2], 4: [0]}, ahead=1, completing=1)
    losing.patch(monkeypatch)
    result, folder = train(*_run(*pieces))
    assert losing.completing == 0
    _is_exact(result, folder)
    losing.check_counts()


def _is_exact(result, folder) -> None:
    assert counting.wrong(folder.checkpoints, 3.0, updates=36, batch=BATCH) == {}
    assert [row["seen"] for row in result["visitation"]] == [ONCE] * 3
    assert result["steps"] == {"applied": 36, "scheduled": 36, "repeated": 0}


def test_the_counter_of_the_optimizer_keeps_the_steps_of_other_kinds(train, monkeypatch):
    losing = Losing({0: [2]})
    losing.patch(monkeypatch)
    result, folder = train(*_run("trainer=own_loop", "trainer._target_=user_code.two_kinds"))
    assert losing._after == {0: []}
    assert counting.wrong(folder.checkpoints, 3.0, updates=36, batch=BATCH) == {}
    assert 36 - 2 <= result["steps"]["applied"] <= 36  # it may lack those of the lost worker


def _run(*pieces: str) -> list[str]:
    sizes = ("trainer.epochs=3", f"trainer.steps_per_execution={PACKED}")
    return counting.arguments(*sizes, *pieces, examples=EXAMPLES, batch=BATCH)
