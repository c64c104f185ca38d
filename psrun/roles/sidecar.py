"""The sidecar evaluator: evaluates the checkpoints of a run in a separate process, and exits after the last one.

It never connects to the training cluster: it reads the run folder only. It may be started before, during or after the
training, on any machine that can access the folder.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from psrun import process
from psrun.checkpoint import trained_model
from psrun.checkpoint.storage import Manifest, Store, is_better
from psrun.checkpoint.trained_model import CheckpointInfo, KerasCheckpoints, RunCheckpoints
from psrun.cluster import strategy
from psrun.config.run_config import RunConfig
from psrun.config.topology import CHIEF, Task
from psrun.data import loading
from psrun.errors import CheckpointError, ChiefGoneError, ConfigError
from psrun.launch.losses import Silence
from psrun.process import Stop
from psrun.program.batch_checks import data_errors
from psrun.program.build import build_program, build_state, start_afresh
from psrun.program.compiled_model import Program
from psrun.results import task_files
from psrun.results.events import Reporter, Sink
from psrun.results.run_folder import RunFolder, is_over
from psrun.results.tracking import tracker_sinks
from psrun.training import evaluators, fit
from psrun.training.evaluators import DirectEvaluation, Evaluation
from psrun.training.metric_policies import Plateau

_POLL_S = 0.5
_STOP_WITHIN_S = 20.0
_REPORT_AFTER_S = 10.0


def run(run_config: RunConfig, folder: RunFolder, console: Sink, stop: Stop, *, me: Task) -> None:
    """Evaluates checkpoints until the run is over and its last one is evaluated.

    Raises:
      ChiefGoneError: there was no checkpoint, and no heartbeat of the chief, for `evaluation.wait_s`.
      ConfigError: the model differs from the trained one.
    """
    journal = folder.journal  # the chief writes run.json
    warn = Reporter([journal, console], started_s=time.time()).warn
    sinks = [journal, *tracker_sinks(run_config, folder, warn, joins=True), console]
    sidecar = Sidecar(run_config, folder, sinks, me)
    sidecar.begin()
    with contextlib.closing(sidecar), task_files.heartbeats(folder.path, me, lambda: sidecar.state):
        stop.defer(_STOP_WITHIN_S)
        sidecar.watch(stop)


class Sidecar:
    """The evaluations of one run.

    Args:
      sinks: receive them.

    Attributes:
      state: as in the heartbeat.
    """

    def __init__(self, run_config: RunConfig, folder: RunFolder, sinks: Sequence[Sink], me: Task) -> None:
        assert run_config.sidecar is not None
        self.state = "waiting"
        self._run = run_config
        self._evaluation = run_config.sidecar
        self._folder = folder
        self._me = me
        self._store = Store(folder.checkpoints)
        others = run_config.other_checkpoints
        self._source = RunCheckpoints(self._store) if others is None else KerasCheckpoints(others)
        self._sinks = sinks
        self._program: tuple[Program, DirectEvaluation] | None = None
        self._done: set[str] = set()  # checksums of checkpoints that were evaluated or are damaged
        self._last: Evaluation | None = None
        self._count = 0  # of evaluations, also by earlier evaluators
        self._best_value: float | None = None
        self._warned: set[str] = set()
        self._plateau = Plateau(run_config.early_stopping)
        self._earlier_result: dict[str, Any] | None = None

    def begin(self) -> None:
        """Takes the evaluations of earlier evaluators into account."""
        self._earlier_result = self._result_to_be_resumed()
        kept = evaluators.kept_evaluations(self._folder.evaluations, self._evaluation.kind)
        for evaluation, checkpoint in kept:
            self._done.add(checkpoint)
            self._last = evaluation
            self._count += 1
            self._plateau.reached(evaluation.values)
            self._is_best(evaluation)

    def _result_to_be_resumed(self) -> dict[str, Any] | None:
        """The recorded result of a run whose chief has yet to resume it; None otherwise."""
        result = self._folder.stored()  # first: what a chief records from now on is not of an earlier training
        if self._run.resume is None or process.SUPERVISOR_PID in os.environ or self._folder.ends_early():
            return None
        epochs = self._run.trainer.epochs
        if isinstance(epochs, int):  # otherwise no chief has planned the training yet
            with contextlib.suppress(OSError, ValueError):
                if any(self._store.manifest(step).position.epochs >= epochs for step in self._store.steps()):
                    return None
        return result

    def watch(self, stop: Stop) -> None:
        """Evaluates existing and new checkpoints until the run is over, `max_evaluations` is reached, or a signal
        arrives.
        """
        began_s = time.monotonic()
        silence = Silence(began_s, held_up_s=math.inf)
        while not stop.requested.is_set():
            over = self._is_over()  # first: a later checkpoint is found in the next round
            most = self._evaluation.max_evaluations
            enough = most is not None and self._count >= most
            name = None if enough else self._next()
            if name is not None:
                self._evaluate(name)
                silence.reset(time.monotonic())
            elif over or enough:
                if over:  # otherwise the chief writes run.json
                    self._record()
                return
            else:
                if task_files.still_beats(self._folder.path, CHIEF):
                    silence.reset(time.monotonic())
                self._wait(stop, time.monotonic() - began_s, silence)
        stop.raise_if_requested()

    def _wait(self, stop: Stop, since_start_s: float, silence: Silence) -> None:
        """Waits a moment for the next checkpoint.

        Args:
          silence: since the last checkpoint or heartbeat of the chief.
        """
        limit_s = self._evaluation.wait_s
        if self._last is None and since_start_s > _REPORT_AFTER_S and self._is_first("waiting"):
            facts: dict[str, Any] = {"task": str(self._me), "folder": str(self._source.folder), "until_s": limit_s}
            self._reporter.emit("waiting", **facts)
        if silence.exceeds(limit_s, time.monotonic()):
            message = f"no checkpoint in {self._source.folder} and no chief for {limit_s:.0f} s (evaluation.wait_s)"
            raise ChiefGoneError(f"{message}; {self._me} exits", task=str(self._me))
        stop.requested.wait(_POLL_S)

    def _is_first(self, kind: str) -> bool:
        """Whether nothing of this kind was reported before."""
        is_first = kind not in self._warned
        self._warned.add(kind)
        return is_first

    def _is_over(self) -> bool:
        """Whether the run is over for good."""
        result = self._folder.stored()
        is_resumed = result != self._earlier_result
        return is_over(result) and is_resumed and not task_files.still_beats(self._folder.path, CHIEF)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()

    @property
    def _reporter(self) -> Reporter:
        """A reporter with the clock of the run, which is unknown before the run has started."""
        return Reporter(self._sinks, started_s=self._folder.stored().get("started_s", time.time()))

    def _record(self) -> None:
        """Records the last evaluation in run.json, which has no other writer any more."""
        if self._last is not None:
            self._folder.emit("last_evaluation", **self._last.recorded)
            self._folder.emit("best_checkpoint", best_checkpoint=self._store.best())

    def _next(self) -> Any:
        """The next checkpoint to evaluate, the oldest or the newest that is left; None if there is none."""
        remaining = [name for name in self._source.names() if self._digest(name) not in self._done]
        if not remaining:
            return None
        return remaining[-1] if self._evaluation.every == "latest" else remaining[0]

    def _digest(self, name: Any) -> str:
        try:
            return self._source.digest(name)
        except (OSError, ValueError):
            return f"damaged {name}"

    def _evaluate(self, name: Any) -> None:
        digest = self._digest(name)
        step = name if isinstance(name, int) else None
        self.state = "evaluating"
        try:
            evaluation, checkpoint = self._evaluated(name)
        except (CheckpointError, ConfigError) as error:
            if name in self._source.names():  # otherwise the training has removed it meanwhile
                if isinstance(error, ConfigError):
                    raise
                self._reporter.warn(str(error), step=step)
                self._done.add(digest)
            elif self._evaluation.every == "each" and self._is_first("removed"):
                message = (
                    f"{self._source.title(name)} was removed before it was evaluated, as checkpoints come faster than "
                    "evaluations; see evaluation.every=latest and checkpoint.max_to_keep"
                )
                self._reporter.warn(message, step=step)
            return
        finally:
            self.state = "waiting"
        self._done |= {digest, checkpoint.digest}
        if self._evaluation.every == "latest":
            names = self._source.names()
            older = names[: names.index(name)] if name in names else []
            self._done |= {self._digest(each) for each in older}
        self._count += 1
        self._report(evaluation, checkpoint)

    def _evaluated(self, name: Any) -> tuple[Evaluation, CheckpointInfo]:
        if self._program is None:
            callback_list = fit.made_callbacks(self._evaluation.callbacks, "evaluation.callbacks")
            source = loading.load_source(self._run, self._folder.data_facts(), folder=self._folder.root.path)
            planned = loading.planned(self._run, source)
            start_afresh(self._run.seed)
            built = build_program(planned, source, strategy.Distribution(tf.distribute.get_strategy()))
            build_state(built)
            evaluation = DirectEvaluation(built, callback_list)
            self._program = built, evaluation
        built, evaluation = self._program
        checkpoint = self._source.restore(built.model, name, built.config.trainer.num_steps)
        built.optimizer.iterations.assign(checkpoint.step)  # callbacks read the step there
        with data_errors():
            return evaluators.timed(evaluation, checkpoint.step, lambda: None), checkpoint

    def _report(self, evaluation: Evaluation, checkpoint: CheckpointInfo) -> None:
        """Reports an evaluation as an event, to the tracker, and as a file."""
        self._last = evaluation
        self._reporter.emit("evaluation", **evaluation.recorded)
        if evaluation.undefined is not None and self._is_first("undefined"):
            self._reporter.warn(evaluation.undefined, step=evaluation.step)
        for text in evaluation.warnings:
            if self._is_first(text):
                self._reporter.warn(text, step=evaluation.step)
        if checkpoint.manifest is not None:
            self._compare(evaluation, checkpoint.manifest)
        if self._plateau.reached(evaluation.values) and not self._folder.ends_early():
            self._folder.end_early(self._plateau.reason)
            self._reporter.warn(f"{self._plateau.reason}: stopping the training", step=evaluation.step)
        evaluation.keep(self._folder.evaluations, checkpoint.digest)

    def _compare(self, evaluation: Evaluation, manifest: Manifest) -> None:
        """Records whether the checkpoint is the best of the run, and exports it if so."""
        checkpoint = self._run.checkpoint
        metric = checkpoint.best_metric
        mode = checkpoint.best_mode
        # The chief compares by a metric of the training, which is not among the values.
        if metric is not None and mode is not None and metric in evaluation.values:
            with contextlib.suppress(OSError, ValueError):  # removed meanwhile
                self._store.compare(evaluation.step, metric, evaluation.values[metric], mode=mode)
        if self._is_best(evaluation) and self._run.export.best and self._program is not None:
            program, _ = self._program
            best = trained_model.LoadedModel(program.model, program.source, manifest)
            path = trained_model.export(best, self._folder.path / "export" / "best", self._reporter.warn)
            self._reporter.emit("export", step=evaluation.step, path=str(path))

    def _is_best(self, evaluation: Evaluation) -> bool:
        """Whether it is better than all before, whose checkpoints may have been removed."""
        checkpoint = self._run.checkpoint
        value = evaluation.values.get(checkpoint.best_metric or "")
        mode = checkpoint.best_mode
        if value is None or mode is None or not is_better(value, self._best_value, mode):
            return False
        self._best_value = value
        return True
