"""The chief's side of a cluster: its heartbeat, its watch over servers, and their end."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Self

from psrun.cluster import strategy
from psrun.cluster.probe import PortReservation, ServerStatus, statuses
from psrun.config import choices
from psrun.config.run_config import RunConfig
from psrun.config.topology import CHIEF, Task
from psrun.data.source import DataSource
from psrun.errors import ClusterError, TaskLostError
from psrun.launch.hang_detector import TrainingStatus
from psrun.launch.recoveries import Loss, Recoveries, earlier_loss
from psrun.launch.server_watch import ANSWER_WITHIN_S, Watch
from psrun.program.batch_checks import check_arrays
from psrun.program.build import build, build_state, start_afresh
from psrun.program.compiled_model import Program
from psrun.results import task_files
from psrun.results.events import Reporter
from psrun.results.summary import PENDING
from psrun.roles.task_context import TaskContext
from psrun.tf_internals.cluster import incarnation
from psrun.training import failures
from psrun.training.loop import TrainingRun
from psrun.training.progress import Pulse

_REPORT_EVERY_S = 5.0


class Chief:
    """This process as the chief of its cluster, from its start to its end.

    A context manager that closes itself and the reporter.

    Attributes:
      folder, reporter: of the task.
      pulse: the heartbeat of this process.
      topology: of a cluster of several processes; None for a single process.
    """

    def __init__(self, run_config: RunConfig, context: TaskContext, reporter: Reporter) -> None:
        self.folder = context.folder
        self.reporter = reporter
        self.pulse = Pulse()
        self._training: TrainingRun | None = None
        self._program: Program | None = None
        self._cluster = run_config.cluster
        self._partitioner = run_config.partitioner
        self.topology = context.topology
        self._give_up = context.give_up
        self._connect = context.connect or functools.partial(strategy.connect, give_up=context.give_up)
        self._reported_s = time.monotonic()
        self._recoveries = Recoveries(reporter)
        # Whoever started the tasks of such a cluster restarts them, but records nothing.
        self._loss = self._earlier_loss() if self._cluster.started_elsewhere else None
        self._reservation = self._reserved_port()
        self._heartbeat = None
        # Also if this is the only process: a sweep shows its progress. A running run has its own heartbeat.
        if self.topology is not None or run_config.mode == "train":
            me = CHIEF if self.topology is None else self.topology.me
            self._heartbeat = task_files.HeartbeatWriter(self.folder.root.path, me, self._current_heartbeat)
            self._heartbeat.start()

    def _reserved_port(self) -> PortReservation | None:
        """For servers, which exit if nobody listens for too long: TensorFlow listens only once the data is ready."""
        if self.topology is None or not self._cluster.has_server_processes or CHIEF not in self.topology.addresses:
            return None
        return PortReservation(self.topology.addresses[CHIEF])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._heartbeat:
            self._heartbeat.stop()
            if self.topology is None:
                with contextlib.suppress(OSError):
                    task_files.shared(self.folder.path).rmdir()
        if self._reservation:
            self._reservation.close()
        self.reporter.close()

    def restored(self, step: int) -> None:
        """Call when the variables have been restored to `step`, before they are used."""
        self._recoveries.restored(step)

    def follow(self, training: TrainingRun) -> None:
        """Shows the progress of `training` in the heartbeat, and names its failures. Call before its first step."""
        self._training = training
        self.pulse = training.monitor

    def preparing(self, text: str) -> None:
        """Call repeatedly while data is prepared or predictions are written: counts as progress, and reports `text` at
        intervals.
        """
        self.pulse.advance()
        if time.monotonic() - self._reported_s > _REPORT_EVERY_S:
            self._reported_s = time.monotonic()
            self.reporter.emit("preparing", text=text)

    @property
    def cluster_facts(self) -> dict[str, Any]:
        """The cluster in run.json, with the workers that train."""
        num_workers = self._cluster.num_workers
        num_ps = self._cluster.num_ps
        if self.topology is not None and self._cluster.has_parameter_servers:  # one of the workers may be set aside
            num_workers = len(self.topology.of("worker"))
            num_ps = len(self.topology.of("ps"))
        return {"topology": self._cluster.kind, "num_workers": num_workers, "num_ps": num_ps}

    @contextmanager
    def program(self, run_config: RunConfig, source: DataSource) -> Iterator[Program]:
        """Builds the run's program on the cluster. Servers exit at the end unless there was an error.

        Raises:
          ConfigError: model, data and options do not fit together.
          PsrunError: a server did not start or was lost, a step failed, or data is wrong.
        """
        with self._connected(run_config.seed) as distribution:
            program = build(run_config, source, distribution)
            self._program = program
            build_state(program)
            if run_config.mode == "train":
                check_arrays(source, program.checks)
            yield program

    @contextmanager
    def _connected(self, seed: int) -> Iterator[strategy.Distribution]:
        """Connects to the cluster once its servers are up, with reset names and random numbers."""
        start_afresh(seed)
        cluster = self._cluster
        topology = self.topology
        if topology is not None and cluster.has_server_processes:
            error = TaskLostError if cluster.started_elsewhere else ClusterError  # a supervisor restarts servers
            strategy.wait_for_servers(topology, within_s=cluster.connect_timeout_s, error=error)
        with (
            self._watched() as check_servers,
            failures.named(lambda: self._training, check_servers, lambda: self._program),
        ):
            if self._reservation:
                self._reservation.close()
            yield self._connect(cluster, self._partitioner, topology)
        if topology is not None and cluster.started_elsewhere:
            strategy.signal_run_over(topology)  # in other clusters the supervisor does

    @contextmanager
    def _watched(self) -> Iterator[Callable[[], None]]:
        """Watches over the servers of clusters without a supervisor, and records recoveries.

        Yields the function to call when a step has failed; see `Watch.check_parameter_servers`.
        """
        cluster = self._cluster
        if not isinstance(cluster, choices.Unsupervised):
            yield lambda: None
            return
        assert self.topology is not None
        assert self._give_up is not None
        if self._loss is not None:
            task = Task.named(self._loss.task) or CHIEF
            before_s = max(0.0, time.time() - self._loss.at_s)
            self._recoveries.failed(task, self._loss.cause, step=self._loss.step, attempt=True, before_s=before_s)
        watch = Watch(cluster, self.topology, self.reporter, self._recoveries, ask=_ask, training=self._status,
                      give_up=self._give_up)  # fmt: skip
        watch.start()
        try:
            yield watch.check_parameter_servers
            watch.stop()
            self._recoveries.end(self.pulse.last_step or 0)
        finally:
            watch.stop()
            if self._training is not None:
                self._recoveries.count_repeated(self._training.steps_repeated)
            self.folder.emit("recoveries", rows=self._recoveries.rows)

    def _earlier_loss(self) -> Loss | None:
        """The end of the attempt before this one; recorded in case this one does not train either."""
        earlier = self.folder.earlier
        loss = earlier_loss(earlier, task_files.read(self.folder.root.path, CHIEF))
        if loss is None or earlier is None:
            return None
        self.folder.emit("lost", **asdict(loss))
        is_recorded = earlier.result.get(PENDING)
        if earlier.result.get("status") == "running" and not is_recorded:
            action = "resumed from the newest checkpoint"
            self.reporter.emit("failure", step=loss.step, task=loss.task, cause=loss.cause, action=action)
        return loss

    def _status(self) -> TrainingStatus:
        """The current status of the training; never blocks."""
        pulse = self.pulse
        return TrainingStatus(pulse.state, pulse.last_step, pulse.slowest_step_s, pulse.advances)

    def _current_heartbeat(self) -> task_files.Heartbeat:
        pulse = self.pulse
        return task_files.Heartbeat(
            os.getpid(),
            time.time(),
            pulse.state,
            step=pulse.last_step,
            step_at_s=pulse.step_at_s,
            slowest_step_s=pulse.slowest_step_s,
            advances=pulse.advances,
            progress=None if pulse.progress is None else asdict(pulse.progress),
        )


def _ask(servers: Mapping[Task, str]) -> Mapping[Task, ServerStatus]:
    return statuses(servers, timeout_s=ANSWER_WITHIN_S, incarnation=incarnation)
