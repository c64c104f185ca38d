"""The moments of a training run, and calls in a wrong order."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import run_config

from psrun.checkpoint.manifest import Position
from psrun.training.loop import Actions, Piece, TrainingRun

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def run() -> Any:
    program: Any = SimpleNamespace(
        config=run_config("cluster=none", "evaluation=none", "trainer.epochs=2", "trainer.steps_per_epoch=5"),
        distribution=SimpleNamespace(coordinator=None, num_workers=1),
        network=SimpleNamespace(reset_metrics=lambda: None), own_step=None, own_streams=True, iterations=0,
    )  # fmt: skip
    folder: Any = SimpleNamespace(path=Path("run"), whole=SimpleNamespace(ends_early=lambda: False))
    stop: Any = SimpleNamespace(requested=threading.Event())
    reporter: Any = SimpleNamespace(warn=print)
    return TrainingRun(program, reporter, folder=folder, start=Position(0, steps=3), stop=stop)


def test_a_run_goes_through_its_moments(run):
    moments: list[Any] = []

    def noted(moment):
        return lambda *, context: moments.append((moment, context.epoch, dict(context.metrics)))

    run.actions = Actions(**{name: [noted(name)] for name in Actions.__dataclass_fields__})
    for epoch in run.epochs(lambda: moments.append("joined")):
        for piece in epoch.pieces():
            piece.num_steps = min(piece.max_steps, 4)
            run.after_piece(piece)
        run.after_epoch(epoch, lambda: {"loss": 1.0, "auc": None})
    run.end()
    metrics = {"loss": 1.0}  # without undefined ones
    first = [("before_epoch", 1, {}), ("during_epoch", 1, {}), ("after_piece", 1, {})]
    second = [("before_epoch", 2, {}), *2 * [("during_epoch", 2, {}), ("after_piece", 2, {})]]
    assert moments == [
        *first, "joined", ("when_joined", 1, {}), ("after_epoch", 1, metrics),
        *second, "joined", ("when_joined", 2, {}), ("after_epoch", 2, metrics), ("at_end", 2, metrics),
    ]  # fmt: skip
    assert run.scheduled == 2 + 5


def test_calls_in_another_order_raise(run):
    with pytest.raises(RuntimeError, match="no epoch is running"):
        run.after_piece(Piece(1, 1))
    epoch = run.begin(lambda: None)
    with pytest.raises(RuntimeError, match="epoch 1 is not over"):
        run.begin(lambda: None)
    run.join()
    with pytest.raises(RuntimeError, match="no epoch is running"):
        run.after_piece(Piece(1, 1))
    run.after_epoch(epoch, dict)
    with pytest.raises(RuntimeError, match="epoch 1 is not running"):
        run.after_epoch(epoch, dict)
