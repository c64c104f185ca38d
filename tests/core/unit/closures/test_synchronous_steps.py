"""Which batches the updates of synchronous steps are of, with one gradient more than an update averages."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from psrun.closures.scheduling import SynchronousSteps

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

    def deal_again(self, batches: list[dict[str, int]]) -> None:
        self.again += [each["batch"] for each in batches]


def test_each_batch_of_an_epoch_is_applied_in_it_whichever_gradients_come_first():
    """The gradient of the last slot always comes first, as by a worker that is faster than the other one."""
    per_epoch = 4
    feed, dealt, applied = Feed(), [], []
    closures = SimpleNamespace(
        begin_round=lambda: (len(applied), 1, 2),
        num_live=2,
        schedule_slot=lambda function, inputs, slot: dealt[-1].append(inputs["batch"]) or inputs,
        first=lambda num_averaged: [len(dealt[-1]) - 1],
    )
    kind = SimpleNamespace(
        program=SimpleNamespace(gradients_per_update=1),
        feed=feed,
        iterator=None,
        logs={},
        profiler=SimpleNamespace(wanted=lambda: False),
        meter=SimpleNamespace(count_averaged=lambda: None),
        ends_epoch=lambda: len(applied) % per_epoch == per_epoch - 1,
    )
    steps = SynchronousSteps(
        kind,
        closures,
        closure=SimpleNamespace(flat=lambda inputs: inputs),
        function=SimpleNamespace(structured_outputs=None),
        apply=lambda number, chosen: applied.append(dealt[-1][int(chosen[0])]),
    )
    for _ in range(3 * per_epoch):
        dealt.append([])
        steps.schedule(1)
    epochs = [sorted(applied[first : first + per_epoch]) for first in range(0, len(applied), per_epoch)]
    assert epochs == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert feed.again == []
