"""The sidecar evaluator: evaluates the checkpoints of a run in a process of its own, and ends after the last one.

It never connects to the training cluster: all that it knows of the run is in the run folder. It may be started before,
during or after the training, on any machine that sees the folder.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import asdict
from typing import Any

import tensorflow as tf

from psrun import process
from psrun.checkpoint import export, load_model
from psrun.checkpoint.manifest import Manifest
from psrun.checkpoint.sources import KerasCheckpoints, Restored, RunCheckpoints, Source
from psrun.checkpoint.store import Store, is_better
from psrun.cluster import strategy
from psrun.config.run_config import RunConfig
from psrun.config.topology import CHIEF, Task
from psrun.data import load
from psrun.errors import CheckpointError, ChiefGoneError, ConfigError
from psrun.evaluation import meters
from psrun.evaluation.direct import DirectEvaluation
from psrun.evaluation.meters import Evaluation
from psrun.evaluation.plateau import Plateau
from psrun.process import Stop
from psrun.program import compiled_model
from psrun.results import task_files
from psrun.results.events import Reporter, Sink
from psrun.results.run_folder import RunFolder, is_over
from psrun.results.trackers import choosing
from psrun.training import callbacks

_POLL_S = 0.5
_STOP_WITHIN_S = 20.0
_SAID_AFTER_S = 10.0


def run(run_config: RunConfig, folder: RunFolder, console: Sink, stop: Stop, *, me: Task) -> None:
    """Evaluates checkpoints until the run is over and its last one is evaluated.

    Raises:
      ChiefGoneError: there was no checkpoint, or no sign of the chief, for `evaluation.wait_s`.
      ConfigError: the model is not the one that is trained.
    """
    sidecar = Sidecar(run_config, folder, console, me)
    heart = task_files.HeartbeatWriter(
        folder.path, me, lambda: task_files.Heartbeat(os.getpid(), time.time(), sidecar.state)
    )
    heart.start()
    stop.defer(_STOP_WITHIN_S)
    try:
        sidecar.watch(stop)
    finally:
        heart.stop()
        sidecar.close()


class Sidecar:
    """The evaluations of one run.

    Attributes:
      state: what it is at, for the heartbeat.
    """

    def __init__(self, run_config: RunConfig, folder: RunFolder, console: Sink, me: Task) -> None:
        assert run_config.sidecar is not None
        self._run, self._evaluation, self._folder, self._me = run_config, run_config.sidecar, folder, me
        self._store = Store(folder.checkpoints)
        self._source: Source = RunCheckpoints(self._store)
        others = run_config.other_checkpoints
        if others is not None:
            self._source = KerasCheckpoints(others, run_config.trainer.steps_per_epoch or 1)
        journal = folder.journal  # the chief writes run.json
        warn = Reporter([journal, console], started_s=time.time()).warn
        self._sinks: list[Sink] = [journal, *choosing.make(run_config, folder, warn, joins=True), console]
        self._program: tuple[compiled_model.Program, DirectEvaluation] | None = None
        self._done: set[str] = set()  # checkpoints that were evaluated or cannot be, by their checksums
        self._last: Evaluation | None = None
        self._count = 0  # of evaluations, with those of an evaluator before this one
        self._best_value: float | None = None
        self._missed = False
        self._stopping = Plateau(run_config.early_stopping)
        self._stale = self._before()
        self.state = "waiting"
        self._remember()

    def _before(self) -> dict[str, Any] | None:
        """The result of a run that is to go on, and whose chief may come up after this process; None where it is up."""
        result = self._folder.stored()
        there = self._folder.ends_early()
        with contextlib.suppress(OSError, ValueError):
            there |= any(
                self._store.manifest(step).position.epochs >= self._run.trainer.epochs for step in self._store.steps()
            )
        supervised = process.SUPERVISOR_PID in os.environ
        return None if self._run.resume is None or there or supervised else result

    def _remember(self) -> None:
        """What an evaluator before this one has done is not done again."""
        for found, checkpoint in meters.kept(self._folder.evaluations, self._evaluation.kind):
            self._done.add(checkpoint)
            self._last = found
            self._count += 1
            self._stopping.reached(found.values)
            self._is_best(found)

    def watch(self, stop: Stop) -> None:
        """Evaluates what there is and what comes, until the run is over, there were enough evaluations, or this process
        is to end.
        """
        began_s = quiet_since_s = time.monotonic()
        said = False
        while not stop.requested.is_set():
            over = self._over()  # asked first: what is saved after it is seen in the next round
            name = None if self._enough() else self._next()
            if name is not None:
                self._evaluate(name)
                quiet_since_s = time.monotonic()
            elif over or self._enough():
                if over:  # else the chief does it, which writes run.json
                    self._record()
                return
            else:
                if task_files.still_beats(self._folder.path, CHIEF):
                    quiet_since_s = time.monotonic()
                if not said and self._last is None and time.monotonic() - began_s > _SAID_AFTER_S:
                    said = True
                    self._reporter.emit("waiting", task=str(self._me), folder=str(self._source.folder),
                                        until_s=self._evaluation.wait_s)  # fmt: skip
                if time.monotonic() - quiet_since_s > self._evaluation.wait_s:
                    raise ChiefGoneError(
                        f"no checkpoint in {self._source.folder} and no chief for {self._evaluation.wait_s:.0f} s "
                        f"(evaluation.wait_s); {self._me} ends",
                        task=str(self._me),
                    )
                stop.requested.wait(_POLL_S)
        stop.raise_if_requested()

    def _enough(self) -> bool:
        most = self._evaluation.max_evaluations
        return most is not None and self._count >= most

    def _over(self) -> bool:
        """Whether nobody will start the training again."""
        result = self._folder.stored()
        return is_over(result) and result != self._stale and not task_files.still_beats(self._folder.path, CHIEF)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()

    @property
    def _reporter(self) -> Reporter:
        """On the clock of the run, which is not known before the run has begun."""
        return Reporter(self._sinks, started_s=self._folder.stored().get("started_s", time.time()))

    def _record(self) -> None:
        """Puts the last evaluation into run.json, which nobody else writes any more."""
        if self._last is not None:
            self._folder.record("evaluation", **asdict(self._last))
            self._folder.record("best_checkpoint", best_checkpoint=self._store.best())

    def _next(self) -> Any:
        """The checkpoint to evaluate now: the oldest that is left, or the newest; None where there is none."""
        left = [name for name in self._source.names() if self._known(name) not in self._done]
        if not left:
            return None
        return left[-1] if self._evaluation.every == "latest" else left[0]

    def _known(self, name: Any) -> str:
        try:
            return self._source.digest(name)
        except (OSError, ValueError):
            return f"damaged {name}"

    def _evaluate(self, name: Any) -> None:
        known = self._known(name)
        self.state = "evaluating"
        try:
            evaluated, restored = self._evaluated(name)
        except (CheckpointError, ConfigError) as error:
            if name in self._source.names():  # else it was removed meanwhile: the training has gone on
                if isinstance(error, ConfigError):
                    raise
                self._reporter.warn(str(error), step=self._step_of(name))
                self._done.add(known)
            elif not self._missed and self._evaluation.every == "each":
                self._missed = True
                message = (
                    f"{self._source.title(name)} was removed before it was evaluated: they come faster than that; "
                    "see evaluation.every=latest and checkpoint.max_to_keep"
                )
                self._reporter.warn(message, step=self._step_of(name))
            return
        finally:
            self.state = "waiting"
        self._done.add(known)
        self._done.add(restored.digest)
        if self._evaluation.every == "latest":
            names = self._source.names()
            older = names[: names.index(name)] if name in names else []
            self._done |= {self._known(each) for each in older}
        self._count += 1
        self._tell(evaluated, restored)

    def _step_of(self, name: Any) -> int | None:
        return name if isinstance(name, int) else None

    def _evaluated(self, name: Any) -> tuple[Evaluation, Restored]:
        if self._program is None:
            made = callbacks.made(self._evaluation.callbacks, "evaluation.callbacks")
            source = load.load_source(self._run, folder=self._folder)
            compiled_model.start_afresh(self._run.seed)
            built = compiled_model.build(self._run, source, strategy.Distribution(tf.distribute.get_strategy()))
            compiled_model.build_state(built)
            self._program = built, DirectEvaluation(built, mode=self._evaluation.kind, callbacks=made)
        built, evaluation = self._program
        restored = self._source.restore(built.network, name)
        built.optimizer.iterations.assign(restored.step)  # by which callbacks know it
        return evaluation.evaluate(restored.step, lambda: None), restored

    def _tell(self, found: Evaluation, restored: Restored) -> None:
        """Events, TensorBoard, and a file of its own."""
        self._last = found
        self._reporter.emit("evaluation", **asdict(found))
        if restored.manifest is not None:
            self._compare(found, restored.manifest)
        if self._stopping.reached(found.values) and not self._folder.ends_early():
            self._folder.end_early(self._stopping.reason)
            self._reporter.warn(f"{self._stopping.reason}: stopping the training", step=found.step)
        found.keep(self._folder.evaluations, restored.digest)

    def _compare(self, found: Evaluation, held: Manifest) -> None:
        """What follows for the checkpoints of the run: which one is the best, and its export."""
        checkpoint, step = self._run.checkpoint, found.step
        metric = checkpoint.best_metric
        if metric is not None and metric in found.values:  # else it is one of the training, which the chief compares
            with contextlib.suppress(OSError, ValueError):  # removed meanwhile
                self._store.compare(step, metric, found.values[metric], mode=checkpoint.best_mode)
        if self._is_best(found) and self._run.export.best and self._program is not None:
            built = self._program[0]
            made = export.write(
                load_model.LoadedModel(built.model, built.source, held), self._folder.path / "export" / "best"
            )
            self._reporter.emit("export", step=step, path=str(made))

    def _is_best(self, found: Evaluation) -> bool:
        """Whether it is better than all that were seen, of which the checkpoints may be gone."""
        checkpoint = self._run.checkpoint
        value = found.values.get(checkpoint.best_metric or "")
        better = value is not None and is_better(value, self._best_value, checkpoint.best_mode)
        self._best_value = value if better else self._best_value
        return better
