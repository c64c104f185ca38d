"""A process of a job step, which runs one task of a run on its node: `psrun.engines.slurm.steps` starts it by srun.

It reads commands from standard input, which ends with the supervisor, and writes what happens to standard output; each
line is a JSON object. It does not import TensorFlow.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

import portpicker
import psutil

from psrun.cluster.probe import PortReservation, own_host
from psrun.config.topology import Task
from psrun.engines.slurm.allocation import EXIT_SIGNAL
from psrun.launch.backend import TaskProcess
from psrun.results import task_files

_OF_SLURM = {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1}
_ROUND_S = 0.05
_LOOK_EVERY_S = 2.0
_SEEN_WITHIN_S = 10.0
_PORTS_TRIED = 20


class TaskStep:
    """One task on this node, as its supervisor commands.

    Args:
      key: of the step, see `task_files.claim`.
    """

    def __init__(self, task: Task, folder: Path, key: str) -> None:
        self._task = task
        self._folder = folder
        self._key = key
        self._addresses: dict[Any, str] = {}
        self._process: TaskProcess | None = None
        self._number = 0
        self._reported: tuple[int | None, int | None] = (None, None)
        self._reservation: PortReservation | None = None

    def introduce(self, interface: str | None) -> None:
        """Writes the address of this task and the time of this node, or the problem why it cannot run here."""
        node = os.environ.get("SLURMD_NODENAME", "?")
        deadline_s = time.monotonic() + _SEEN_WITHIN_S
        while self._is_replaced():
            if time.monotonic() > deadline_s:
                text = f"node {node} does not see {self._folder}; choose a folder on a shared disk"
                return self._write(node=node, problem=["hydra.run.dir", text])
            time.sleep(_ROUND_S)
        try:
            host = host_of(interface)
        except ValueError as error:
            return self._write(node=node, problem=["cluster.interface", str(error)])
        for _ in range(_PORTS_TRIED):
            address = f"{host}:{portpicker.pick_unused_port()}"
            self._reservation = PortReservation(address)
            if self._reservation.is_open:
                break
        return self._write(node=node, address=address, time_s=time.time())

    def serve(self) -> None:
        """Obeys until the supervisor ends, or another process runs the task: Slurm has given up this node."""
        rest = b""
        looked_s = time.monotonic()
        while True:
            if select.select([0], [], [], _ROUND_S)[0]:
                received = os.read(0, 2**16)
                if not received:
                    return
                *lines, rest = (rest + received).split(b"\n")
                for line in lines:
                    self._obey(json.loads(line))
            self._report()
            if time.monotonic() - looked_s > _LOOK_EVERY_S:
                looked_s = time.monotonic()
                if self._is_replaced():
                    return

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _is_replaced(self) -> bool:
        return task_files.is_replaced(self._folder, str(self._task), self._key)

    def _obey(self, command: dict[str, Any]) -> None:
        """Commands are for all tasks of the step, or for the one that they name."""
        if command.get("task", str(self._task)) != str(self._task):
            return
        if "addresses" in command:
            self._addresses = {Task.named(name): address for name, address in command["addresses"].items()}
        elif "start" in command:
            self._start(command["start"])
        elif "signal" in command and self._process is not None:
            self._process.send(command["signal"])
        elif "ask" in command:
            self._write(answer=command["ask"])

    def _start(self, number: int) -> None:
        if self._reservation is not None:
            self._reservation.close()
            self._reservation = None
        # Slurm gives a task its GPUs: no other one shares them.
        self._process = TaskProcess(self._task, self._addresses, self._folder, shares_gpus_with=[])
        self._process.start()
        self._number = number
        self._reported = (None, None)

    def _report(self) -> None:
        """Writes the id of the process, then its exit code."""
        if self._process is None:
            return
        code = self._process.code  # first: the process has its id when it has ended
        now = (self._process.pid, code)
        if now != self._reported:
            self._reported = now
            self._write(number=self._number, pid=now[0], code=now[1])

    def _write(self, **report: Any) -> None:
        sys.stdout.write(json.dumps({"task": str(self._task), **report}) + "\n")
        sys.stdout.flush()


def host_of(interface: str | None) -> str:
    """The host at which other nodes reach this one: the address of the interface, or of the route to the supervisor.

    Node names need not be host names. Raises ValueError if the interface has no address.
    """
    if interface is None:
        return own_host(f"{os.environ.get('SLURM_LAUNCH_NODE_IPADDR', '127.0.0.1')}:1")
    there = psutil.net_if_addrs()
    if interface not in there:
        raise ValueError(f"is '{interface}'; node {os.environ.get('SLURMD_NODENAME')} has {', '.join(sorted(there))}")
    hosts = {each.family.name: each.address.partition("%")[0] for each in reversed(there[interface])}
    if "AF_INET" in hosts:
        return hosts["AF_INET"]
    if "AF_INET6" in hosts:
        return f"[{hosts['AF_INET6']}]"
    raise ValueError(f"is '{interface}', which has no IP address")


def main() -> None:
    # Slurm sends its signals to all processes of a step. A parameter server that exited then could no longer be saved
    # by the chief. The task inherits the mask.
    signal.pthread_sigmask(signal.SIG_BLOCK, _OF_SLURM)
    signal.signal(EXIT_SIGNAL, signal.SIG_DFL)
    folder, key, interface, *names = sys.argv[1:]
    task = Task.named(names[int(os.environ["SLURM_PROCID"])])
    assert task is not None
    step = TaskStep(task, Path(folder), key)
    try:
        step.introduce(interface or None)
        step.serve()
    finally:
        step.close()


if __name__ == "__main__":
    main()
