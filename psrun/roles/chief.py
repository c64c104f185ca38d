"""The chief's side of a cluster, whatever it connects for: its heartbeat, its watch over servers, their end."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, Self

from psrun import process
from psrun.cluster import data_service, end_servers, strategy
from psrun.cluster.probe import PortReservation, ServerStatus, statuses
from psrun.config import choices
from psrun.config.run_config import RunConfig
from psrun.config.topology import CHIEF, Task
from psrun.data.source import DataSource
from psrun.errors import ClusterError, TaskLostError
from psrun.launch.hang_detector import TrainingStatus
from psrun.launch.recoveries import Loss, Recoveries, earlier_loss
from psrun.launch.server_watch import ANSWER_WITHIN_S, Watch
from psrun.program import compiled_model
from psrun.program.compiled_model import Program
from psrun.results import task_files
from psrun.results.events import Reporter
from psrun.results.summary import PENDING
from psrun.roles.task_context import TaskContext
from psrun.tf_internals.cluster import incarnation
from psrun.training import failures
from psrun.training.progress import Pulse
from psrun.training.session import Session

_TELL_EVERY_S = 5.0


class Chief:
    """What makes this process the chief of its cluster, from its start to its end.

    Closes itself and the reporter at the end of a `with` statement.

    Attributes:
      folder, reporter: of the task.
      pulse: the heartbeat of this process.
      session: the training, once there is one.
    """

    def __init__(self, run_config: RunConfig, context: TaskContext, reporter: Reporter) -> None:
        self._cluster, self._partitioner = run_config.cluster, run_config.partitioner
        self.folder, self.reporter, self._give_up = context.folder, reporter, context.give_up
        self._topology, self._connect = context.topology, context.connect or strategy.connect
        topology = context.topology
        # Servers end where nobody listens there for too long; TensorFlow does once it connects, and data comes before.
        waits = topology is not None and self._cluster.has_server_processes
        self._door = (
            PortReservation(topology.addresses[CHIEF]) if waits and topology and CHIEF in topology.addresses else None
        )
        self.pulse, self._told_s = Pulse(), time.monotonic()
        self.session: Session | None = None
        # Whoever started the tasks of such a cluster restarts them, and writes down nothing.
        self._alone = self._cluster.started_elsewhere and process.SUPERVISOR_PID not in os.environ
        self._loss = self._earlier_loss() if self._alone else None
        self._recoveries = Recoveries(reporter)
        # Also where this is the only process: a sweep shows how far it is. Beside a run that goes on there is its own.
        beats = topology is not None or run_config.mode == "train"
        me = topology.me if topology else CHIEF
        self._heart = task_files.HeartbeatWriter(self.folder.whole.path, me, self._say) if beats else None
        if self._heart:
            self._heart.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()
        self.reporter.close()

    def _close(self) -> None:
        if self._heart:
            self._heart.stop()
            if self._topology is None:
                with contextlib.suppress(OSError):
                    task_files.shared(self.folder.path).rmdir()
        if self._door:
            self._door.close()

    def restored(self, step: int) -> None:
        """Call when the variables are those of `step` again, before anything is done with them."""
        self._recoveries.restored(step)

    def preparing(self, text: str) -> None:
        """Call while data is prepared or predictions are written, again and again: whoever watches has a sign of life,
        and now and then a line.
        """
        self.pulse.advance()
        if time.monotonic() - self._told_s > _TELL_EVERY_S:
            self._told_s = time.monotonic()
            self.reporter.emit("preparing", text=text)

    @property
    def cluster_facts(self) -> dict[str, Any]:
        """The cluster in run.json, with the workers that train."""
        num_workers, num_ps = self._cluster.num_workers, self._cluster.num_ps
        if self._topology is not None and self._cluster.has_parameter_servers:  # of the workers one may be set aside
            num_workers, num_ps = len(self._topology.of("worker")), len(self._topology.of("ps"))
        return {"topology": self._cluster.kind, "num_workers": num_workers, "num_ps": num_ps}

    @contextmanager
    def program(self, run_config: RunConfig, source: DataSource) -> Iterator[Program]:
        """Builds on the cluster what the run trains. The servers are told to end where all went well.

        Raises:
          ConfigError: model, data and options do not fit each other.
          PsrunError: a server never came up, was lost, or a step failed.
        """
        with self._connected(run_config.seed) as distribution:
            if run_config.data_service:
                distribution = replace(distribution, data_service=self._dispatcher())
            program = compiled_model.build(run_config, source, distribution)
            compiled_model.build_state(program)
            yield program

    def _dispatcher(self) -> str:
        """Where the dispatcher of the data service is asked; it is started where this is the only process."""
        if self._topology is None:
            return data_service.start_here(self._cluster.num_data_workers)
        return data_service.target(self._topology)

    @contextmanager
    def _connected(self, seed: int) -> Iterator[strategy.Distribution]:
        """Connects to the cluster, whose servers may yet have to come up, with names and random numbers afresh."""
        compiled_model.start_afresh(seed)
        cluster, topology = self._cluster, self._topology
        if topology is not None and cluster.has_server_processes:
            error = TaskLostError if self._alone else ClusterError  # a supervisor restarts the server itself
            strategy.wait_for_servers(topology, within_s=cluster.connect_timeout_s, error=error)
        with self._watched() as check_servers, failures.named(lambda: self.session, check_servers):
            if self._door:
                self._door.close()
            yield self._connect(cluster, self._partitioner, topology)
        if topology is not None and cluster.started_elsewhere:
            end_servers.tell_servers(topology)  # elsewhere the supervisor does

    @contextmanager
    def _watched(self) -> Iterator[Callable[[], None]]:
        """Watches over the servers where no supervisor does; what was lost and came back is recorded.

        Yields what to call when a step has failed: see `Watch.check_parameter_servers`.
        """
        cluster = self._cluster
        if not isinstance(cluster, choices.Unsupervised):
            yield lambda: None
            return
        assert self._topology is not None
        assert self._give_up is not None
        if self._loss is not None:
            task, before_s = Task.named(self._loss.task) or CHIEF, max(0.0, time.time() - self._loss.at_s)
            self._recoveries.failed(task, self._loss.cause, step=self._loss.step, attempt=True, before_s=before_s)
        watch = Watch(cluster, self._topology, self.reporter, self._recoveries, ask=_ask, training=self._training,
                      give_up=self._give_up, sees_ends=self._alone)  # fmt: skip
        watch.start()
        try:
            yield watch.check_parameter_servers
            watch.stop()
            self._recoveries.end(self.pulse.last_step or 0)
        finally:
            watch.stop()
            self._recoveries.count_repeated(self.session.steps_repeated if self.session else 0)
            self.folder.record("recoveries", rows=self._recoveries.rows)

    def _earlier_loss(self) -> Loss | None:
        """What ended the attempt before this one, written down in case that this one does not come to train either."""
        earlier = self.folder.earlier
        loss = earlier_loss(earlier, task_files.read(self.folder.whole.path, CHIEF))
        if loss is None or earlier is None:
            return None
        self.folder.record("lost", **asdict(loss))
        if earlier.result.get("status") == "running" and not earlier.result.get(PENDING):  # else it is recorded already
            action = "resumed from the newest checkpoint"
            self.reporter.emit("failure", step=loss.step, task=loss.task, cause=loss.cause, action=action)
        return loss

    def _training(self) -> TrainingStatus:
        """What is seen from outside; never blocks."""
        pulse = self.pulse
        return TrainingStatus(pulse.state, pulse.last_step, pulse.slowest_step_s, pulse.advances)

    def _say(self) -> task_files.Heartbeat:
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
