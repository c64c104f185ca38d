"""`profile.steps`: TensorFlow's profiler of every task, between two steps of the training."""

from __future__ import annotations

from collections.abc import Sequence

from psrun.config.topology import CHIEF, Task, Topology
from psrun.results import profiles
from psrun.training.hooks import HookContext
from psrun.training.loop import TrainingRun

_START_WITHIN_S = 20.0
_WRITE_WITHIN_S = 60.0


class ProfileWindow:
    """Begins and ends the profiles of all tasks at steps of the training, when no step runs.

    An execution of several steps is profiled whole: the profile begins before the one that contains the first step, and
    ends after the one that contains the last.

    Args:
      steps: the profile begins after the first, and ends after the second; counted over the whole run.
      topology: of a cluster of several processes; None for a single process.
    """

    def __init__(self, run: TrainingRun, steps: Sequence[int], topology: Topology | None) -> None:
        self._run = run
        self._first, self._last = steps
        self._name = f"steps-{self._first}-{self._last}"
        self._folder = run.folder.root.path
        is_chief = run.folder.root is run.folder  # others have their own training
        self._servers = [*topology.servers()] if topology is not None and is_chief and run.lockstep is None else []
        self._own = profiles.OwnProfile(self._folder, CHIEF if topology is None else topology.me)
        self._done = run.first_step  # steps before the last piece
        self._began: int | None = None
        self._is_over = run.first_step >= self._last
        if is_chief:
            profiles.forget(self._folder)
            self._warn_of_the_end(run.monitor.planned)

    def before_epoch(self, context: HookContext) -> None:
        if self._is_due(self._run.first_step + self._run.scheduled):
            self._begin()

    def after_piece(self, context: HookContext) -> None:
        """Begins or ends the profile if it is due, once the steps so far are done."""
        run = self._run
        scheduled = run.first_step + run.scheduled
        ends = self._began is not None and scheduled >= self._last
        if not ends and not self._is_due(scheduled):
            self._done = scheduled
            return
        self._done = scheduled
        run.wait()
        with run.clock.paused():
            if ends:
                self._end()
            else:
                self._begin()
            run.monitor.goes_on()

    def at_end(self, context: HookContext) -> None:
        """Ends a profile that goes beyond the last step."""
        if self._began is not None:
            self._end()

    def close(self) -> None:
        """Ends the profile of a training that fails or is interrupted; waits for no other task."""
        if self._began is None:
            return
        self._began = None
        try:
            profiles.ask(self._folder, self._name, runs=False)
            self._own.stop()
        except Exception as error:  # what ended the training matters more
            self._run.warn(f"profile.steps: the profile could not be written: {error}")

    def _is_due(self, scheduled: int) -> bool:
        """Whether the next execution, which is as long as the last one, may have steps to profile."""
        next_steps = max(1, scheduled - self._done)
        is_left = scheduled < self._run.monitor.planned
        return self._began is None and not self._is_over and is_left and scheduled + next_steps > self._first

    def _begin(self) -> None:
        self._is_over = True  # there is one
        try:
            if self._servers:
                profiles.ask(self._folder, self._name, runs=True)
            self._own.start(self._name)
        except Exception as error:  # such as a profiler of a callback that runs
            self._run.warn(f"profile.steps: nothing is profiled: {error}")
            return
        self._began = self._run.first_step + self._run.scheduled
        self._report_missing(self._wait(runs=True, within_s=_START_WITHIN_S), "is not profiled")

    def _end(self) -> None:
        began, self._began = self._began, None
        run = self._run
        try:
            if self._servers:
                profiles.ask(self._folder, self._name, runs=False)
            self._own.stop()
        except Exception as error:
            run.warn(f"profile.steps: the profile could not be written: {error}")
            return
        self._report_missing(self._wait(runs=False, within_s=_WRITE_WITHIN_S), "has not written its profile")
        if run.folder.root is run.folder:
            folder = profiles.folder_of(self._folder, self._name)
            tasks = sorted(file.name.partition(".")[0] for file in folder.glob("*.xplane.pb"))
            ended = run.first_step + run.scheduled
            run.reporter.emit("profile", step=ended, path=str(folder), steps=[began, ended], tasks=tasks)

    def _wait(self, *, runs: bool, within_s: float) -> dict[Task, str]:
        return profiles.wait(
            self._folder, self._name, self._servers, runs=runs, within_s=within_s, on_wait=self._run.monitor.advance
        )

    def _report_missing(self, missing: dict[Task, str], what: str) -> None:
        for task, reason in sorted(missing.items()):
            self._run.warn(f"profile.steps: {task} {what}: {reason}")

    def _warn_of_the_end(self, planned: int) -> None:
        given = f"profile.steps: [{self._first}, {self._last}]"
        if self._first >= planned:
            self._run.warn(f"{given} begins after the last step, {planned}; nothing is profiled")
        elif self._last > planned:
            self._run.warn(f"{given} ends after the last step, {planned}; the profile ends there")
