"""How the chief's keeper gathers those of the other tasks, and what can be wrong with their nodes."""

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
    meeting: Rendezvous,
    step: Step,
    cluster: choices.Slurm,
    tasks: list[Task],
    stop: Stop,
    warn: Callable[[str], None],
) -> dict[str, str]:
    """Waits for the keepers of all tasks, at most `cluster.connect_timeout_s`, and looks whether their nodes will do.

    Returns:
      HOST:PORT of each task that serves, by its name.

    Raises:
      ClusterError: one was not heard of, or cannot be reached at the address that it gives.
      Interrupted: the process is to end.
    """
    address, door = own_address(step, cluster.interface)
    try:
        meeting.write(TaskStatus(address, step.node, time.time()))
        cards = _await(meeting, step, cluster, tasks, stop)
        _look_at_clocks(meeting, cards, warn)
        _reach({task: card for task, card in cards.items() if card.address}, step)
        return {str(task): card.address for task, card in cards.items() if card.address}
    finally:
        door.close()


def _await(
    meeting: Rendezvous, step: Step, cluster: choices.Slurm, tasks: list[Task], stop: Stop
) -> dict[Task, TaskStatus]:
    deadline_s = time.monotonic() + cluster.connect_timeout_s
    while not stop.requested.wait(_ROUND_S):
        meeting.look_anew()
        found = {task: meeting.read(task) for task in tasks}
        cards = {task: card for task, card in found.items() if card is not None}
        if len(cards) == len(tasks):
            return cards
        if time.monotonic() > deadline_s:
            missing = ", ".join(str(task) for task in tasks if task not in cards)
            nodes = ", ".join(sorted({card.node for card in cards.values()}))
            raise ClusterError(
                f"no heartbeat within {cluster.connect_timeout_s:.0f} s (connect_timeout_s): {missing}; all heartbeats "
                f"are from {nodes}, of the nodes {step.nodes}. Either these tasks did not start, or they cannot access "
                f"{meeting.path.parent.parent}: set hydra.run.dir=... to the same folder on a shared disk in all tasks",
                task=next(str(task) for task in tasks if task not in cards),
            )
    assert stop.signum is not None
    raise Interrupted(stop.signum)


def _look_at_clocks(meeting: Rendezvous, cards: dict[Task, TaskStatus], warn: Callable[[str], None]) -> None:
    ahead_s = {cards[task].node: meeting.clock_ahead_s(task) for task in cards}
    chiefs = cards[CHIEF].node
    apart = clocks_apart({node: value for node, value in ahead_s.items() if value is not None}, chiefs)
    if apart:
        warn(
            f"the clocks of nodes differ from the clock of {chiefs}, the chief's, by more than {CLOCKS_APART_S:.0f} s: "
            f"{', '.join(apart)}; reported times and ages are off by as much"
        )


def _reach(cards: dict[Task, TaskStatus], step: Step) -> None:
    others = {task: card for task, card in cards.items() if task != CHIEF}
    with ThreadPoolExecutor(max(1, len(others))) as pool:
        up = pool.map(lambda card: reachable(card.address, timeout_s=_REACH_WITHIN_S), others.values())
        silent = [task for task, there in zip(others, up, strict=True) if not there]
    if silent:
        named = ", ".join(f"{task} on {cards[task].node} at {cards[task].address}" for task in silent)
        message = f"not reachable from {step.node}: {named}; set the network interface: cluster.interface=..."
        raise ClusterError(message, task=str(silent[0]))
