"""The chief's side of a cluster, whatever it connects for: its heartbeat, its watch over servers, their end."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from psrun import choices, strategy
from psrun.cluster import files
from psrun.cluster.probe import Door
from psrun.cluster.recoveries import Recoveries, Sign
from psrun.cluster.topology import CHIEF, Topology
from psrun.cluster.watch import Watch
from psrun.config import RunConfig
from psrun.errors import PsrunError
from psrun.reporting.events import Reporter
from psrun.reporting.run_folder import RunFolder
from psrun.roles import server
from psrun.training import failures
from psrun.training.monitor import Pulse
from psrun.training.session import Session

_TELL_EVERY_S = 5.0


class Chief:
    """What makes this process the chief of its cluster, from its start to its end.

    Args:
      topology: of a cluster of several processes; None where this is the only one.
      give_up: ends this process with an error, whatever its threads are doing; for clusters that nobody supervises.

    Attributes:
      pulse: what the others are told of this process.
      session: the training, once there is one.
    """

    def __init__(
        self,
        run_config: RunConfig,
        folder: RunFolder,
        reporter: Reporter,
        topology: Topology | None,
        give_up: Callable[[PsrunError], None] | None,
    ) -> None:
        self._cluster, self._partitioner = run_config.cluster, run_config.partitioner
        self._folder, self._reporter, self._topology, self._give_up = folder, reporter, topology, give_up
        # Servers end where nobody listens there for too long; TensorFlow does once it connects, and data comes before.
        waits = topology is not None and isinstance(self._cluster, choices.Local | choices.Unsupervised)
        self._door = Door(topology.addresses[CHIEF]) if waits and topology and CHIEF in topology.addresses else None
        self.pulse, self._told_s = Pulse(), time.monotonic()
        self.session: Session | None = None
        # Also where this is the only process: a sweep shows how far it is. Beside a run that goes on there is its own.
        beats = topology is not None or run_config.mode == "train"
        me = topology.me if topology else CHIEF
        self._heart = files.Heart(folder.whole.path, me, self._say) if beats else None
        if self._heart:
            self._heart.start()

    def close(self) -> None:
        if self._heart:
            self._heart.stop()
            if self._topology is None:
                with contextlib.suppress(OSError):
                    files.shared(self._folder.path).rmdir()
        if self._door:
            self._door.close()

    def preparing(self, text: str) -> None:
        """Call while data is prepared, again and again: whoever watches has a sign of life, and now and then a line."""
        self.pulse.advance()
        if time.monotonic() - self._told_s > _TELL_EVERY_S:
            self._told_s = time.monotonic()
            self._reporter.emit("preparing", text=text)

    @contextmanager
    def connected(self, connect: Callable[..., strategy.Distribution] = strategy.connect) -> Iterator[Any]:
        """Connects to the cluster, whose servers may yet have to come up; they are told to end where all went well.

        Raises:
          PsrunError: one never came up, was lost, or a step failed.
        """
        cluster, topology = self._cluster, self._topology
        if topology is not None and isinstance(cluster, choices.Local | choices.Unsupervised):
            strategy.wait_for_servers(topology, within_s=cluster.connect_timeout_s)
        with self._watched(), failures.named(lambda: self.session):
            if self._door:
                self._door.close()
            yield connect(cluster, self._partitioner, topology)
        if topology is not None and isinstance(cluster, choices.Unsupervised):
            server.tell_servers(topology)  # elsewhere the supervisor does

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Watches over the servers where no supervisor does; what was lost and came back is recorded."""
        cluster = self._cluster
        if not isinstance(cluster, choices.Unsupervised):
            yield
            return
        assert self._topology is not None
        assert self._give_up is not None
        before = self._folder.stored().get("recoveries", [])

        def record(rows: list[dict[str, Any]]) -> None:
            self._folder.update(recoveries=[*before, *rows])

        recoveries = Recoveries(self._reporter, record)
        watch = Watch(cluster, self._topology, self._reporter, recoveries, sign=self._sign, give_up=self._give_up)
        watch.start()
        try:
            yield
        finally:
            watch.stop()
            recoveries.count_repeated(self.session.steps_repeated if self.session else 0)
            record(recoveries.rows)

    def _sign(self) -> Sign:
        """What is seen from outside; never blocks."""
        pulse = self.pulse
        return Sign(pulse.state, pulse.last_step, pulse.slowest_step_s, pulse.advances)

    def _say(self) -> files.Heartbeat:
        pulse = self.pulse
        return files.Heartbeat(
            os.getpid(),
            time.time(),
            pulse.state,
            step=pulse.last_step,
            step_at_s=pulse.step_at_s,
            slowest_step_s=pulse.slowest_step_s,
            advances=pulse.advances,
            progress=None if pulse.progress is None else asdict(pulse.progress),
        )
