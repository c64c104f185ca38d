"""Parses the group `data`: the keys that psrun reads, the source and its options, and what contradicts the rest."""

from __future__ import annotations

import dataclasses
import glob
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psrun.config import resolvers, schema, targets
from psrun.config.run_config import Data
from psrun.config.schema import at_least, one_of
from psrun.errors import ConfigError, Problem


@dataclass(frozen=True)
class _Keys:
    global_batch_size: int | str = at_least(1, or_else=schema.AUTO)
    batch_size_per_replica: int | None = at_least(1, default=None)
    visitation: str = one_of("once", "every_worker", "dynamic", default="every_worker")
    audit: bool = False
    sharding: str | None = one_of("auto", "file", "data", "off", None, default=None)
    label_vocabulary: Any = None


_NAMES = frozenset(field.name for field in dataclasses.fields(_Keys))


def read(node: Any, cluster: Any, problems: list[Problem], *, elsewhere: bool) -> Data | None:
    """The data of a run; None, with problems added, if they are not valid.

    Args:
      cluster: the group of that name, for the number of replicas.
      elsewhere: as in `parse.load`.
    """
    if not isinstance(node, Mapping):
        problems.append(Problem("data", f"is {node!r}; choose data=NAME"))
        return None
    own = {name: value for name, value in node.items() if name in _NAMES}
    if own.get("sharding") is False:  # YAML's `off`
        own["sharding"] = "off"
    vocabulary = _label_vocabulary(own.pop("label_vocabulary", None), problems)
    _check_batch_size(own, cluster, problems)
    keys = schema.read(_Keys, own, key="data", problems=problems)
    options = {k: v for k, v in node.items() if k not in _NAMES}
    target = targets.read(options, key="data", problems=problems, others=_NAMES)
    if not elsewhere:
        problems += _missing_files(node)
    if target is None or keys is None:
        return None
    values = {**dataclasses.asdict(keys), "label_vocabulary": vocabulary}
    del values["batch_size_per_replica"]  # the global one follows from it
    return Data(target, **values)


def _check_batch_size(data: dict[str, Any], cluster: Any, problems: list[Problem]) -> None:
    """Adds a problem if both batch sizes are missing, or contradict each other."""
    per_replica = data.get("batch_size_per_replica")
    size = data.get("global_batch_size")
    if per_replica is None and size is None:
        data["global_batch_size"] = schema.MISSING
    if not isinstance(per_replica, int) or not isinstance(size, int) or not isinstance(cluster, Mapping):
        return
    try:
        replicas = resolvers.num_replicas(cluster)
    except ConfigError as error:
        problems += error.problems
        return
    if size != per_replica * replicas:
        message = f"is {size}, but {replicas} x data.batch_size_per_replica={per_replica} is {per_replica * replicas}"
        problems.append(Problem("data.global_batch_size", f"{message}: set one of them to null"))


def _missing_files(data: Mapping[str, Any]) -> Iterator[Problem]:
    """Data paths that do not exist on this machine. TensorFlow checks those of remote file systems."""
    for name in ("path", "eval_path"):
        path = data.get(name)
        if not isinstance(path, str) or path == schema.MISSING or "://" in path:
            continue
        key = f"data.{name}"
        local = str(Path(path).expanduser())
        if Path(local).exists():  # its name may look like a pattern
            continue
        if not any(mark in path for mark in "*?["):
            yield Problem(key, f"{path!r} does not exist (current folder: {Path.cwd()})")
        elif next(glob.iglob(local), None) is None:
            yield Problem(key, f"no file matches {path!r} (current folder: {Path.cwd()})")


def _label_vocabulary(value: Any, problems: list[Problem]) -> Any:
    """The values as a tuple, all strings or all integers; otherwise adds a problem."""
    if value is None:
        return None
    key = "data.label_vocabulary"
    example = "a list of strings or of integers, such as [no, yes]"
    if not isinstance(value, list) or len(value) < 2:
        problems.append(Problem(key, f"is {value!r}, must be null or {example}, with at least 2 values"))
        return None
    # YAML reads an unquoted `no` as false and `yes` as true.
    values = [{False: "no", True: "yes"}[each] if isinstance(each, bool) else each for each in value]
    kinds = {type(each) for each in values}
    if kinds not in ({str}, {int}) or "" in values:
        problems.append(Problem(key, f"is {value!r}, must be {example}; quote strings that look like numbers"))
    elif twice := sorted({each for each in values if values.count(each) > 1}):
        problems.append(Problem(key, f"lists {', '.join(map(repr, twice))} more than once; remove the duplicates"))
    return tuple(values)
