"""How the tasks join a run: the chief's agent waits for the other agents and checks their nodes."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from psrun.cluster.probe import reachable
from psrun.config import choices
from psrun.config.topology import CHIEF, Task
from psrun.errors import ClusterError, Interrupted
from psrun.launch.slurm.rendezvous import CLOCKS_APART_S, Rendezvous, TaskStatus, clocks_apart, own_address
from psrun.launch.slurm.task_identity import Step
from psrun.process import Stop

_ROUND_S = 0.1
_REACH_WITHIN_S = 5.0


def gather(
    rendezvous: Rendezvous,
    step: Step,
    cluster: choices.Slurm,
    tasks: list[Task],
    stop: Stop,
    warn: Callable[[str], None],
) -> dict[str, str]:
    """Waits for the agents of all tasks, at most `cluster.connect_timeout_s`, and checks their nodes.

    Returns:
      HOST:PORT of each task that serves, by its name.

    Raises:
      ClusterError: one did not join, or is not reachable at its address.
      Interrupted: a signal asked the process to exit.
    """
    address, reservation = own_address(step, cluster.interface)
    try:
        rendezvous.write(TaskStatus(address, step.node, time.time()))
        statuses = _await(rendezvous, step, cluster, tasks, stop)
        _check_clocks(rendezvous, statuses, warn)
        _check_addresses({task: status for task, status in statuses.items() if status.address}, step)
        return {str(task): status.address for task, status in statuses.items() if status.address}
    finally:
        reservation.close()


def _await(
    rendezvous: Rendezvous, step: Step, cluster: choices.Slurm, tasks: list[Task], stop: Stop
) -> dict[Task, TaskStatus]:
    deadline_s = time.monotonic() + cluster.connect_timeout_s
    while not stop.requested.wait(_ROUND_S):
        rendezvous.refresh()
        records = {task: rendezvous.read(task) for task in tasks}
        statuses = {task: status for task, status in records.items() if status is not None}
        if len(statuses) == len(tasks):
            return statuses
        if time.monotonic() > deadline_s:
            missing = ", ".join(str(task) for task in tasks if task not in statuses)
            folder = rendezvous.path.parent.parent
            nodes = ", ".join(sorted({status.node for status in statuses.values()}))
            raise ClusterError(
                f"no heartbeat within {cluster.connect_timeout_s:.0f} s (connect_timeout_s): {missing}; all heartbeats "
                f"are from {nodes}, of the nodes {step.nodes}. Either these tasks did not start, or they cannot access "
                f"{folder}: set hydra.run.dir=... to the same folder on a shared disk in all tasks",
                task=next(str(task) for task in tasks if task not in statuses),
            )
    assert stop.signum is not None
    raise Interrupted(stop.signum)


def _check_clocks(rendezvous: Rendezvous, statuses: dict[Task, TaskStatus], warn: Callable[[str], None]) -> None:
    ahead_s = {statuses[task].node: rendezvous.clock_ahead_s(task) for task in statuses}
    chiefs = statuses[CHIEF].node
    apart = clocks_apart({node: value for node, value in ahead_s.items() if value is not None}, chiefs)
    if apart:
        warn(
            f"the clocks of nodes differ from the clock of {chiefs}, the chief's, by more than {CLOCKS_APART_S:.0f} s: "
            f"{', '.join(apart)}; reported times and ages are off by as much"
        )


def _check_addresses(statuses: dict[Task, TaskStatus], step: Step) -> None:
    others = {task: status for task, status in statuses.items() if task != CHIEF}
    with ThreadPoolExecutor(max(1, len(others))) as pool:
        up = pool.map(lambda status: reachable(status.address, timeout_s=_REACH_WITHIN_S), others.values())
        silent = [task for task, there in zip(others, up, strict=True) if not there]
    if silent:
        addresses = ", ".join(f"{task} on {statuses[task].node} at {statuses[task].address}" for task in silent)
        message = f"not reachable from {step.node}: {addresses}; set the network interface: cluster.interface=..."
        raise ClusterError(message, task=str(silent[0]))
