"""The recorded configuration of a resumed run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from psrun import parts
from psrun.config import parse
from psrun.results.run_folder import CONFIG, HYDRA

# Keys that psrun no longer has. None has an effect on a training at the values that runs recorded.
_REMOVED = (
    "cluster.addresses.data_dispatcher",
    "cluster.addresses.data_worker",
    "cluster.num_data_workers",
    "cluster.resources.data_dispatcher",
    "cluster.resources.data_worker",
    "data.audit",
)


def as_recorded(composed: Any, unresolved: Any, folder: Path, now: set[str]) -> dict[str, Any]:
    """The recorded configuration of the run in `folder`, except for the groups and keys `now` that are given.

    The YAML files may have changed since, and the files of a --config-dir may be missing. The batch size may still
    follow from other keys, until `psrun.config.parse.load` completes it.

    Args:
      unresolved: as `composed`, with unresolved references; a value that refers to another key follows that key.
    """
    if not (folder / CONFIG).exists() or "experiment" in now:  # which may choose anything
        return dict(composed)
    recorded = read(folder / CONFIG)
    now = now | {"data"} if "model" in now else now
    if recorded.get("data", {}).get("batch_size_per_replica") is not None:  # the number of replicas may be another one
        recorded["data"]["global_batch_size"] = None
    nodes = {}
    for name, node in composed.items():
        nodes[name] = node
        if name in parse.RECORDED and name in recorded:
            nodes[name] = _merged(node, unresolved[name], recorded[name], name, now)
    return nodes


def read(path: Path) -> Any:
    """The nodes of a recorded configuration, with references, and with today's names of psrun's modules.

    Keys that psrun no longer has are left out.

    Raises:
      OSError, YAMLError, OmegaConfBaseException: the file cannot be read.
    """
    nodes = _with_names_of_today(OmegaConf.to_container(OmegaConf.load(path), resolve=False))
    for key in _REMOVED:
        _remove(nodes, key.split("."))
    return nodes


def _remove(nodes: Any, names: Sequence[str]) -> None:
    """Removes the key that the names of groups and its own lead to, if it is there."""
    for name in names[:-1]:
        nodes = nodes.get(name) if isinstance(nodes, dict) else None
    if isinstance(nodes, dict):
        nodes.pop(names[-1], None)


def _with_names_of_today(node: Any) -> Any:
    if isinstance(node, list):
        return [_with_names_of_today(each) for each in node]
    if not isinstance(node, dict):
        return node
    renamed = {}
    for key, value in node.items():
        if key == "_target_" and isinstance(value, str):
            renamed[key] = parts.name_of_today(value)
        else:
            renamed[key] = _with_names_of_today(value)
    return renamed


def started_in(folder: Path) -> str | None:
    """The current folder of the process that last began the run in `folder`; None if it is not recorded."""
    return _of_runtime(folder, "cwd")


def output_dir(folder: Path) -> str | None:
    """The path of the run in `folder` when it last began; None if it is not recorded."""
    return _of_runtime(folder, "output_dir")


def _of_runtime(folder: Path, key: str) -> str | None:
    try:
        recorded: Any = OmegaConf.load(folder / HYDRA[1])
        return str(recorded.hydra.runtime[key])
    except (OSError, AttributeError, OmegaConfBaseException):
        return None


def _merged(here: Any, refers: Any, there: Any, key: str, now: set[str]) -> Any:
    """The recorded value `there` of a key, except where it is named in `now` or refers to another key."""
    if key in now or (isinstance(refers, str) and "${" in refers):
        return here
    if isinstance(here, dict) and isinstance(there, dict):
        return _merged_mappings(here, refers, there, key, now)
    are_lists = isinstance(here, list) and isinstance(there, list) and isinstance(refers, list)
    if are_lists and len(here) == len(there):
        items = enumerate(zip(here, refers, there))
        return [_merged(*item, f"{key}[{index}]", now) for index, item in items]
    is_overridden = any(name.startswith(f"{key}.") for name in now)
    return here if is_overridden else there


def _merged_mappings(
    here: Mapping[str, Any], refers: Any, there: Mapping[str, Any], key: str, now: set[str]
) -> dict[str, Any]:
    """As `_merged`. Of another choice than the recorded one, keys that only one of both has need a name in `now`."""
    is_other = any(here.get(name) != there.get(name) for name in ("kind", "_target_"))
    both = {}
    for name, node in here.items():
        inner = f"{key}.{name}"
        if name in there:
            both[name] = _merged(node, refers[name], there[name], inner, now)
        elif not is_other or any(f"{each}.".startswith(f"{inner}.") for each in now):
            both[name] = node
    for name, node in there.items():
        if name not in here and f"{key}.{name}" not in now:
            both[name] = node
    return both
