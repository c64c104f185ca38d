"""The built-in choices of each group: one frozen dataclass each, selected by the node's `kind`."""

from __future__ import annotations

from psrun import parts
from psrun.config.choices import clusters, consistency, results, trackers, training
from psrun.config.choices.base import Choice
from psrun.config.choices.clusters import (
    CentralStorage,
    ClusterChoice,
    InProcess,
    Kubernetes,
    Local,
    Mirrored,
    MultiWorkerMirrored,
    NoCluster,
    OneDevice,
    Ray,
    Restart,
    RestartLimits,
    Slurm,
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
from psrun.engines.choices import SUBMISSIONS, KubernetesKeys, PodResources, ResourcesByJob, SlurmJob, Submission

__all__ = [
    "ARTIFACTS",
    "BASES",
    "KINDS",
    "MAX_UNROLLED_STEPS",
    "SUBMISSIONS",
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
    "Kubernetes",
    "KubernetesKeys",
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
    "OneDevice",
    "OwnLoop",
    "OwnPartitioner",
    "Partitioner",
    "PodResources",
    "Ray",
    "ResourcesByJob",
    "Restart",
    "RestartLimits",
    "Sidecar",
    "SidecarThread",
    "Simulated",
    "Slurm",
    "SlurmJob",
    "StaleSynchronous",
    "Static",
    "Submission",
    "Supervised",
    "Synchronous",
    "TensorBoard",
    "TfConfig",
    "TrackerChoice",
    "Trainer",
    "Unsupervised",
    "Validation",
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


def kinds(group: str) -> list[str]:
    """The names of all choices of a group."""
    return [*KINDS[group], *parts.kinds(group)]
