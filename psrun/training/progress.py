"""What a training measures of itself: a thread reads steps and the loss while it runs, a clock has its epochs."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from psrun.program.compiled_model import Program
from psrun.results.events import Progress, Reporter

_FIRST_STEP_POLL_S = 0.05
_POLL_S = 0.5
_RATE_WINDOW = 10
_STOP_WITHIN_S = 5.0
_READS = 5  # attempts to read a running loss without a concurrent change


class Pulse:
    """The state of a chief, for heartbeats and hang detection.

    Attributes:
      state: 'starting', 'training', or the activity between epochs.
      last_step: number of applied steps at the last read; exact at the end of an epoch.
      step_at_s: when `last_step` last changed, on the clock of `time.time`.
      slowest_step_s: the longest time between two such changes while training.
      advances: counts other work, such as evaluated batches.
      progress: the last report.
    """

    def __init__(self) -> None:
        self.state = "starting"
        self.last_step: int | None = None
        self.step_at_s: float | None = None
        self.slowest_step_s: float | None = None
        self.advances = 0
        self.progress: Progress | None = None

    def begin(self, state: str) -> None:
        """Says what this process does from now on."""
        self.state = state

    def advance(self) -> None:
        """Counts work other than a step, as a sign of life."""
        self.advances += 1


class ProgressMonitor(Pulse):
    """Reads `optimizer.iterations` and the running loss every half second while an epoch trains.

    Reading blocks while a parameter server hangs; this thread may block, the training does not wait for it.

    Attributes:
      first_step_s: when the first step had been applied, on the clock of `time.monotonic`; None before.
      first_step_count: number of steps applied by then.
      planned: total number of steps to do.
      epoch: the running epoch, from 1; 0 before the first.
      non_finite_loss: the loss, once it was NaN or infinite; None before.
    """

    last_step: int

    def __init__(self, program: Program, reporter: Reporter, *, first_step: int, planned: int) -> None:
        super().__init__()
        self._program = program
        self._reporter = reporter
        self._epochs = program.config.trainer.num_epochs
        self.planned = planned
        self.epoch = 0
        self._training = threading.Event()
        self._ended = threading.Event()
        self._samples: deque[tuple[float, int]] = deque(maxlen=_RATE_WINDOW)
        self._thread = threading.Thread(target=self._watch, name="psrun-monitor", daemon=True)
        self.first_step_s: float | None = None
        self.first_step_count = 0
        self._first = first_step
        self.last_step = first_step
        self._of_epoch: Mapping[str, float] = {}
        self._of_evaluation: Mapping[str, float] = {}
        self._displayed: Mapping[str, float] = {}
        self.non_finite_loss: float | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, waiting a bounded time for it."""
        self._ended.set()
        self._training.set()
        self._thread.join(_STOP_WITHIN_S)

    def epoch_begins(self, epoch: int) -> None:
        self.epoch = epoch
        if self._program.own_step is not None:  # the network resets its own metrics only
            self._program.own_step.own_loss.reset_state()
        if self.first_step_s is not None:
            self.goes_on()
        self._training.set()

    def goes_on(self) -> None:
        """Call when the steps of the running epoch continue after a pause."""
        self.state = "training"
        self.step_at_s = time.time()

    def epoch_ends(self, step: int) -> None:
        """Call when the steps of the epoch are joined, `step` in total; nothing is read until the next epoch."""
        self._training.clear()
        self._note_step(step, time.monotonic())
        self.state = "joined"

    def note_epoch(self, metrics: Mapping[str, float]) -> None:
        """Call with the metrics of an epoch that is over."""
        self._of_epoch = metrics
        # Beside the loss of the running epoch, the loss of this one would be read as its value.
        self._displayed = {name: value for name, value in metrics.items() if name != "loss"}

    def note_evaluation(self, metrics: Mapping[str, float]) -> None:
        """Call with the metrics of an evaluation, as `val_*`."""
        self._of_evaluation = metrics
        self._displayed = {**self._displayed, **metrics}

    @property
    def metrics(self) -> dict[str, float]:
        """Of the last complete epoch and of the last evaluation."""
        return {**self._of_epoch, **self._of_evaluation}

    @property
    def running_loss(self) -> float | None:
        """The mean loss of the running epoch at the last report; None between epochs and before the first report."""
        progress = self.progress
        if progress is None or progress.epoch != self.epoch or not self._training.is_set():
            return None
        return progress.loss

    def _watch(self) -> None:
        while True:
            self._training.wait()
            if self._ended.wait(_POLL_S if self.first_step_s else _FIRST_STEP_POLL_S):
                return
            step = self._program.iterations
            read_s = time.monotonic()  # before the loss, which may take as long as some steps
            loss = self.loss() if step > self._first else None
            # Values read while the epoch ended may be from after the reset.
            if not self._training.is_set() or self._ended.is_set():
                continue
            self._note_step(step, read_s)
            if loss is not None and not math.isfinite(loss):
                self.non_finite_loss = loss
            self._report(step, loss)

    def _note_step(self, step: int, read_s: float) -> None:
        """Notes that `step` steps were applied when they were read, at `read_s` on the clock of `time.monotonic`."""
        if step != self.last_step:
            now_s = time.time()
            if self.step_at_s is not None and self.state == "training":
                self.slowest_step_s = max(self.slowest_step_s or 0.0, now_s - self.step_at_s)
            self.last_step = step
            self.step_at_s = now_s
        if step > self._first and self.first_step_s is None:
            self.first_step_s = read_s
            self.first_step_count = step
            self.state = "training"

    def _report(self, step: int, loss: float | None) -> None:
        self._samples.append((time.monotonic(), step))
        start_s, start = self._samples[0]
        now_s, now = self._samples[-1]
        rate: float | None = 0.0
        if self._program.config.cluster.played_by:  # the rate of this process is not that of workers
            rate = None
        elif now_s > start_s:
            rate = (now - start) / (now_s - start_s)
        examples = None if rate is None else rate * self._program.examples_per_step
        self.progress = Progress(
            self.epoch,
            self._epochs,
            step,
            self.planned,
            rate,
            examples,
            loss,
            self._displayed,
            has_begun=step > self._first,
        )
        self._reporter.progress(self.progress)

    def loss(self) -> float | None:
        """The mean loss of the running epoch; None right after its reset."""
        own = self._program.own_step
        if own is None:
            metric = next((metric for metric in self._program.network.metrics if metric.name == "loss"), None)
        else:
            metric = own.running_loss
        if metric is None:
            return None
        read = self._own_part if self._program.config.cluster.has_synchronous_workers else _read
        return running_mean(lambda: float(read(metric.total)), lambda: float(read(metric.count)))

    def _own_part(self, variable: tf.Variable) -> Any:
        """The part of this process: reading the total would be a collective operation, which needs all processes."""
        return self._program.distribution.strategy.experimental_local_results(variable)[0].numpy()


class StartClock:
    """Where the time from the begin of a run to its first step goes, in parts that follow each other.

    Args:
      wall_s: returns the seconds since the run began.
    """

    def __init__(self, wall_s: Callable[[], float]) -> None:
        self._wall_s = wall_s
        self._ends_s: dict[str, float] = {}

    def ends(self, part: str) -> None:
        """Call when a part ends, which is when the next one begins."""
        self._ends_s[part] = self._wall_s()

    def parts(self, first_step_s: float | None) -> dict[str, float] | None:
        """The seconds of each part; `trace` is the last one. None without a first step.

        Args:
          first_step_s: when the first step had been applied, in seconds since the run began.
        """
        if first_step_s is None:
            return None
        seconds: dict[str, float] = {}
        began_s = 0.0
        for part, ended_s in [*self._ends_s.items(), ("trace", first_step_s)]:
            seconds[part] = round(ended_s - began_s, 3)
            began_s = ended_s
        return seconds


class Clock:
    """Times of epochs: from `epoch_begins` to `steps_joined`, without pauses.

    Args:
      first_step: number of steps applied before this process began.

    Attributes:
      steps, seconds: sums over the finished epochs, from the first applied step on.
    """

    def __init__(self, first_step: int) -> None:
        self.steps = 0
        self.seconds = 0.0
        self._first_step = first_step
        self._step = first_step
        self._began_s = 0.0
        self._joined_s = 0.0
        self._pauses_s: list[tuple[float, float]] = []  # of the running epoch: start and end

    def rate(self) -> float | None:
        """Steps per second over all epochs."""
        return self.steps / self.seconds if self.seconds else None

    def epoch_begins(self) -> None:
        self._pauses_s = []
        self._began_s = time.monotonic()

    def steps_joined(self) -> None:
        self._joined_s = time.monotonic()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Excludes the time spent in this context."""
        began_s = time.monotonic()
        yield
        self._pauses_s.append((began_s, time.monotonic()))

    def epoch_ends(self, step: int, monitor: ProgressMonitor) -> tuple[float, float]:
        """Seconds of the whole epoch, and its steps per second, when `step` steps have been applied in total."""
        steps = step - self._step
        began_s = self._began_s
        is_first = self._step == self._first_step
        first_s = monitor.first_step_s
        # The monitor may read a number of steps right after the last one.
        if is_first and monitor.first_step_count < step and first_s is not None and first_s < self._joined_s:
            # Tracing and connecting count as the time to the first step, not as slow steps.
            steps = step - monitor.first_step_count
            began_s = first_s
        seconds = self._since(began_s)
        self.steps += steps
        self.seconds += seconds
        self._step = step
        return self._since(self._began_s), steps / max(seconds, 1e-9)

    def _since(self, began_s: float) -> float:
        paused_s = sum(max(0.0, ended - max(began_s, paused)) for paused, ended in self._pauses_s)
        return self._joined_s - began_s - paused_s


def running_mean(read_total: Callable[[], float], read_count: Callable[[], float]) -> float | None:
    """Total divided by count of a metric that other processes update concurrently; None if one of them is 0.

    The two may be on different parameter servers, and a step may end between two reads. A pair that is read twice
    without a change is used. If steps end too fast for that, the total is divided by the mean of the counts before and
    after it, which has no bias. A total of 0 says nothing: the step that has counted may still have to add its loss.
    """
    before, total, after = read_count(), read_total(), read_count()
    for _ in range(_READS):
        again = read_total()
        if before == after and (total == again or math.isnan(again)):
            break
        before, total, after = after, again, read_count()
    return total * 2 / (before + after) if before and total else None


def _read(variable: tf.Variable) -> Any:
    return tf.convert_to_tensor(variable).numpy()
