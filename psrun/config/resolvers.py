"""References with which a configuration follows from the number of replicas. They need no TensorFlow.

${num_replicas:}                     how many replicas of the model train in step with each other
${scaled:0.01}                       a number times as many
${by_batch_size:{32: 0.1, 64: 0.2}}  what stands there for data.global_batch_size
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from psrun.config import gpus
from psrun.config.choices import KINDS
from psrun.errors import ConfigError, Problem

_ON_THIS_MACHINE = ("inprocess", "local", "multi_worker_mirrored")


def register() -> None:
    """Makes the references known to OmegaConf."""
    OmegaConf.register_new_resolver("num_replicas", _num_replicas, replace=True)
    OmegaConf.register_new_resolver("scaled", _scaled, replace=True)
    OmegaConf.register_new_resolver("by_batch_size", _by_batch_size, replace=True)


def num_replicas(cluster: Mapping[str, Any]) -> int:
    """The number of replicas that share a batch: those of one worker with parameter servers, else all.

    Args:
      cluster: the configuration of the cluster, as plain values.

    Raises:
      ConfigError: it is known only once TensorFlow runs.
    """
    kind, count = cluster.get("kind"), cluster.get("num_replicas")
    if isinstance(count, int):
        return count
    if kind in ("none", "one_device") or kind not in KINDS["cluster"]:  # which is told elsewhere
        return 1
    if kind == "multi_worker_mirrored":
        if not gpus.here():
            return int(cluster.get("num_workers", 1))
        message = (
            "is on a machine with GPUs; how many its workers use is known once they run: give data.global_batch_size"
        )
        raise ConfigError([Problem("cluster", message)])
    per_worker = cluster.get("replicas_per_worker")
    if isinstance(per_worker, int):
        return per_worker
    if kind in _ON_THIS_MACHINE and not gpus.here():
        return 1
    message = (
        "is null: how many GPUs workers have is known once they run; give a number, as other values follow from it"
    )
    raise ConfigError([Problem("cluster.replicas_per_worker", message)])


def completed(values: dict[str, Any]) -> dict[str, Any]:
    """The configuration with the global batch size that follows from that of a replica, where only the latter is given.

    Raises:
      ConfigError: the number of replicas is known only once TensorFlow runs.
    """
    data, cluster = values.get("data"), values.get("cluster")
    if not isinstance(data, dict) or not isinstance(cluster, Mapping):
        return values
    per_replica = data.get("batch_size_per_replica")
    if data.get("global_batch_size") is not None or not isinstance(per_replica, int):
        return values
    return {**values, "data": {**data, "global_batch_size": per_replica * num_replicas(cluster)}}


def _num_replicas(*, _root_: DictConfig) -> int:
    cluster: Any = OmegaConf.to_container(_root_.cluster, resolve=True)
    return num_replicas(cluster)


def _scaled(value: Any, *, _root_: DictConfig) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"${{scaled:{value}}} takes a number, such as ${{scaled:0.01}}")
    return value * _num_replicas(_root_=_root_)


def _by_batch_size(table: Any, *, _root_: DictConfig) -> Any:
    if not isinstance(table, Mapping) or not table:
        raise ConfigError("${by_batch_size:...} takes a table, such as ${by_batch_size:{32: 0.1, 64: 0.2}}")
    size, per_replica = (
        OmegaConf.select(_root_, f"data.{key}") for key in ("global_batch_size", "batch_size_per_replica")
    )
    if size is None and isinstance(per_replica, int):
        size = per_replica * _num_replicas(_root_=_root_)
    if size not in table:
        known = ", ".join(map(str, table))
        raise ConfigError([Problem("data.global_batch_size", f"is {size}; ${{by_batch_size:...}} has only {known}")])
    return table[size]
