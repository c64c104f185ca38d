"""`cluster=kubernetes`: its keys in the configuration, and its answers to the core."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psrun.config.clusters import ClusterRun, Unsupervised
from psrun.config.schema import at_least
from psrun.config.topology import Topology
from psrun.engines.kubernetes import pods
from psrun.errors import ClusterError


@dataclass(frozen=True)
class Kubernetes(Unsupervised):
    """A cluster of pods: each gets its job and index from its environment; the addresses follow from the names."""

    num_workers: int = at_least(1)
    num_ps: int = at_least(1)

    @classmethod
    def resume_command(cls, folder: Path, overrides: Sequence[str], changes: Sequence[str] = ()) -> str:
        again = [each for each in overrides if not each.startswith("cluster=")]  # the folder has another path in pods
        return f"psrun submit kubernetes {shlex.join([*again, *changes])} | kubectl apply -f -"

    @classmethod
    def stop(cls, job: Mapping[str, Any], *, waits: bool, is_here: bool, now: bool) -> bool:
        raise ClusterError(
            "it runs in pods, which start again when they end: "
            "use the kubectl command for deletion that psrun submit kubernetes printed"
        )

    def topology(self, run: ClusterRun, environment: Mapping[str, str]) -> Topology:
        return pods.from_environment(run, environment)
