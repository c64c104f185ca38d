"""Calls users' functions during training: `trainer.hooks`.

The training itself calls hooks of `every_epochs` at the end of an epoch, when no step runs. Each hook of `every_steps`
or `every_s` has a thread in the chief's process, which calls it while steps run on the workers: no step waits for it. A
call that is due while the previous one still runs is skipped.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import tensorflow as tf

from psrun.config import choices, targets
from psrun.config.run_config import RunConfig
from psrun.errors import HookError, PsrunError
from psrun.program.compiled_model import Program
from psrun.results.events import Reporter
from psrun.results.run_folder import RunFolder
from psrun.tf_internals import messages
from psrun.training.progress import ProgressMonitor

_POLL_S = 0.1
_STOP_WITHIN_S = 10.0  # less than the time a chief has to exit


@dataclass(frozen=True)
class HookContext:
    """The argument of a hook.

    Attributes:
      step: steps applied so far; while steps run, read twice a second.
      epoch: the running epoch, from 1; at the end of an epoch, the one that has ended.
      metrics: of the last complete epoch and of the last evaluation (as `val_*`); at the end of an epoch, its own.
      run_folder: the folder of the run.
      program: its `network` and `optimizer` may be read. While steps run, the values include the updates of some steps
        and not of others, and two reads may differ.
      running_loss: while steps run, the mean loss of the running epoch, read twice a second; None if it is not known,
        and at the end of an epoch.
    """

    step: int
    epoch: int
    metrics: Mapping[str, float]
    run_folder: Path
    program: Program
    running_loss: float | None = None


class Action(Protocol):
    """What is done at some moment of a training: a hook of the user, or one of `psrun.training.actions`."""

    def __call__(self, *, context: HookContext) -> Any: ...


class Hooks:
    """The hooks of one training; only the chief calls them.

    Raises:
      ConfigError: a hook cannot be created, or does not take its options.
    """

    def __init__(self, run: RunConfig, folder: RunFolder, reporter: Reporter) -> None:
        self._folder = folder
        self._reporter = reporter
        configured = run.trainer.hooks if folder.root is folder else []
        self._calls = [(hook, targets.bound(hook.target, choices.Hook.PARAMETERS)) for hook in configured]
        self._threads: list[_HookThread] = []
        self._error: Exception | None = None

    def start(self, program: Program, monitor: ProgressMonitor) -> None:
        """Starts the threads of the hooks that are called while steps run."""
        for hook, function in self._calls:
            if hook.every_epochs is None:
                call = functools.partial(self._called_during, hook, function, program, monitor)
                self._threads.append(_HookThread(hook, call, monitor))
        for thread in self._threads:
            thread.start()

    def are_due(self, epoch: int) -> bool:
        """Whether a hook is called after an epoch (from 1)."""
        return any(_is_due(hook, epoch) for hook, _ in self._calls)

    def after_epoch(self, context: HookContext) -> None:
        """Calls the hooks that are due after an epoch, when no step runs; raises as `check`."""
        self.check(context)
        for hook, function in self._calls:
            if _is_due(hook, context.epoch):
                _call(hook, function, context)

    def check(self, context: HookContext) -> None:
        """Raises the error of a hook that failed, if any.

        Raises:
          HookError: a hook failed.
          tf.errors.OpError: the hook met a lost parameter server.
        """
        if self._error is not None:
            raise self._error

    def end(self, context: HookContext) -> None:
        """Ends the threads, which call hooks of steps that are due once more. Raises as `check`."""
        self.stop()
        self.check(context)

    def stop(self) -> None:
        """Ends the threads, waiting a bounded time for hooks that still run."""
        deadline_s = time.monotonic() + _STOP_WITHIN_S
        for thread in self._threads:
            thread.ended.set()
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
            if thread.is_alive():
                late = f"still runs {_STOP_WITHIN_S:.0f} s after the end of the training; the run does not wait for it"
                self._reporter.warn(f"{thread.hook.target.key}: {thread.hook.target.name} {late}")
        self._threads = []

    def _called_during(self, hook: choices.Hook, function: Action, program: Program, monitor: ProgressMonitor) -> bool:
        """Calls a hook while steps run; returns whether it succeeded."""
        try:
            context = HookContext(
                step=monitor.last_step,
                epoch=monitor.epoch,
                metrics=monitor.metrics,
                run_folder=self._folder.path,
                program=program,
                running_loss=monitor.running_loss,
            )
            _call(hook, function, context)
        except Exception as error:
            self._error = self._error or error
            return False
        return True


def _is_due(hook: choices.Hook, epoch: int) -> bool:
    """Whether a hook is called after an epoch."""
    return hook.every_epochs is not None and epoch % hook.every_epochs == 0


def _call(hook: choices.Hook, function: Action, context: HookContext) -> None:
    try:
        function(context=replace(context, metrics=dict(context.metrics)))
    except PsrunError:
        raise
    except Exception as error:
        if isinstance(error, tf.errors.OpError) and messages.task_lost(error):
            raise
        failed = f"{hook.target.name} failed at step {context.step}: {type(error).__name__}: {error}"
        raise HookError(f"{hook.target.key}: {failed}") from error


class _HookThread(threading.Thread):
    """Calls one hook repeatedly during training.

    Args:
      call: calls the hook; returns whether it succeeded. After a failure it is not called again.

    Attributes:
      ended: set when the training is over.
    """

    def __init__(self, hook: choices.Hook, call: Callable[[], bool], monitor: ProgressMonitor) -> None:
        super().__init__(name=f"psrun-{hook.target.key}", daemon=True)
        self.hook = hook
        self.ended = threading.Event()
        self._call = call
        self._monitor = monitor
        self._last_step = monitor.last_step
        self._next_s = time.monotonic() + (hook.every_s or 0.0)

    def run(self) -> None:
        succeeded = True
        while succeeded and not self.ended.wait(self._wait_s()):
            if self._due():
                succeeded = self._call()
        if succeeded and self.hook.every_steps is not None and self._due():
            self._call()

    def _wait_s(self) -> float:
        return _POLL_S if self.hook.every_s is None else max(0.0, self._next_s - time.monotonic())

    def _due(self) -> bool:
        """Whether the hook is due now; if so, counts the next period from here."""
        if self.hook.every_s is not None:
            missed = max(0.0, time.monotonic() - self._next_s) // self.hook.every_s
            self._next_s += (missed + 1) * self.hook.every_s
            return True
        assert self.hook.every_steps is not None
        before = self._last_step
        self._last_step = self._monitor.last_step
        return self._last_step // self.hook.every_steps > before // self.hook.every_steps
