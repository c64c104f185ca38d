"""Stale synchronous parallel: no worker is too many executions ahead of the slowest one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class WorkerClocks:
    """The rule by which workers take closures, for `tf_internals.closure_queue`.

    The clock of a worker counts the closures with a mark that it has done. A worker whose clock is more than
    `staleness` ahead of the slowest live worker's takes no closure with a mark (Ho et al.: More Effective Distributed
    ML via a Stale Synchronous Parallel Parameter Server, NIPS 2013). The clock of a lost worker does not count; when
    the worker is back, its clock is that of the slowest live worker.
    """

    def __init__(self, num_workers: int, staleness: int) -> None:
        self._clocks, self._staleness = dict.fromkeys(range(num_workers), 0), staleness
        self._live = set(self._clocks)

    def choose(self, worker: int, queued: Sequence[Any]) -> int | None:
        waits = self._clocks[worker] - min(self._clocks[each] for each in self._live) > self._staleness
        return next((place for place, mark in enumerate(queued) if mark is None or not waits), None)

    def finished(self, worker: int, mark: Any) -> None:
        self._clocks[worker] += 1

    def left(self, worker: int) -> None:
        self._live.discard(worker)

    def returned(self, worker: int) -> None:
        self._clocks[worker] = min((self._clocks[each] for each in self._live), default=self._clocks[worker])
        self._live.add(worker)

    def is_over(self, mark: Any) -> bool:
        return False
