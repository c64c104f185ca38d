"""Which batches the updates of synchronous steps are of, with one gradient more than an update averages."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from psrun.closures.rules import Gradient, GradientRule, Update
from psrun.closures.scheduling import QueuedSteps

pytestmark = pytest.mark.tensorflow


class Feed:
    """Deals the batches of a pass in their order, those first that are dealt again."""

    is_dealt = True

    def __init__(self) -> None:
        self.again: list[int] = []
        self._next = 0

    def deal(self, num_steps: int) -> dict[str, int]:
        if self.again:
            return {"batch": self.again.pop(0)}
        self._next += 1
        return {"batch": self._next - 1}

    def is_partly_applied(self, inputs: dict[str, int]) -> bool:
        return False

    def deal_again(self, batches: list[dict[str, int]], *, partly: bool) -> None:
        assert not partly
        self.again += [each["batch"] for each in batches]


class Closures:
    """Two workers, of which the one that takes the last gradient always comes first."""

    num_live = 2

    def __init__(self) -> None:
        self.batches: dict[int, int] = {}
        self._rule = GradientRule(2, 1)
        self._queued: list[Gradient] = []

    num_averaged = property(lambda self: self._rule.num_averaged)

    def begin(self, steps: QueuedSteps) -> None:
        pass

    def deal(self, steps_left: int, schedule: Callable[[Gradient], None], *, together: bool) -> None:
        for gradient in self._rule.deal(steps_left):
            schedule(gradient)

    def schedule_gradient(self, function: object, inputs: dict[str, int], gradient: Gradient) -> None:
        self._queued.append(gradient)
        self.batches[gradient.number] = inputs["batch"]

    def next_update(self) -> Update:
        for worker, gradient in enumerate(self._queued):
            assert self._rule.choose(worker, [gradient]) == 0
        self._rule.finished(len(self._queued) - 1, self._queued[-1])
        self._queued.clear()
        return self._rule.take()

    def applied(self, seconds: float) -> None:
        self._rule.applied()


def test_each_batch_of_an_epoch_is_applied_in_it_whichever_gradients_come_first():
    per_epoch = 4
    feed, closures, applied = Feed(), Closures(), []
    kind = SimpleNamespace(
        program=SimpleNamespace(gradients_per_update=1),
        feed=feed,
        iterator=None,
        logs={},
        profiler=SimpleNamespace(wanted=lambda: False),
        meter=SimpleNamespace(count_averaged=lambda ages: None),
        steps_left=lambda: per_epoch - len(applied) % per_epoch,
    )
    steps = QueuedSteps(
        kind,
        closures,
        closure=SimpleNamespace(flat=lambda inputs: inputs),
        function=SimpleNamespace(structured_outputs=None),
        apply=lambda numbers, kept, weights: applied.append(closures.batches[int(numbers[0])]),
    )
    for _ in range(3 * per_epoch):
        steps.schedule(1)
    epochs = [sorted(applied[first : first + per_epoch]) for first in range(0, len(applied), per_epoch)]
    assert epochs == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert feed.again == []
