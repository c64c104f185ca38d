"""From what Hydra composed to a `RunConfig`, or to one error that lists all problems; needs no TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psrun import choices, contradictions, schema, targets
from psrun.choices import KINDS
from psrun.config import (
    MODES,
    Data,
    EarlyStopping,
    ExportKeys,
    LowerLearningRate,
    PredictKeys,
    RunConfig,
    SweepKeys,
    TaskKeys,
)
from psrun.errors import ConfigError, Problem
from psrun.schema import at_least, one_of

TOP = ("mode", "seed", "resume", "restore", "task", "export", "predict", "early_stopping", "reduce_lr", "sweep")
RECORDED = (*KINDS, "model", "data", "optimizer", "seed", "export", "early_stopping", "reduce_lr")  # hold when resumed
GROUPS = (*KINDS, "model", "data", "optimizer")


@dataclass(frozen=True)
class _DataKeys:
    global_batch_size: int = at_least(1)
    visitation: str = one_of("once", "every_worker", "dynamic", default="every_worker")
    audit: bool = False
    sharding: str | None = one_of("auto", "file", "data", "off", None, default=None)


_OF_DATA = frozenset(field.name for field in dataclasses.fields(_DataKeys))


@dataclass(frozen=True)
class _Top:
    task: TaskKeys
    export: ExportKeys
    predict: PredictKeys
    early_stopping: EarlyStopping
    reduce_lr: LowerLearningRate
    sweep: SweepKeys
    resume: str | None
    restore: Any
    mode: str = one_of(*MODES)
    seed: int = at_least(0)


def load(raw: Mapping[str, Any], *, elsewhere: bool = False) -> RunConfig:
    """The run that `raw` describes.

    Args:
      raw: the composed configuration as plain values, interpolations resolved, missing values as '???'.
      elsewhere: whether it runs on hosts with other files than this one: those it names are not looked for here.

    Raises:
      ConfigError: with every problem found, each by its key.
    """
    problems: list[Problem] = []
    known = {*GROUPS, *TOP, *choices.SUBMISSIONS}
    for name, value in raw.items():
        if name not in known:
            problems.append(Problem(name, f"no such key (value {value!r}).{schema.did_you_mean(name, known)}"))
    parts: dict[str, Any] = {group: _read_kind(raw.get(group), group, problems) for group in KINDS}
    top = schema.read(_Top, {name: raw[name] for name in TOP if name in raw}, key="", problems=problems)
    parts["model"] = targets.read(raw.get("model"), key="model", problems=problems)
    parts["optimizer"] = targets.read(raw.get("optimizer"), key="optimizer", problems=problems)
    parts["submission"] = _read_submission(raw, problems)
    parts["data"] = _read_data(raw.get("data"), problems, elsewhere=elsewhere)
    if isinstance(parts["trainer"], choices.Fit):
        for index, node in enumerate(parts["trainer"].callbacks):
            targets.read(node, key=f"trainer.callbacks[{index}]", problems=problems)
    if problems or top is None:
        raise ConfigError(problems)
    values = {field.name: getattr(top, field.name) for field in dataclasses.fields(top)}
    config = RunConfig(**{**parts, **values, "restore": str(top.restore)}, raw=raw)
    problems += contradictions.problems(config)
    if problems:
        raise ConfigError(problems)
    return config


def _read_kind(node: Any, group: str, problems: list[Problem]) -> Any:
    kinds = KINDS[group]
    kind = node.get("kind") if isinstance(node, Mapping) else None
    if kind not in kinds:
        problems.append(Problem(group, f"is {node!r}; choose {group}=NAME with one of {', '.join(kinds)}"))
        return None
    return schema.read(kinds[kind], node, key=group, problems=problems)


def _read_submission(raw: Mapping[str, Any], problems: list[Problem]) -> Any:
    """How the engine is to run it; only the one that the cluster is named after may be told."""
    cluster = raw.get("cluster")
    kind = cluster.get("kind") if isinstance(cluster, Mapping) else None
    for name in choices.SUBMISSIONS:
        if name in raw and name != kind:
            problems.append(Problem(name, f"is for cluster={name}, and this is cluster={kind}: leave it out"))
    if kind not in choices.SUBMISSIONS:
        return None
    node = raw.get(kind)
    if not isinstance(node, Mapping):
        problems.append(Problem(kind, f"is {node!r}, must hold the settings of cluster={kind}: choose cluster={kind}"))
        return None
    return schema.read(choices.SUBMISSIONS[kind], node, key=kind, problems=problems)


def _read_data(node: Any, problems: list[Problem], *, elsewhere: bool) -> Data | None:
    if not isinstance(node, Mapping):
        problems.append(Problem("data", f"is {node!r}; choose data=NAME"))
        return None
    own = {name: value for name, value in node.items() if name in _OF_DATA}
    if own.get("sharding") is False:  # YAML's `off`
        own["sharding"] = "off"
    keys = schema.read(_DataKeys, own, key="data", problems=problems)
    target = targets.read({k: v for k, v in node.items() if k not in own}, key="data", problems=problems)
    path = node.get("path")
    patterns = isinstance(path, str) and any(mark in path for mark in "*?[")
    if (
        not elsewhere
        and isinstance(path, str)
        and "://" not in path
        and not patterns
        and not Path(path).expanduser().exists()
    ):
        problems.append(Problem("data.path", f"{path!r} is not there (seen from {Path.cwd()})"))
    return Data(target, **dataclasses.asdict(keys)) if target and keys else None
