"""OmegaConf resolvers that depend on the number of replicas. They do not import TensorFlow.

${num_replicas:}                     the number of model replicas that train in step
${scaled:0.01}                       the number multiplied by the number of replicas
${by_batch_size:{32: 0.1, 64: 0.2}}  the value for data.global_batch_size
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from psrun.config import choices, gpus
from psrun.config.schema import AUTO
from psrun.errors import ConfigError, Problem

_OPEN = (None, AUTO)  # batch sizes that are not decided yet
_ON_THIS_MACHINE = ("inprocess", "local", "multi_worker_mirrored")


def register() -> None:
    """Registers the resolvers with OmegaConf."""
    add("num_replicas", _num_replicas)
    add("scaled", _scaled)
    add("by_batch_size", _by_batch_size)


def add(name: str, resolver: Callable[..., Any], *, use_cache: bool = False) -> None:
    """Registers a resolver with OmegaConf 2.3, or with 2.4, which warns of the old name and checks annotations."""
    if "annotation_validation" in inspect.signature(OmegaConf.register_resolver).parameters:
        options: dict[str, Any] = {"replace": True, "use_cache": use_cache, "annotation_validation": "off"}
        OmegaConf.register_resolver(name, resolver, **options)
    else:
        OmegaConf.register_new_resolver(name, resolver, replace=True, use_cache=use_cache)


def num_replicas(cluster: Mapping[str, Any]) -> int:
    """The number of replicas that share a batch: with parameter servers those of one worker, else all.

    Args:
      cluster: the configuration of the cluster, as plain values.

    Raises:
      ConfigError: the number is unknown until TensorFlow runs.
    """
    kind = cluster.get("kind")
    count = cluster.get("num_replicas")
    if isinstance(count, int):
        return count
    known = isinstance(kind, str) and choices.of_kind("cluster", kind) is not None  # parse.py reports unknown kinds
    if not known or kind in ("none", "one_device"):
        return 1
    if kind == "multi_worker_mirrored":
        if not gpus.here():
            return int(cluster.get("num_workers", 1))
        message = (
            "runs on a machine with GPUs: the number of replicas is unknown until it runs; set data.global_batch_size"
        )
        raise ConfigError([Problem("cluster", message)])
    per_worker = cluster.get("replicas_per_worker")
    if isinstance(per_worker, int):
        return per_worker
    if kind in _ON_THIS_MACHINE and not gpus.here():
        return 1
    message = (
        "is null, but other values depend on it: the workers' number of GPUs is unknown until they run; set a number"
    )
    raise ConfigError([Problem("cluster.replicas_per_worker", message)])


def completed(values: dict[str, Any]) -> dict[str, Any]:
    """The configuration with `global_batch_size` derived from `batch_size_per_replica` if only that is a number.

    Raises:
      ConfigError: the number of replicas is unknown until TensorFlow runs.
    """
    data = values.get("data")
    cluster = values.get("cluster")
    if not isinstance(data, dict) or not isinstance(cluster, Mapping):
        return values
    per_replica = data.get("batch_size_per_replica")
    if data.get("global_batch_size") not in _OPEN or not isinstance(per_replica, int):
        return values
    return {**values, "data": {**data, "global_batch_size": per_replica * num_replicas(cluster)}}


def _num_replicas(*, _root_: DictConfig) -> int:
    cluster: Any = OmegaConf.to_container(_root_.cluster, resolve=True)
    return num_replicas(cluster)


def _scaled(value: Any, *, _root_: DictConfig) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"${{scaled:{value}}} requires a number, such as ${{scaled:0.01}}")
    return value * _num_replicas(_root_=_root_)


def _by_batch_size(table: Any, *, _root_: DictConfig) -> Any:
    if not isinstance(table, Mapping) or not table:
        raise ConfigError("${by_batch_size:...} requires a mapping, such as ${by_batch_size:{32: 0.1, 64: 0.2}}")
    size = OmegaConf.select(_root_, "data.global_batch_size")
    per_replica = OmegaConf.select(_root_, "data.batch_size_per_replica")
    if size in _OPEN and isinstance(per_replica, int):
        size = per_replica * _num_replicas(_root_=_root_)
    if size not in table:
        sizes = ", ".join(map(str, table))
        raise ConfigError(
            [Problem("data.global_batch_size", f"is {size}, but ${{by_batch_size:...}} has only {sizes}")]
        )
    return table[size]
