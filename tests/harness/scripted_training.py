"""A training whose steps are scripted: the loop and its actions as in a run, and nothing is computed."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support import raw_config

from psrun.checkpoint.storage import Position, Store
from psrun.config import choices, parse
from psrun.process import Stop
from psrun.results.events import Event, Reporter
from psrun.results.run_folder import RunFolder
from psrun.training import actions, checkpointing
from psrun.training.checkpointing import CheckpointSchedule, Machine
from psrun.training.evaluators import Evaluation
from psrun.training.loop import TrainingRun
from psrun.training.metric_policies import metric_policies

NUM_EVAL = 10
MOST_PIECES = 1_000


class Killed(BaseException):
    """Stands for a process that is killed."""


@dataclass
class Script:
    """What happens in a training.

    Attributes:
      packed: number of steps of an execution.
      loss: of a step, from 1.
      evaluation: metrics of the evaluation at a step.
      examples_seen: by each evaluation.
      available: number of steps that the data is enough for.
      at: by the name of a moment ('scheduled 4', 'saved 4', 'evaluated 4', 'hooks 4'), what happens then.
    """

    packed: int = 2
    loss: Callable[[int], float] = lambda step: 1 / step
    evaluation: Callable[[int], Mapping[str, float | None]] = lambda step: {"loss": 1 / step}
    examples_seen: int = NUM_EVAL
    available: int = 10**6
    at: dict[str, Callable[[TrainingRun], None]] = field(default_factory=dict)


class _Program:
    """Steps that are scheduled are applied by a join, and read with the values that they leave."""

    own_step = None
    data = SimpleNamespace(own_streams=True, order=None)
    gradients_per_update = 1
    examples_per_step = 8
    may_be_logits = False
    loss_names = ["loss"]
    metric_names = ["auc"]
    gathered_metric_names: list[str] = []

    def __init__(self, config: Any, script: Script) -> None:
        self.config = config
        self.source = SimpleNamespace(num_eval_examples=NUM_EVAL)
        self.distribution = SimpleNamespace(coordinator=None, num_workers=1)
        self.optimizer = SimpleNamespace(learning_rate=0.5)
        self.loss = SimpleNamespace(name="loss", total=0.0, count=0.0)
        self.network = SimpleNamespace(metrics=[self.loss], reset_metrics=self._reset, stop_training=False)
        self.iterations = 0
        self._script = script
        self._waiting = 0

    def _reset(self) -> None:
        self.loss.total = 0.0
        self.loss.count = 0.0

    def schedule(self, num_steps: int) -> None:
        self._waiting += num_steps

    def join(self) -> None:
        for _ in range(min(self._waiting, self._script.available - self.iterations)):
            self.iterations += 1
            self.loss.total += self._script.loss(self.iterations)
            self.loss.count += 1
        self._waiting = 0

    def metrics(self) -> dict[str, float | None]:
        return {"loss": self.loss.total / max(self.loss.count, 1), "auc": None}


class _Checkpoints:
    """Keeps positions and the learning rate instead of files."""

    def __init__(self, training: ScriptedTraining) -> None:
        self.store = Store(training.folder.checkpoints)
        self._training = training

    held_bytes = {"chief-0": 8}

    def take(self, step: int, position: Position, *, copies: bool) -> Callable[[], list[int]]:
        assert copies
        training = self._training
        assert step == training.program.iterations
        assert step not in training.saved
        training.saved[step] = position
        training.rates[step] = training.program.optimizer.learning_rate
        training.moment(f"saved {step}")

        def write() -> list[int]:
            time.sleep(training.write_s)  # a slow disk: what does not wait for the checkpoint finds nothing
            training.written.append(step)
            return sorted(training.saved, reverse=True)

        return write

    def restore(self, store: Store) -> Any:
        training = self._training
        if not training.saved:
            return None
        newest = max(training.saved)
        training.program.iterations = newest
        training.program.optimizer.learning_rate = training.rates[newest]
        return SimpleNamespace(step=newest, position=training.saved[newest])

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> bool:
        if step in self._training.saved:
            self._training.compared.append((step, dict(metrics)))
        return False


class ScriptedTraining:
    """The processes of one training, one after the other, in a run folder.

    Attributes:
      saved: the positions of all checkpoints by step; `rates`: their learning rates.
      written: the steps of checkpoints that are on disk; each takes `write_s` seconds.
      compared: step and metrics of checkpoints that were compared with the best one.
      moments: what was done, in order: events by their kind, and what `Script.at` names; each with its step.
      events: all of them.
      hooked: step and metrics of each call of the hooks after an epoch.
    """

    def __init__(self, path: Path, **keys: Any) -> None:
        """Keys of the configuration are given as `group__key=value`: composing them would take longer than a test."""
        raw = raw_config("cluster=none")
        for key, value in keys.items():
            group, _, name = key.partition("__")
            raw[group] = {**raw[group], name: value} if name else value
        self._config = parse.load(raw)
        self.folder = RunFolder.create(path, raw={})
        self.saved: dict[int, Position] = {}
        self.rates: dict[int, float] = {}
        self.written: list[int] = []
        self.write_s = 0.0
        self.compared: list[tuple[int, dict[str, float]]] = []
        self.moments: list[str] = []
        self.events: list[Event] = []
        self.hooked: list[tuple[int, dict[str, float]]] = []

    def train(self, script: Script | None = None, *, evaluates: bool = True) -> TrainingRun:
        """One process, to its end."""
        self._script = script or Script()
        self.program: Any = _Program(self._config, self._script)
        reporter = Reporter([self, self.folder], started_s=time.time())
        policies = metric_policies(self.program, reporter, self.folder)
        schedule = None
        start = Position()
        if isinstance(self._config.checkpoint, choices.EpochCheckpoints):
            checkpoints: Any = _Checkpoints(self)
            keys = self._config.checkpoint
            machine = Machine("here", 16)
            schedule = CheckpointSchedule(checkpoints, keys, reporter, self.folder, lambda task: machine)
            if (restored := schedule.restore()) is not None:
                start = restored.position
                policies.go_on(restored.step)
        start = checkpointing.adapted_position(self.program, start, reporter)
        self.run = TrainingRun(self.program, reporter, folder=self.folder, start=start, stop=Stop())
        hooks: Any = SimpleNamespace(
            check=lambda context: None,
            are_due=lambda epoch: True,
            after_epoch=self._hook,
            end=lambda context: None,
        )
        evaluator: Any = SimpleNamespace(evaluate=self._evaluate) if evaluates else None
        planned = actions.in_order(self.run, hooks=hooks, policies=policies, schedule=schedule, evaluator=evaluator)
        self.run.plan(planned)
        pieces = 0
        for epoch in self.run.epochs(self.program.join):
            for piece in epoch.pieces():
                pieces += 1
                assert pieces < MOST_PIECES, "the training does not end"
                piece.num_steps = min(piece.max_steps, self._script.packed)
                self.program.schedule(piece.num_steps)
                self.moment(f"scheduled {self.run.start.scheduled + self.run.scheduled + piece.num_steps}")
                self.run.after_piece(piece)
            self.run.after_epoch(epoch, self.program.metrics)
        self.run.end()
        return self.run

    def moment(self, name: str) -> None:
        self.moments.append(name)
        if (happens := self._script.at.get(name)) is not None:
            happens(self.run)

    def of(self, kind: str) -> list[Event]:
        """The events of a kind."""
        return [event for event in self.events if event.kind == kind]

    def event(self, event: Event) -> None:
        self.events.append(event)
        if event.kind in ("epoch", "evaluation", "warning", "learning_rate"):
            self.moments.append(f"{event.kind} {event.step}")

    def progress(self, progress: Any) -> None:
        pass

    def _evaluate(self, step: int, progress: Callable[[], None]) -> Evaluation:
        self.moment(f"evaluated {step}")
        return Evaluation("direct", step, self._script.examples_seen, dict(self._script.evaluation(step)))

    def _hook(self, context: Any) -> None:
        self.hooked.append((context.step, dict(context.metrics)))
        self.moment(f"hooks {context.step}")


def kept(position: Position) -> tuple[int, int, int]:
    """Epochs, steps of the next one, and steps in all."""
    plain = dataclasses.asdict(position)
    return plain["epochs"], plain["steps"], plain["scheduled"]
