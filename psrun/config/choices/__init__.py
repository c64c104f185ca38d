"""The built-in choices of each group: one frozen dataclass each, selected by the node's `kind`."""

from __future__ import annotations

from psrun import parts
from psrun.config.choices import clusters, consistency, results, trackers, training
from psrun.config.choices.base import Choice
from psrun.config.choices.clusters import (
    CentralStorage,
    ClusterChoice,
    InProcess,
    Local,
    Mirrored,
    MultiWorkerMirrored,
    NoCluster,
    OneDevice,
    OnSeveralMachines,
    Restart,
    RestartLimits,
    Start,
    Static,
    Supervised,
    TfConfig,
    Unsupervised,
)
from psrun.config.choices.consistency import (
    Asynchronous,
    BoundedDelay,
    ConsistencyChoice,
    Simulated,
    StaleSynchronous,
    Synchronous,
)
from psrun.config.choices.results import (
    Checkpoints,
    Direct,
    Distributed,
    EpochCheckpoints,
    Evaluated,
    EvaluationChoice,
    Exact,
    NoCheckpoints,
    NoEvaluation,
    Sidecar,
    SidecarThread,
    Validation,
)
from psrun.config.choices.trackers import ARTIFACTS, NoTracker, TensorBoard, TrackerChoice
from psrun.config.choices.training import (
    MAX_UNROLLED_STEPS,
    CustomLoop,
    Fit,
    FixedShards,
    Hook,
    MaxSize,
    MinSize,
    NoPartitioner,
    OwnLoop,
    OwnPartitioner,
    Partitioner,
    Trainer,
)

__all__ = [
    "ARTIFACTS",
    "BASES",
    "KINDS",
    "MAX_UNROLLED_STEPS",
    "Asynchronous",
    "BoundedDelay",
    "CentralStorage",
    "Checkpoints",
    "Choice",
    "ClusterChoice",
    "ConsistencyChoice",
    "CustomLoop",
    "Direct",
    "Distributed",
    "EpochCheckpoints",
    "Evaluated",
    "EvaluationChoice",
    "Exact",
    "Fit",
    "FixedShards",
    "Hook",
    "InProcess",
    "Local",
    "MaxSize",
    "MinSize",
    "Mirrored",
    "MultiWorkerMirrored",
    "NoCheckpoints",
    "NoCluster",
    "NoEvaluation",
    "NoPartitioner",
    "NoTracker",
    "OnSeveralMachines",
    "OneDevice",
    "OwnLoop",
    "OwnPartitioner",
    "Partitioner",
    "Restart",
    "RestartLimits",
    "Sidecar",
    "SidecarThread",
    "Simulated",
    "StaleSynchronous",
    "Start",
    "Static",
    "Supervised",
    "Synchronous",
    "TensorBoard",
    "TfConfig",
    "TrackerChoice",
    "Trainer",
    "Unsupervised",
    "Validation",
    "cluster_of_kind",
    "kinds",
    "of_kind",
]

# The groups whose choice may be a class of the user's, named by a `_target_`, with the class that it derives from.
BASES: dict[str, type[Choice]] = {
    "cluster": ClusterChoice,
    "consistency": ConsistencyChoice,
    "evaluation": EvaluationChoice,
    "tracker": TrackerChoice,
}
KINDS: dict[str, dict[str, type]] = {
    "cluster": clusters.CLUSTERS,
    "partitioner": training.PARTITIONERS,
    "trainer": training.TRAINERS,
    "consistency": consistency.MODES,
    "evaluation": results.EVALUATIONS,
    "checkpoint": results.CHECKPOINTS,
    "tracker": trackers.TRACKERS,
}


def of_kind(group: str, kind: str) -> type | None:
    """The dataclass of a choice, of the core or of a part; None if there is no such choice."""
    return KINDS[group].get(kind) or parts.choice(group, kind)


def cluster_of_kind(kind: object) -> type[ClusterChoice]:
    """The dataclass of a cluster; of an unknown one its base class, with the answers of a process that trains alone."""
    found = of_kind("cluster", kind) if isinstance(kind, str) else None
    return ClusterChoice if found is None else found


def kinds(group: str) -> list[str]:
    """The names of all choices of a group."""
    return [*KINDS[group], *parts.kinds(group)]
