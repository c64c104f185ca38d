"""What is shown of a running epoch."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from psrun.results.run_folder import RunFolder
from psrun.training import progress
from psrun.training.hooks import HookContext, Hooks
from psrun.training.progress import Clock, StartClock, running_mean

pytestmark = pytest.mark.tensorflow


class Metric:
    """A mean of losses of 2, whose total and count are on two servers.

    Args:
      lands: how many steps end before each read, in order; afterwards none.
      count_first: how many of them have added to the count only, by the first read of the total.
      stays_late: whether they have not added to the total by later reads either.
    """

    def __init__(self, lands: list[int], count_first: int = 0, *, stays_late: bool = False) -> None:
        self._lands = iter(lands)
        self._steps = 0
        self._late = count_first
        self._stays_late = stays_late

    def read(self) -> float:
        self._steps += next(self._lands, 0)
        return float(self._steps)

    def total(self) -> float:
        value = 2.0 * (self.read() - self._late)
        self._late = self._late if self._stays_late else 0
        return value


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (lambda: Metric([]), None),
        (lambda: Metric([3]), 2.0),
        (lambda: Metric([1], count_first=1), 2.0),  # the first step: the total is still 0
        (lambda: Metric([1], count_first=1, stays_late=True), None),  # and stays 0 while it is read
        (lambda: Metric([5, 2, 1, 4]), 2.0),
        (lambda: Metric([*itertools.repeat(1, 99)]), 2.0),  # steps never stop ending
    ],
)
def test_the_running_loss_is_of_one_moment(metric: Callable[[], Metric], expected: float | None) -> None:
    instance = metric()
    assert running_mean(instance.total, instance.read) == expected


def test_a_running_loss_that_is_not_a_number_stays_one() -> None:
    assert str(running_mean(lambda: float("nan"), lambda: 3.0)) == "nan"


def test_pauses_and_the_time_to_the_first_step_are_no_time_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first epoch: 7 s to the first two steps, a pause of 20 s, and 4 s for the other eight."""
    time = SimpleNamespace(now_s=100.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: time.now_s)
    monitor = SimpleNamespace(first_step_s=107.0, first_step_count=2)
    clock = Clock(0)
    clock.epoch_begins()
    time.now_s += 7 + 1
    with clock.paused():
        time.now_s += 20
    time.now_s += 3
    clock.steps_joined()
    time.now_s += 50  # an evaluation
    assert clock.epoch_ends(10, monitor) == (11.0, 2.0)
    clock.epoch_begins()
    time.now_s += 5
    clock.steps_joined()
    assert clock.epoch_ends(20, monitor) == (5.0, 2.0)
    assert clock.rate() == 18 / 9


def test_a_first_step_that_is_seen_after_the_last_one_leaves_the_rate_of_the_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    time = SimpleNamespace(now_s=100.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: time.now_s)
    clock = Clock(0)
    clock.epoch_begins()
    time.now_s += 5
    clock.steps_joined()
    monitor = SimpleNamespace(first_step_s=105.0, first_step_count=9)
    assert clock.epoch_ends(10, monitor) == (5.0, 2.0)


def test_a_resumed_training_has_not_begun_until_it_has_applied_a_step() -> None:
    shown: list[bool] = []
    reporter = SimpleNamespace(progress=lambda each: shown.append(each.has_begun))
    trainer = SimpleNamespace(num_epochs=5)
    config = SimpleNamespace(trainer=trainer, cluster=SimpleNamespace(played_by=""))
    program = SimpleNamespace(config=config, examples_per_step=8)
    monitor = progress.ProgressMonitor(program, reporter, first_step=200, planned=500)
    for step in (200, 201):
        monitor._report(step, None)
    assert shown == [False, True]


def test_metrics_are_of_the_last_complete_epoch_and_the_last_evaluation() -> None:
    shown: list[progress.Progress] = []
    trainer = SimpleNamespace(num_epochs=5)
    config = SimpleNamespace(trainer=trainer, cluster=SimpleNamespace(played_by=""))
    program = SimpleNamespace(config=config, examples_per_step=8, own_step=None)
    monitor = progress.ProgressMonitor(program, SimpleNamespace(progress=shown.append), first_step=0, planned=500)
    monitor.epoch_begins(1)
    assert (monitor.metrics, monitor.running_loss) == ({}, None)
    monitor._report(60, 0.7)
    assert (monitor.metrics, monitor.running_loss) == ({}, 0.7)
    monitor.epoch_ends(100)
    monitor.note_epoch({"loss": 0.6, "auc": 0.8})
    assert monitor.running_loss is None  # of an epoch that is over
    monitor.note_evaluation({"val_auc": 0.7})
    first = {"loss": 0.6, "auc": 0.8, "val_auc": 0.7}
    monitor.epoch_begins(2)
    assert (monitor.metrics, monitor.running_loss) == (first, None)  # and not the loss of the first epoch
    monitor._report(172, 0.5)
    assert (monitor.metrics, monitor.running_loss) == (first, 0.5)
    assert shown[-1].metrics == {"auc": 0.8, "val_auc": 0.7}
    monitor.epoch_ends(200)
    monitor.note_epoch({"loss": 0.4, "auc": 0.9})
    assert monitor.metrics == {"loss": 0.4, "auc": 0.9, "val_auc": 0.7}  # until the next evaluation
    monitor.epoch_begins(3)
    monitor._report(210, 0.3)
    assert shown[-1].metrics == {"auc": 0.9}  # it was not evaluated


def test_a_hook_that_is_called_while_steps_run_has_the_metrics_of_the_monitor(tmp_path: Path) -> None:
    calls: list[HookContext] = []
    monitor = SimpleNamespace(last_step=172, epoch=2, metrics={"loss": 0.6, "auc": 0.8}, running_loss=0.5)
    hook = SimpleNamespace(target=SimpleNamespace(key="trainer.hooks[0]", name="mine"))
    run = SimpleNamespace(trainer=SimpleNamespace(hooks=[]))
    hooks = Hooks(run, RunFolder(tmp_path), SimpleNamespace())
    assert hooks._called_during(hook, lambda context: calls.append(context), SimpleNamespace(), monitor)
    assert (calls[0].step, calls[0].epoch) == (172, 2)
    assert (calls[0].metrics, calls[0].running_loss) == ({"loss": 0.6, "auc": 0.8}, 0.5)


def test_the_parts_of_the_time_to_the_first_step_add_up_to_it():
    times = iter([4.5, 6.0, 6.25, 8.0])
    clock = StartClock(lambda: next(times))
    for part in ("import", "data", "connect", "build"):
        clock.ends(part)
    assert clock.parts(None) is None
    parts = clock.parts(9.5)
    assert parts == {"import": 4.5, "data": 1.5, "connect": 0.25, "build": 1.75, "trace": 1.5}
    assert sum(parts.values()) == 9.5
