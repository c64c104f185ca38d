"""The loop of a training, which every trainer goes through: its epochs, the pieces of an epoch, what is done when.

    for epoch in run.epochs(steps.join):
        for piece in epoch.pieces():
            piece.num_steps = steps.schedule(piece.max_steps)
            run.after_piece(piece)
        run.after_epoch(epoch, steps.results)

`psrun.training.actions` says what is done at each of these moments, and in which order. Keras' `fit` has the outer loop
itself; its callback calls `begin`, `after_piece` and `after_epoch`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import tensorflow as tf

from psrun import files, parts
from psrun.checkpoint.storage import Position
from psrun.closures.input_streams import Stream, TrainingInput
from psrun.closures.measurements import StalenessMeter, StepProfiler, StepTime, step_time
from psrun.closures.stage import Step
from psrun.closures.training_closures import Packed, StepKind, Steps, TrainingClosures
from psrun.process import Stop
from psrun.program.compiled_model import Program
from psrun.results.events import Reporter
from psrun.results.run_folder import RunFolder
from psrun.training.hooks import Action, HookContext
from psrun.training.progress import Clock, ProgressMonitor

Metrics = Mapping[str, float | None]  # None for an undefined one


@dataclass(frozen=True)
class Actions:
    """What is done at each moment of a training, in order.

    Attributes:
      before_epoch: before the first step of an epoch.
      during_epoch: between two pieces, while steps run.
      after_piece: when the steps of a piece are scheduled; they may still run.
      when_joined: when the steps of an epoch are done, before Keras' own validation.
      after_epoch: when the metrics of the epoch are known.
      at_end: when the trainer is done, perhaps before the last epoch.
    """

    before_epoch: Sequence[Action] = ()
    during_epoch: Sequence[Action] = ()
    after_piece: Sequence[Action] = ()
    when_joined: Sequence[Action] = ()
    after_epoch: Sequence[Action] = ()
    at_end: Sequence[Action] = ()


@dataclass
class Piece:
    """Steps of an epoch that are scheduled together.

    Attributes:
      max_steps: so many at most.
      num_steps: so many were scheduled.
    """

    max_steps: int
    num_steps: int = 0


@dataclass(eq=False)
class Epoch:
    """One epoch.

    Attributes:
      number: from 1; 0 before the first.
      num_steps: steps scheduled so far, by this process and earlier ones.
      is_joined: whether all of its steps are done.
      is_over: whether its metrics are known.
      is_last: whether no epoch follows as planned; decided after it.
      is_interrupted: whether the process ends after this epoch.
      metrics: of its training steps.
      validation: examples seen, metrics and seconds, where the trainer itself has evaluated.
      evaluation: the metrics of the evaluation after it as `val_*`, without undefined ones.
      values: all metrics that are known and defined.
    """

    run: TrainingRun = field(repr=False)
    number: int
    num_steps: int = 0
    is_joined: bool = False
    is_over: bool = False
    is_last: bool = False
    is_interrupted: bool = False
    metrics: Metrics = field(default_factory=dict)
    validation: tuple[int, Metrics, float] | None = None
    evaluation: Mapping[str, float] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)

    @property
    def steps_left(self) -> int:
        return max(0, self.run.steps_per_epoch - self.num_steps)

    def decide_last(self) -> bool:
        """Decides whether no epoch follows as planned. Call once early stopping has seen the training metrics."""
        self.is_last = self.number == self.run.num_epochs or self.run.ends_early
        return self.is_last

    def interrupt(self) -> None:
        """Notes that the process ends after this epoch. Call once its checkpoint is complete."""
        self.is_interrupted = True

    def take_evaluation(self, values: Mapping[str, float]) -> None:
        """Adds the metrics of the evaluation after the epoch, as `val_*`, to its values."""
        self.evaluation = values
        self.values |= values

    def pieces(self, num_steps: int | None = None) -> Iterator[Piece]:
        """Pieces until the epoch has its steps, or `num_steps` more; fewer when the process is asked to stop."""
        end = self.run.steps_per_epoch if num_steps is None else self.num_steps + num_steps
        while self.num_steps < end and not self.run.stop.requested.is_set():
            self.run.check()
            yield Piece(end - self.num_steps)


class TrainingRun:
    """A training from its start position to its end. Calls in another order than the module shows raise RuntimeError.

    Args:
      folder: the run folder, which records the results.
      start: the position from which the training continues; the program's variables have the values of that position.
      stop: of this process.
      lockstep: set if other processes apply the same steps.

    Attributes:
      epoch: the running epoch, or the last one.
      scheduled: number of steps scheduled by this process.
      left: number of steps to apply when the run began.
      profiler: measures where the time of steps on workers goes; None before there are any.
      step_time: where the time of a step has gone up to the last epoch; None if it is not measured.
    """

    def __init__(
        self,
        program: Program,
        reporter: Reporter,
        *,
        folder: RunFolder,
        start: Position,
        stop: Stop,
        lockstep: SynchronizedStop | None = None,
    ) -> None:
        self.program = program
        self.reporter = reporter
        self.warn = reporter.warn
        self.folder = folder
        self.start = start
        self.stop = stop
        self.lockstep = lockstep
        self._actions = Actions()
        self.num_epochs = program.config.trainer.num_epochs
        self.steps_per_epoch = program.config.trainer.num_steps
        self.first_step = program.iterations
        self.left = max(0, (self.num_epochs - start.epochs) * self.steps_per_epoch - start.steps)
        self.monitor = ProgressMonitor(
            program, reporter, first_step=self.first_step, planned=start.scheduled + self.left
        )
        self.clock = Clock(self.first_step)
        self.scheduled = 0
        self.profiler: StepProfiler | None = None
        self.step_time: StepTime | None = None
        self.epoch = Epoch(self, start.epochs, is_joined=True, is_over=True)
        self._pause_epoch = folder.root.pause_epoch  # is written before the process starts
        self._input = TrainingInput(program, start, self.first_step)
        self._join: Callable[[], None] = lambda: None

    # -- the loop

    def plan(self, actions: Actions) -> None:
        """Says what is done at each moment: nothing until this is called. Call before the first epoch."""
        if self.epoch.number != self.start.epochs:
            raise RuntimeError(f"epoch {self.epoch.number} has begun: call plan before the first one")
        self._actions = actions

    def epochs(self, join: Callable[[], None]) -> Iterator[Epoch]:
        """The remaining epochs; fewer if an evaluation ends the training early.

        Args:
          join: waits for all scheduled steps; raises the error of a failed one.
        """
        while self.epoch.number < self.num_epochs and not self.ends_early:
            self.program.network.reset_metrics()
            yield self.begin(join)

    def begin(self, join: Callable[[], None]) -> Epoch:
        """Begins the next epoch. Call before its first step is scheduled, with metrics that are reset."""
        if not self.epoch.is_over:
            raise RuntimeError(f"epoch {self.epoch.number} is not over: call after_epoch")
        self.epoch = Epoch(self, self.epoch.number + 1, self.steps_begun)
        self._join = join
        self._do(self._actions.before_epoch, self.monitor.last_step)
        self.clock.epoch_begins()
        self.monitor.epoch_begins(self.epoch.number)
        return self.epoch

    def after_piece(self, piece: Piece) -> None:
        """Call when the steps of a piece of the running epoch are scheduled."""
        if self.epoch.is_joined:
            raise RuntimeError("no epoch is running: call begin, or iterate epochs")
        self.scheduled += piece.num_steps
        self.epoch.num_steps += piece.num_steps
        self._do(self._actions.after_piece, self.monitor.last_step)

    def join(self) -> None:
        """Waits for the steps of the running epoch, which gets no more; does nothing the second time."""
        if self.epoch.is_joined:
            return
        self._join()
        self.epoch.is_joined = True
        self.clock.steps_joined()
        self.monitor.epoch_ends(self.program.iterations)
        self._do(self._actions.when_joined, self.monitor.last_step)

    def wait(self) -> None:
        """Waits for all steps scheduled so far; the epoch goes on."""
        self._join()

    def after_epoch(
        self, epoch: Epoch, metrics: Callable[[], Metrics], validation: tuple[int, Metrics, float] | None = None
    ) -> dict[str, float]:
        """Joins the steps of an epoch and does what is due after it.

        Args:
          metrics: called when the steps are joined; returns the metrics of the epoch's training steps.
          validation: examples seen, metrics and seconds, where the trainer itself has evaluated.

        Returns:
          The metrics of the evaluation as `val_*`, without undefined ones; empty where there was none.
        """
        if epoch is not self.epoch or epoch.is_over:
            raise RuntimeError(f"epoch {epoch.number} is not running")
        self.join()
        epoch.metrics = metrics()
        epoch.values |= {name: value for name, value in epoch.metrics.items() if value is not None}
        epoch.validation = validation
        epoch.is_over = True
        self._do(self._actions.after_epoch, self.program.iterations)
        return dict(epoch.evaluation)

    def check(self) -> None:
        """Raises what makes it useless to go on. Call between pieces."""
        self._do(self._actions.during_epoch, self.monitor.last_step)

    def end(self) -> None:
        """Call when the trainer is done."""
        self._do(self._actions.at_end, self.program.iterations)

    def _do(self, actions: Sequence[Action], step: int) -> None:
        context = HookContext(step, self.epoch.number, self.epoch.values, self.folder.path, self.program)
        for action in actions:
            action(context=context)

    # -- where the run is

    @property
    def steps(self) -> dict[str, int]:
        """Steps of the whole run. Those that earlier processes applied may include repeated ones."""
        applied = self.monitor.last_step
        scheduled = self.start.scheduled + self.scheduled
        return {"applied": applied, "scheduled": scheduled, "repeated": max(0, applied - scheduled)}

    @property
    def steps_repeated(self) -> int:
        """Steps applied more often than scheduled, in this process: a worker died after its step was applied."""
        return max(0, self.monitor.last_step - self.first_step - self.scheduled)

    @property
    def ends_early(self) -> bool:
        """Whether the training is to stop before the next epoch: an evaluation has requested it, or it pauses."""
        # Processes in lockstep would read the request of an evaluation at different steps.
        return self.is_paused or (self.lockstep is None and self.folder.root.ends_early())

    @property
    def is_paused(self) -> bool:
        """Whether the training has reached the epoch after which a search pauses it, before its last one."""
        if self._pause_epoch is None or not self.epoch.is_over:
            return False
        return self._pause_epoch <= self.epoch.number < self.num_epochs

    @property
    def why_ends_early(self) -> str | None:
        """Why it ends early, in one line; None if it does not."""
        if self.is_paused:
            return f"paused by the search after epoch {self.epoch.number} of {self.num_epochs}"
        return self.folder.root.why_ends_early if self.ends_early else None

    @property
    def stops(self) -> bool:
        """Whether this process is to end now: one of many that do the same steps ends where all of them do."""
        return self.stop.requested.is_set() if self.lockstep is None else self.lockstep.agreed

    @property
    def is_cut(self) -> bool:
        """Whether the epoch ends before its last step because the process is to end; a resumed run continues it."""
        return self.epoch.num_steps < self.steps_per_epoch and self.stops

    @property
    def steps_begun(self) -> int:
        """Steps of the next epoch that earlier processes had scheduled."""
        return self.start.steps if self.epoch.number == self.start.epochs else 0

    def steps_left(self) -> int | None:
        """The number of steps until the end of the epoch; None where the training has no fixed epochs."""
        return self.epoch.steps_left if self.program.config.trainer.has_fixed_epochs else None

    def position(self, *, within_epoch: bool) -> Position:
        """The position to resume at: within the epoch, or after it. Call when all steps are done."""
        epochs = self.epoch.number
        steps = 0
        if within_epoch:
            epochs -= 1
            steps = self.epoch.num_steps
        batches = self._input.position(self.scheduled)
        return Position(
            epochs=epochs,
            steps=steps,
            scheduled=self.start.scheduled + self.scheduled,
            stream=self._input.stream,
            batch=batches.first,
            order=self.start.order,
            again=list(batches.again),
            partly=list(batches.partly),
            batches_per_step=self.program.gradients_per_update,
            virtual_s=self._virtual_s(),
        )

    def _virtual_s(self) -> float:
        """Virtual seconds of the training so far, in all processes."""
        if self.program.config.cluster.played_by and self.has_closures:
            return self.closures.virtual_s()
        return self.start.virtual_s

    # -- what steps are made of

    def feed(self) -> Stream:
        """Where the steps on workers get their batches, from here on."""
        return self._input.on_workers(self.scheduled, self.closures.dealt_input)

    def train_dataset(self) -> Callable[..., tf.data.Dataset]:
        """Makes the training data from here on, in this process."""
        return self._input.dataset(self.scheduled)

    def make_profiler(self) -> StepProfiler:
        """The profiler that measures where the time of steps on workers goes."""
        self.profiler = StepProfiler(self.program)
        return self.profiler

    @functools.cached_property
    def closures(self) -> TrainingClosures:
        """The closures of steps, on the workers of a coordinator."""
        mode = self.program.config.consistency
        played_by = self.program.config.cluster.played_by
        make = parts.load(played_by) if played_by else mode.load()
        closures: TrainingClosures = make(self.program.distribution, mode)
        return closures

    @functools.cached_property
    def meter(self) -> StalenessMeter:
        """Measures the staleness of updates on workers."""
        return StalenessMeter(self.program.distribution.num_workers)

    def measure_step_time(self) -> None:
        """Updates `step_time`, if steps on workers are measured. Call at the end of an epoch."""
        rate = self.clock.rate()
        if self.profiler is not None and rate:
            gradients_per_s = rate * self.program.gradients_per_update
            step_s = self.program.distribution.num_workers / gradients_per_s
            self.step_time = step_time(self.profiler.measured(), step_s)

    @property
    def has_closures(self) -> bool:
        """Whether steps were scheduled on workers."""
        return "closures" in vars(self)

    def packed(self, packed: Packed) -> None:
        """Call when it is known how many steps an execution has."""
        step = self.monitor.last_step
        if packed.step_s is None:  # nothing was measured that a user would read
            self.folder.emit("packed", step=step, **asdict(packed))
        else:
            self.reporter.emit("packing", step=step, **asdict(packed))


@dataclass(frozen=True)
class Trainer:
    """One way to train a program.

    Attributes:
      train: trains a program from the start position of its run to the end.
      restore: restores the program's variables from a backup that the trainer itself took; returns its position, or
        None without a backup. Called before there is a run, and only if psrun takes no checkpoints.
    """

    train: Callable[[Program, TrainingRun], None]
    restore: Callable[[Program], Position | None] = lambda program: None


@dataclass
class SynchronizedStop:
    """Stops synchronous tasks, none of which can do a step without the others, after the same execution.

    Between two executions the chief writes the number of the next one into `marker`. No other task can have finished
    that execution by then, so all tasks read the number at its end or before.

    Args:
      leads: whether this is the chief.

    Attributes:
      agreed: whether this task has reached the agreed execution.
    """

    marker: Path
    leads: bool
    agreed: bool = field(default=False, init=False)

    def begin(self) -> None:
        """Forgets what the previous chief agreed on."""
        if self.leads:
            self.marker.unlink(missing_ok=True)

    def after_execution(self, number: int, *, is_requested: bool) -> bool:
        """Whether this task stops after an execution; call after each one.

        Args:
          number: of the execution, from 1 at the start of the processes.
          is_requested: whether this task was asked to stop.
        """
        last = self._last()
        if last == number:
            self.agreed = True
        elif last is None and self.leads and is_requested:
            files.write_atomic(self.marker, str(number + 1))
        return last == number

    def _last(self) -> int | None:
        """The number of the last execution to do; None to continue."""
        try:
            return int(self.marker.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None


def steps_on_workers(
    program: Program, run: TrainingRun, feed: Stream, profiler: StepProfiler, step: Step | None = None
) -> Steps:
    """Schedules the steps of one kind, as the consistency mode says.

    Args:
      feed, profiler, step: as in `StepKind`.
    """
    closures = run.closures
    kind = StepKind(
        program,
        feed,
        profiler,
        run.meter,
        step,
        planned=run.left - run.scheduled,
        steps_left=run.steps_left,
        num_scheduled=lambda: run.start.scheduled + run.scheduled,
        began_s=run.start.virtual_s,
        warn=run.warn,
        on_packed=run.packed,
    )
    steps = closures.steps(kind)
    if program.config.cluster.played_by and (prediction := closures.prediction()):
        run.folder.emit("prediction", **prediction)
    return steps
